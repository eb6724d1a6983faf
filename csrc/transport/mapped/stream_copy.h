// Copying into memory that another core will read next.
#pragma once

#include <cstddef>

namespace pycomm {

// As memcpy to memory that does not overlap. Long copies go past the caches (streaming stores): an
// ordinary store to a line that the reader's cache still holds must first take the line away from
// it, which limits a ring between cores without a common cache to a quarter of the speed. All
// stores are ordered before later ones of this thread.
void stream_copy(std::byte* target, const std::byte* source, size_t bytes);

// The same in parts: other threads may see the stores late until stream_fence has been called,
// which waits for them and so is too slow to be called for every small part.
void stream_part(std::byte* target, const std::byte* source, size_t bytes);
void stream_fence();

}  // namespace pycomm
