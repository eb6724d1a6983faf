// Lets waits outside the engine be ended from elsewhere, by Ctrl-C for example.
#pragma once

#include <chrono>
#include <functional>

namespace pycomm {

// Waits look this often.
inline constexpr std::chrono::milliseconds interrupt_interval{50};

// While it lives, check_interrupt() on this thread calls `hook`, which ends the wait by throwing.
// The inner one of two scopes counts.
class InterruptScope {
  public:
    explicit InterruptScope(std::function<void()> hook);
    ~InterruptScope();
    InterruptScope(const InterruptScope&) = delete;
    InterruptScope& operator=(const InterruptScope&) = delete;

  private:
    std::function<void()> hook_;
    const std::function<void()>* outer_;
};

// Called by every wait, without locks held.
void check_interrupt();

}  // namespace pycomm
