// The three phases of a chunk, and who may run ahead.
#include "direct/chunked_reduction.h"

#include <algorithm>
#include <cstring>

#include "reduce/reduce.h"
#include "transport/mapped/stream_copy.h"

namespace pycomm {
namespace {

constexpr size_t line = 64;
// What goes past the caches is computed in blocks that stay in the first of them.
constexpr int64_t block_bytes = 8192;

// Lines of each slice in a slot that holds a whole chunk and one result.
size_t lines_per_slice(size_t slot_bytes, int size) {
    return slot_bytes / line / static_cast<size_t>(size + 1);
}

}  // namespace

bool ChunkedReduction::suits(const Transport& transport, const DirectCall& call) {
    return call.kind == OpKind::all_reduce && call.stages && transport.size() > 1 &&
           lines_per_slice(const_cast<Transport&>(transport).board()->area_bytes() / depth,
                           transport.size()) > 0;
}

ChunkedReduction::ChunkedReduction(Transport& transport, const DirectCall& call,
                                   DirectScratch& scratch)
    : transport_(transport),
      board_(*transport.board()),
      call_(call),
      scratch_(scratch),
      rank_(transport.rank()),
      size_(transport.size()),
      element_(dtype_size(call.input.dtype)),
      slot_bytes_(board_.area_bytes() / depth / line * line) {
    const size_t lines = lines_per_slice(slot_bytes_, size_);
    slice_count_ = static_cast<int64_t>(lines * line / element_);
    results_ = lines * line * static_cast<size_t>(size_);
    const int64_t full = slice_count_ * size_;
    chunks_ = static_cast<uint64_t>((call.input.count + full - 1) / full);
    scratch_.sources.resize(static_cast<size_t>(size_));
    scratch_.at.resize(static_cast<size_t>(size_));
}

ChunkedReduction::Range ChunkedReduction::chunk(uint64_t index) const {
    const int64_t begin = static_cast<int64_t>(index) * slice_count_ * size_;
    return {begin, std::min(call_.input.count, begin + slice_count_ * size_)};
}

// Slices in whole lines, as even as that allows.
ChunkedReduction::Range ChunkedReduction::slice(const Range& chunk, int rank) const {
    const auto unit = static_cast<int64_t>(line / element_);
    const int64_t units = (chunk.count() + unit - 1) / unit;
    const int64_t begin = std::min(chunk.count(), units * rank / size_ * unit);
    const int64_t end = std::min(chunk.count(), units * (rank + 1) / size_ * unit);
    return {chunk.begin + begin, chunk.begin + end};
}

bool ChunkedReduction::reached(int peer, Phase phase, uint64_t chunks) const {
    return board_.progress(peer, phase) >= stamp(chunks);
}

bool ChunkedReduction::all_reached(Phase phase, uint64_t chunks) const {
    for (int peer = 0; peer < size_; ++peer) {
        if (peer != rank_ && !reached(peer, phase, chunks)) return false;
    }
    return true;
}

void ChunkedReduction::publish(Phase phase, uint64_t chunks) {
    board_.post_progress(phase, stamp(chunks));
}

bool ChunkedReduction::may_stage() const {
    if (staged_ == chunks_) return false;
    return staged_ < depth || all_reached(Phase::consumed, staged_ - depth + 1);
}

// The oldest chunk first, so that slots come free.
bool ChunkedReduction::progress() {
    bool moved = true;
    if (consumed_ < reduced_ && all_reached(Phase::reduced, consumed_ + 1)) {
        consume_chunk();
    } else if (reduced_ < staged_ && all_reached(Phase::staged, reduced_ + 1)) {
        reduce_chunk();
    } else if (may_stage()) {
        stage_chunk();
    } else {
        moved = false;
    }
    // The next operation stages where it likes.
    if (moved && consumed_ == chunks_ && streams()) stream_fence();
    if (consumed_ == chunks_) done_ = all_reached(Phase::consumed, chunks_);
    return moved || done_;
}

void ChunkedReduction::stage_chunk() {
    const Range all = chunk(staged_);
    const Range own = slice(all, rank_);
    const size_t place = slot(staged_);
    const std::byte* from = call_.input.at(0);
    board_.write(place, from + bytes(all.begin), bytes(own.begin - all.begin));
    board_.write(place + bytes(own.end - all.begin), from + bytes(own.end),
                 bytes(all.end - own.end));
    publish(Phase::staged, ++staged_);
}

void ChunkedReduction::reduce_chunk() {
    const Range all = chunk(reduced_);
    const Range own = slice(all, rank_);
    const size_t place = slot(reduced_) + bytes(own.begin - all.begin);
    auto& sources = scratch_.sources;
    for (int peer = 0; peer < size_; ++peer) {
        sources[static_cast<size_t>(peer)] =
            peer == rank_ ? call_.input.at(own.begin) : board_.staged(peer, place);
    }
    const auto unit = static_cast<int64_t>(block_bytes / element_);
    const int64_t block = streams() ? unit : own.count();
    for (int64_t done = 0; done < own.count(); done += block) {
        reduce_block(own, done, std::min(block, own.count() - done));
    }
    publish(Phase::reduced, ++reduced_);
}

// Elements of the own slice `own`, from its element `first` on; sources are those of the slice.
void ChunkedReduction::reduce_block(const Range& own, int64_t first, int64_t count) {
    alignas(64) std::byte scratch[block_bytes];
    for (int peer = 0; peer < size_; ++peer) {
        const auto index = static_cast<size_t>(peer);
        scratch_.at[index] = static_cast<const std::byte*>(scratch_.sources[index]) + bytes(first);
    }
    std::byte* output = call_.output.at(own.begin + first);
    std::byte* result = streams() ? scratch : output;
    reduce(result, scratch_.at.data(), size_, static_cast<size_t>(count), call_.input.dtype,
           call_.op, size_);
    board_.write(slot(reduced_) + results_ + bytes(first), result, bytes(count));
    if (streams()) stream_part(output, result, bytes(count));
}

void ChunkedReduction::consume_chunk() {
    const Range all = chunk(consumed_);
    for (int step = 1; step < size_; ++step) {
        const int peer = (rank_ + step) % size_;
        const Range part = slice(all, peer);
        const std::byte* from = board_.staged(peer, slot(consumed_) + results_);
        std::byte* to = call_.output.at(part.begin);
        if (streams()) {
            stream_part(to, from, bytes(part.count()));
        } else {
            std::memcpy(to, from, bytes(part.count()));
        }
    }
    publish(Phase::consumed, ++consumed_);
}

std::vector<int> ChunkedReduction::waiting_on() const {
    std::vector<int> peers;
    for (int peer = 0; peer < size_; ++peer) {
        if (peer == rank_) continue;
        const bool holds_up =
            (consumed_ < reduced_ && !reached(peer, Phase::reduced, consumed_ + 1)) ||
            (reduced_ < staged_ && !reached(peer, Phase::staged, reduced_ + 1)) ||
            (consumed_ == chunks_ && !reached(peer, Phase::consumed, chunks_)) ||
            (staged_ >= depth && staged_ < chunks_ &&
             !reached(peer, Phase::consumed, staged_ - depth + 1));
        if (holds_up) peers.push_back(peer);
    }
    return peers;
}

}  // namespace pycomm
