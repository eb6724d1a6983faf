// What one of several ways to do something costs, from samples in passing.
#pragma once

#include <algorithm>

namespace pycomm {

// Falls with a faster sample, rises only slowly, since samples include the time when the thread was
// not running.
class Cost {
  public:
    void add(double nanoseconds_per_kib) {
        constexpr double largest_rise = 1.25;
        value_ = value_ == 0 ? nanoseconds_per_kib
                             : std::min(nanoseconds_per_kib, value_ * largest_rise);
    }
    double value() const { return value_; }

  private:
    double value_ = 0;  // not measured yet
};

}  // namespace pycomm
