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
    const size_t ranks = static_cast<size_t>(size);
    const size_t peers = std::max<size_t>(1, ranks - 1);
    const size_t quarter = std::bit_floor(static_cast<size_t>(buffer_bytes) / 4);
    stage_bytes_ = quarter;
    const size_t share =
        std::min((static_cast<size_t>(buffer_bytes) - quarter) / (peers * stream_count), quarter);
    ring_bytes_ = std::bit_floor(std::max(share, smallest_ring));
    doorbells_ = round_up(sizeof(FaultRecord), cache_line);
    progress_ = doorbells_ + sizeof(Doorbell) * ranks;
    claims_ = progress_ + sizeof(ProgressLine) * ranks;
    board_ = claims_ + 2 * sizeof(ClaimLine);
    handovers_ = board_ + 2 * sizeof(BoardSlot) * ranks;
    stages_ = round_up(handovers_ + sizeof(HandoverLine) * ranks * ranks, 4096);
    rings_ = round_up(stages_ + stage_bytes_ * ranks, 4096);
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
