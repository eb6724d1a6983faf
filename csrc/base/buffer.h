// A typed view of memory that somebody else owns.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/types.h"

namespace pycomm {

struct Buffer {
    void* data = nullptr;  // null only when count is 0
    int64_t count = 0;     // elements
    DataType dtype = DataType::uint8;

    size_t bytes() const { return static_cast<size_t>(count) * dtype_size(dtype); }
    std::byte* at(int64_t element) const {
        return static_cast<std::byte*>(data) + static_cast<size_t>(element) * dtype_size(dtype);
    }
};

}  // namespace pycomm
