// A point in time by which a wait must end. Every wait in the library has one.
#pragma once

#include <algorithm>
#include <chrono>

namespace pycomm {

class Deadline {
  public:
    using Clock = std::chrono::steady_clock;

    // `seconds` from now.
    static Deadline after(double seconds) {
        Deadline deadline;
        deadline.seconds_ = seconds;
        // Beyond 10^9 seconds the clock's representation would overflow.
        deadline.end_ = Clock::now() + std::chrono::duration_cast<Clock::duration>(
                                           std::chrono::duration<double>(std::min(seconds, 1e9)));
        return deadline;
    }

    bool expired() const { return Clock::now() >= end_; }
    std::chrono::nanoseconds remaining() const {
        return std::max(std::chrono::nanoseconds(0),
                        std::chrono::duration_cast<std::chrono::nanoseconds>(end_ - Clock::now()));
    }
    // The timeout this deadline was made from, in seconds, for messages.
    double seconds() const { return seconds_; }

  private:
    Clock::time_point end_{};
    double seconds_ = 0;
};

}  // namespace pycomm
