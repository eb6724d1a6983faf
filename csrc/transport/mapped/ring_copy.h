// Copying into memory that another core will read next: the faster of two ways, found by measuring.
//
// An ordinary store to a cache line that another core holds has to take the line away from it.
// Between cores with a common cache that is cheap as long as the reader's own cache has let go of
// the line, which a ring larger than that cache sees to; and the reader then finds the data in a
// cache. Between cores without one it limits the ring to a quarter of the speed: there streaming
// stores, which go past the caches, are better. Virtual machines move between the two, so the
// sender keeps measuring what its stores cost either way.
#pragma once

#include <chrono>
#include <cstddef>

#include "base/cost.h"

namespace pycomm {

class RingCopy {
  public:
    // As memcpy to memory that does not overlap; all stores are ordered before later ones of this
    // thread.
    void copy(std::byte* target, const std::byte* source, size_t bytes);

  private:
    bool choose_streaming() const;

    Cost plain_;
    Cost streaming_;
    unsigned copies_ = 0;
};

}  // namespace pycomm
