// What happens in the child of a fork, by pthread_atfork.
#include "base/fork.h"

#include <fcntl.h>
#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <mutex>

namespace pycomm {
namespace {

// Never destroyed: a fork may happen while the program ends.
struct Registry {
    std::atomic<uint64_t> generation{0};
    std::mutex mutex;  // held while the process forks, so that the child finds the list whole
    std::vector<int> descriptors;
};

Registry& registry();

void in_child() {
    Registry& state = registry();
    ++state.generation;
    // The numbers stay taken, since their owners, which the child has copies of, will close them.
    const int nothing = state.descriptors.empty() ? -1 : ::open("/dev/null", O_RDWR | O_CLOEXEC);
    for (const int descriptor : state.descriptors) ::dup3(nothing, descriptor, O_CLOEXEC);
    if (nothing >= 0) ::close(nothing);
    state.descriptors.clear();
    state.mutex.unlock();
}

Registry& registry() {
    static Registry* const state = [] {
        auto* made = new Registry;
        pthread_atfork([] { registry().mutex.lock(); }, [] { registry().mutex.unlock(); },
                       &in_child);
        return made;
    }();
    return *state;
}

}  // namespace

uint64_t fork_generation() {
    return registry().generation.load(std::memory_order_relaxed);
}

ParentOnly::ParentOnly(std::vector<int> descriptors) : descriptors_(std::move(descriptors)) {
    Registry& state = registry();
    const std::lock_guard lock(state.mutex);
    state.descriptors.insert(state.descriptors.end(), descriptors_.begin(), descriptors_.end());
}

ParentOnly::~ParentOnly() {
    Registry& state = registry();
    const std::lock_guard lock(state.mutex);
    for (const int descriptor : descriptors_) {
        const auto found =
            std::find(state.descriptors.begin(), state.descriptors.end(), descriptor);
        if (found != state.descriptors.end()) state.descriptors.erase(found);
    }
}

}  // namespace pycomm
