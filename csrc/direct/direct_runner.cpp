// The work of one rank in a collective on mapped memory.
#include <algorithm>
#include <cstring>
#include <numeric>

#include "base/error.h"
#include "direct/chunked_reduction.h"
#include "direct/direct.h"
#include "reduce/reduce.h"
#include "transport/mapped/stream_copy.h"

namespace pycomm {
namespace {

// Bytes of a result that a rank computes before it looks at anything else.
constexpr size_t piece_bytes = 128 << 10;
// The same of what the operating system copies: each call costs something.
constexpr size_t called_bytes = 512 << 10;
// Small, so that reading and writing alternate as finely as in a loop that does both.
constexpr size_t scratch_bytes = 1 << 10;

// How long an input may be unreadable while its rank seems to be there.
constexpr double ending_seconds = 1;

size_t offset_of(std::span<const int64_t> counts, int rank) {
    return static_cast<size_t>(std::accumulate(counts.begin(), counts.begin() + rank, int64_t{0}));
}

}  // namespace

std::unique_ptr<DirectWork> make_work(Transport& transport, const DirectCall& call, Route route,
                                      DirectScratch& scratch) {
    if (route == Route::chunked) {
        return std::make_unique<ChunkedReduction>(transport, call, scratch);
    }
    return std::make_unique<DirectRunner>(transport, call, route, scratch);
}

DirectRunner::DirectRunner(Transport& transport, const DirectCall& call, Route route,
                           DirectScratch& scratch)
    : transport_(transport),
      board_(*transport.board()),
      call_(call),
      shared_(route == Route::shared),
      rank_(transport.rank()),
      size_(transport.size()),
      element_(dtype_size(call.input.dtype)),
      sources_(scratch.sources),
      at_(scratch.at),
      targets_(scratch.targets),
      copies_(scratch.copies) {
    sources_.clear();
    targets_.clear();
    copies_.clear();
    streams_ = call.output.bytes() >= smallest_streamed;
    switch (call.kind) {
        case OpKind::all_reduce:
        case OpKind::reduce:
        case OpKind::reduce_scatter:
            plan_reduction();
            break;
        default:
            plan_copies();
            break;
    }
    if (!claims_ && begin_ == end_ && copies_.empty()) enter_closing();
}

// Where this rank finds the input of `peer`.
const std::byte* DirectRunner::source(int peer) {
    if (peer == rank_) return static_cast<const std::byte*>(call_.input.data);
    const Parcel& parcel = board_.parcel(peer, call_.sequence);
    switch (board_.call(peer, call_.sequence).input_at) {
        case Where::line:
            return parcel.bytes;
        case Where::beside:
            return board_.beside(peer, call_.sequence);
        case Where::staged:
            return board_.staged(peer, parcel.places.input.offset);
        case Where::mapped:
            return transport_.peer_memory(peer, parcel.places.input);
        case Where::address:
            return reinterpret_cast<const std::byte*>(
                static_cast<uintptr_t>(parcel.places.input.offset));
        default:
            return nullptr;
    }
}

bool DirectRunner::writable(int peer) {
    return board_.call(peer, call_.sequence).output_at == Where::mapped;
}

std::byte* DirectRunner::target(int peer) {
    if (peer == rank_) return static_cast<std::byte*>(call_.output.data);
    return transport_.peer_memory(peer, board_.parcel(peer, call_.sequence).places.output);
}

void DirectRunner::plan_reduction() {
    reduces_ = true;
    const bool scatters = call_.kind == OpKind::reduce_scatter;
    const size_t first = scatters ? offset_of(call_.counts, rank_) * element_ : 0;
    for (int rank = 0; rank < size_; ++rank) sources_.push_back(source(rank) + first);
    at_.resize(sources_.size());
    end_ = scatters ? call_.output.count : call_.input.count;
    piece_ = std::max<int64_t>(1, static_cast<int64_t>(piece_bytes / element_));

    bool split = shared_ && end_ > 0 && !scatters;
    if (call_.kind == OpKind::reduce) {
        split = split && writable(call_.root);
        if (!split && rank_ != call_.root) end_ = 0;
        targets_.push_back(split ? target(call_.root) : static_cast<std::byte*>(call_.output.data));
    } else {
        for (int rank = 0; split && rank < size_; ++rank) split = writable(rank);
        targets_.push_back(static_cast<std::byte*>(call_.output.data));
        for (int rank = 0; split && rank < size_; ++rank) {
            if (rank != rank_) targets_.push_back(target(rank));
        }
    }
    if (split) split_reduction();
}

// Each element is computed by one rank.
void DirectRunner::split_reduction() {
    const int64_t count = call_.input.count;
    const size_t bytes = call_.input.bytes();
    streams_ = bytes >= smallest_streamed;
    claims_ = call_.shares_cores && bytes > static_cast<size_t>(call_.limits.claimed);
    if (claims_) return;
    // Slices in whole cache lines.
    const int64_t unit = std::max<int64_t>(1, static_cast<int64_t>(64 / element_));
    const int64_t units = (count + unit - 1) / unit;
    begin_ = std::min(count, units * rank_ / size_ * unit);
    end_ = std::min(count, units * (rank_ + 1) / size_ * unit);
}

void DirectRunner::copy_from(int peer, size_t from_element, size_t to_element, int64_t count) {
    const std::byte* from = source(peer) + from_element * element_;
    std::byte* to = static_cast<std::byte*>(call_.output.data) + to_element * element_;
    const bool foreign =
        peer != rank_ && board_.call(peer, call_.sequence).input_at == Where::address;
    if (count > 0 && (foreign || from != to)) {
        copies_.push_back({to, from, static_cast<size_t>(count) * element_, foreign ? peer : -1});
    }
}

void DirectRunner::plan_copies() {
    switch (call_.kind) {
        case OpKind::broadcast:
            if (rank_ != call_.root) copy_from(call_.root, 0, 0, call_.output.count);
            break;
        case OpKind::scatter:
            copy_from(call_.root, static_cast<size_t>(call_.first), 0, call_.output.count);
            break;
        case OpKind::gather:
        case OpKind::all_gather:
            if (call_.kind == OpKind::gather && rank_ != call_.root) break;
            // Beginning with the next rank, so that not all read from the same one at once.
            for (int step = 0; step < size_; ++step) {
                const int peer = (rank_ + step) % size_;
                copy_from(peer, 0, offset_of(call_.counts, peer),
                          call_.counts[static_cast<size_t>(peer)]);
            }
            break;
        case OpKind::all_to_all:
            for (int step = 0; step < size_; ++step) {
                const int peer = (rank_ + step) % size_;
                size_t from = offset_of(call_.counts, rank_);
                if (call_.tells_counts && peer != rank_) {
                    from = 0;
                    for (int rank = 0; rank < rank_; ++rank) {
                        from += static_cast<size_t>(told_send(transport_, call_, peer, rank));
                    }
                }
                copy_from(peer, from, offset_of(call_.recv_counts, peer),
                          call_.recv_counts[static_cast<size_t>(peer)]);
            }
            break;
        default:
            break;
    }
}

bool DirectRunner::progress() {
    bool moved = false;
    if (stage_ == Stage::working) {
        if (shared_ && !board_.enter()) return false;
        moved = reduces_ ? work_reduction() : work_copies();
        if (shared_) board_.leave();
    }
    if (stage_ == Stage::closing) moved |= close();
    return moved;
}

// Returns whether it could.
bool DirectRunner::copy(const DirectCopy& copy, size_t bytes) {
    if (copy.process != -1) {
        const ArrayPlace place{reinterpret_cast<uintptr_t>(copy.from), 0,
                               ArrayPlace::Kind::address};
        return transport_.read_array(copy.process, place, 0, copy.to, bytes, streams_);
    }
    if (streams_) {
        stream_part(copy.to, copy.from, bytes);
    } else {
        std::memcpy(copy.to, copy.from, bytes);
    }
    return true;
}

bool DirectRunner::work_copies() {
    size_t left = piece_bytes;
    while (next_copy_ < copies_.size() && left > 0) {
        DirectCopy& next = copies_[next_copy_];
        const size_t bytes = std::min(next.bytes, next.process != -1 ? called_bytes : left);
        if (!copy(next, bytes)) {
            // Memory of a process that ends is gone a little before the process is; of that the
            // engine hears by itself.
            if (!refused_) refused_ = Deadline::after(ending_seconds);
            PYCOMM_CHECK(!refused_->expired() || !transport_.alive(next.process), transport,
                         "the operating system does not let this rank read the input of rank ",
                         next.process, "; PYCOMM_CMA=off sends it through shared memory");
            return false;
        }
        next.to += bytes;
        next.from += bytes;
        next.bytes -= bytes;
        left -= std::min(left, bytes);
        if (next.bytes == 0) ++next_copy_;
    }
    if (next_copy_ == copies_.size()) enter_closing();
    return true;
}

bool DirectRunner::work_reduction() {
    if (claims_) {
        const auto number = static_cast<int64_t>(
            board_.claims(call_.sequence).fetch_add(1, std::memory_order_relaxed));
        if (number >= (call_.input.count + piece_ - 1) / piece_) {
            enter_closing();
        } else {
            reduce_piece(number * piece_, std::min(call_.input.count, (number + 1) * piece_));
        }
        return true;
    }
    const int64_t end = std::min(end_, begin_ + piece_);
    reduce_piece(begin_, end);
    begin_ = end;
    if (begin_ == end_) enter_closing();
    return true;
}

void DirectRunner::reduce_piece(int64_t begin, int64_t end) {
    alignas(64) std::byte scratch[scratch_bytes];
    const auto block = static_cast<int64_t>(streams_ ? scratch_bytes / element_ : piece_);
    for (int64_t first = begin; first < end; first += block) {
        const auto count = static_cast<size_t>(std::min(block, end - first));
        const size_t offset = static_cast<size_t>(first) * element_;
        for (size_t rank = 0; rank < sources_.size(); ++rank) {
            at_[rank] = static_cast<const std::byte*>(sources_[rank]) + offset;
        }
        std::byte* result = streams_ ? scratch : targets_[0] + offset;
        reduce(result, at_.data(), size_, count, call_.input.dtype, call_.op, size_);
        for (size_t i = streams_ ? 0 : 1; i < targets_.size(); ++i) {
            if (streams_) {
                stream_part(targets_[i] + offset, scratch, count * element_);
            } else {
                std::memcpy(targets_[i] + offset, result, count * element_);
            }
        }
    }
}

void DirectRunner::enter_closing() {
    if (streams_) stream_fence();
    if (!shared_) {
        stage_ = Stage::done;
        return;
    }
    board_.post_finished(call_.sequence);
    stage_ = Stage::closing;
}

// Waits until nobody touches this rank's arrays any more.
bool DirectRunner::close() {
    const int before = closing_peer_;
    while (closing_peer_ < size_ && board_.finished(closing_peer_, call_.sequence)) ++closing_peer_;
    if (closing_peer_ == size_) {
        if (claims_ && rank_ == 0)
            board_.claims(call_.sequence).store(0, std::memory_order_relaxed);
        stage_ = Stage::done;
    }
    return closing_peer_ > before;
}

std::vector<int> DirectRunner::waiting_on() const {
    std::vector<int> peers;
    for (int peer = 0; peer < size_; ++peer) {
        const bool needed = next_copy_ < copies_.size() && copies_[next_copy_].process == peer;
        if (peer == rank_) continue;
        if (needed || !board_.finished(peer, call_.sequence)) peers.push_back(peer);
    }
    return peers;
}

}  // namespace pycomm
