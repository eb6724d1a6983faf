// What the algorithms share: a builder that leaves out empty steps, slices and segments.
#pragma once

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "algorithms/algorithms.h"
#include "schedule/schedule.h"

namespace pycomm {

// Builds a schedule of one lane. Steps of no elements and rounds of no steps are left out, on the
// sending side as on the receiving one, since both know all counts.
class ScheduleBuilder {
  public:
    void next_round() {
        if (!lane_.rounds.empty() && lane_.rounds.back().steps.empty()) return;
        lane_.rounds.emplace_back();
    }
    void send(int peer, Block src) { add({StepKind::send, peer, src, {}, false}); }
    void recv(int peer, Block dst) { add({StepKind::recv, peer, {}, dst, false}); }
    void recv_reduce(int peer, Block src, Block dst, bool peer_first = false) {
        add({StepKind::recv_reduce, peer, src, dst, peer_first});
    }
    void recv_reduce_all(Block src, Block dst) {
        add({StepKind::recv_reduce_all, -1, src, dst, false});
    }
    void copy(Block src, Block dst) { add({StepKind::copy, -1, src, dst, false}); }

    Schedule finish(int64_t scratch_count = 0, bool reduces_at_once = false) {
        if (!lane_.rounds.empty() && lane_.rounds.back().steps.empty()) lane_.rounds.pop_back();
        Schedule schedule;
        schedule.scratch_count = scratch_count;
        schedule.reduces_at_once = reduces_at_once;
        if (!lane_.rounds.empty()) schedule.lanes.push_back(std::move(lane_));
        return schedule;
    }

  private:
    void add(const Step& step) {
        if ((step.kind == StepKind::recv ? step.dst : step.src).count == 0) return;
        if (lane_.rounds.empty()) lane_.rounds.emplace_back();
        lane_.rounds.back().steps.push_back(step);
    }

    Lane lane_;
};

// `count` elements from `offset` on.
struct Range {
    int64_t offset = 0;
    int64_t count = 0;
};
inline Range slice(Range range, int parts, int index) {
    const int64_t begin = slice_offset(range.count, parts, index);
    return {range.offset + begin, slice_offset(range.count, parts, index + 1) - begin};
}
inline Block block(Space space, Range range) {
    return {space, range.offset, range.count};
}

// The slices of `counts`, one after the other, in the long buffer.
inline std::vector<Range> layout(const std::vector<int64_t>& counts) {
    std::vector<Range> ranges;
    ranges.reserve(counts.size());
    int64_t offset = 0;
    for (const int64_t count : counts) {
        ranges.push_back({offset, count});
        offset += count;
    }
    return ranges;
}

inline int64_t largest(const std::vector<int64_t>& counts) {
    return *std::max_element(counts.begin(), counts.end());
}

// Large slices are handled in segments, so that what one phase of an algorithm leaves in the cache
// is still there in the next phase: as few segments as keep one segment of a slice within
// segment_bytes. It is then more than half as long, unless the limit on segments, which bounds the
// size of a schedule, makes it longer.
inline constexpr int64_t segment_bytes = 512 << 10;
inline constexpr int max_segments = 1024;
inline int segments_for(int64_t slice_count, size_t element_size) {
    const int64_t elements =
        std::max<int64_t>(1, segment_bytes / static_cast<int64_t>(element_size));
    const int64_t segments = slice_count / elements + (slice_count % elements != 0);
    return static_cast<int>(std::clamp<int64_t>(segments, 1, max_segments));
}

// The rank `distance` after `rank` on the ring of all ranks; `distance` is at least -2 * size.
inline int around(int rank, int distance, int size) {
    return (rank + distance + 2 * size) % size;
}

}  // namespace pycomm
