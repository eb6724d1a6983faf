// Memory that every rank of a transport has mapped.
#pragma once

#include <cstddef>

namespace pycomm {

// Unmapped by the destructor.
class Region {
  public:
    virtual ~Region() = default;
    std::byte* data() const { return data_; }
    size_t bytes() const { return bytes_; }

  protected:
    std::byte* data_ = nullptr;
    size_t bytes_ = 0;
};

}  // namespace pycomm
