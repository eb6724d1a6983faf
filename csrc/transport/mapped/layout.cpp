// Offsets inside the shared region.
#include "transport/mapped/layout.h"

#include <algorithm>
#include <bit>

namespace pycomm {
namespace {

size_t round_up(size_t value, size_t unit) {
    return (value + unit - 1) / unit * unit;
}

}  // namespace

Layout::Layout(int size, int64_t buffer_bytes) : size_(size) {
    constexpr size_t smallest_ring = 4096;
    const size_t peers = static_cast<size_t>(std::max(1, size - 1));
    const size_t budget = static_cast<size_t>(buffer_bytes);
    const size_t share = std::min(budget / (peers * stream_count), budget / 32);
    ring_bytes_ = std::bit_floor(std::max(share, smallest_ring));
    doorbells_ = round_up(sizeof(FaultRecord), cache_line);
    board_ = doorbells_ + sizeof(Doorbell) * static_cast<size_t>(size);
    rings_ = round_up(board_ + 2 * sizeof(BoardLine) * static_cast<size_t>(size), 4096);
    const size_t rings = static_cast<size_t>(size) * static_cast<size_t>(size - 1) * stream_count;
    total_bytes_ = round_up(rings_ + rings * (sizeof(RingControl) + ring_bytes_), 4096);
}

RingControl& Layout::ring(std::byte* base, int from, int to, Stream stream) const {
    // The ranks other than `from`, numbered without a gap.
    const size_t peer_index = static_cast<size_t>(to < from ? to : to - 1);
    const size_t pair = static_cast<size_t>(from) * static_cast<size_t>(size_ - 1) + peer_index;
    const size_t index = pair * stream_count + static_cast<size_t>(stream);
    return *reinterpret_cast<RingControl*>(base + rings_ +
                                           index * (sizeof(RingControl) + ring_bytes_));
}

}  // namespace pycomm
