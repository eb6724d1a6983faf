// The hook of the current thread.
#include "base/interrupt.h"

#include <utility>

namespace pycomm {
namespace {

thread_local const std::function<void()>* current = nullptr;

}  // namespace

InterruptScope::InterruptScope(std::function<void()> hook)
    : hook_(std::move(hook)), outer_(std::exchange(current, &hook_)) {}

InterruptScope::~InterruptScope() {
    current = outer_;
}

void check_interrupt() {
    if (current != nullptr && *current) (*current)();
}

}  // namespace pycomm
