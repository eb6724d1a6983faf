// A counter moved by pthread_atfork.
#include "base/fork.h"

#include <pthread.h>

#include <atomic>

namespace pycomm {
namespace {

std::atomic<uint64_t> generation{0};

}  // namespace

uint64_t fork_generation() {
    static const int registered = pthread_atfork(nullptr, nullptr, [] { ++generation; });
    (void)registered;
    return generation.load(std::memory_order_relaxed);
}

}  // namespace pycomm
