// Where inputs and outputs are, and the way that follows from it.
#include <algorithm>
#include <cstring>
#include <numeric>

#include "base/error.h"
#include "direct/chunked_reduction.h"
#include "direct/direct.h"

namespace pycomm {
namespace {

constexpr size_t longest_one_way = 64 << 10;

bool reduces_for_all(OpKind kind) {
    return kind == OpKind::all_reduce || kind == OpKind::reduce;
}

// Whether each rank moves data to and from every other.
bool exchanges(OpKind kind) {
    return kind == OpKind::all_gather || kind == OpKind::all_to_all ||
           kind == OpKind::reduce_scatter;
}

// Whether other ranks need the input of `rank`.
bool gives(const DirectCall& call, int rank) {
    switch (call.kind) {
        case OpKind::broadcast:
        case OpKind::scatter:
            return rank == call.root;
        case OpKind::gather:
            return rank != call.root;
        default:
            return call.kind != OpKind::barrier;
    }
}

// Whether other ranks may compute results for `rank`.
bool takes(const DirectCall& call, int rank) {
    return call.kind == OpKind::all_reduce || (call.kind == OpKind::reduce && rank == call.root);
}

// Every rank reads all staged inputs of a reduction; with more than two ranks the ways in which
// each element is read by one rank only pay early. And where data goes from one rank to one other,
// staging it is copying it twice in a row, while through a ring both work at once.
size_t stage_limit(const DirectCall& call, const Board& board, int size) {
    const size_t all = board.largest_staged();
    const bool one_way = !reduces_for_all(call.kind) && !exchanges(call.kind);
    if (one_way && size == 2) return std::min(all, longest_one_way);
    if (!reduces_for_all(call.kind)) return all;
    if (call.limits.staged != SizeLimits::automatic) {
        return std::min(all, static_cast<size_t>(call.limits.staged));
    }
    if (size <= 2) return all;
    return std::max<size_t>(all / (2 * static_cast<size_t>(size)), 256);
}

// What of the input only this rank itself needs.
Board::Hole own_part(const DirectCall& call, int rank) {
    const bool splits = call.kind == OpKind::reduce_scatter || call.kind == OpKind::scatter ||
                        call.kind == OpKind::all_to_all;
    if (!splits || call.counts.empty()) return {};
    const size_t element = dtype_size(call.input.dtype);
    const auto own = call.counts.begin() + rank;
    const auto before =
        static_cast<size_t>(std::accumulate(call.counts.begin(), own, int64_t{0})) * element;
    return {before, before + static_cast<size_t>(*own) * element};
}

int64_t told(Transport& transport, const DirectCall& call, int teller, int index) {
    int64_t count = 0;
    const Board& board = *transport.board();
    const uint64_t offset = board.parcel(teller, call.sequence).places.output.offset;
    const std::byte* told = board.staged(teller, offset);
    std::memcpy(&count, told + static_cast<size_t>(index) * sizeof(count), sizeof(count));
    return count;
}

}  // namespace

void make_offer(Transport& transport, const DirectCall& call, Envelope& envelope, Parcel& parcel) {
    Board& board = *transport.board();
    const int rank = transport.rank();
    const int size = transport.size();
    envelope.in_place = call.in_place;
    if (call.tells_counts) {
        std::vector<int64_t> told(call.counts.begin(), call.counts.end());
        told.insert(told.end(), call.recv_counts.begin(), call.recv_counts.end());
        parcel.places.output.offset = board.stage(told.data(), told.size() * sizeof(int64_t));
    }
    if (size == 1) return;
    if (takes(call, rank) && call.output.count > 0) {
        const auto place = transport.locate(call.output.data, call.output.bytes());
        envelope.output_at = place ? Where::mapped : Where::hidden;
        if (place) parcel.places.output = *place;
    }
    const size_t bytes = call.input.bytes();
    if (!gives(call, rank) || bytes == 0) return;
    if (bytes <= sizeof(parcel.bytes) && !call.tells_counts) {
        envelope.input_at = Where::line;
        envelope.output_at = Where::nowhere;  // the line has no room to say it
        std::memcpy(parcel.bytes, call.input.data, bytes);
        return;
    }
    // The system copies where each rank has to copy anyway. Where one gives or takes all, its own
    // core helps by a schedule over the rings.
    const bool copied_by_system = call.stages && exchanges(call.kind) &&
                                  call.op == ReduceOp::none &&
                                  bytes > static_cast<size_t>(call.limits.piped);
    const bool fits = call.stages && bytes <= stage_limit(call, board, size);
    std::optional<MappedPlace> place;
    if (!fits || bytes > static_cast<size_t>(call.limits.copied)) {
        place = transport.locate(call.input.data, bytes);
    }
    if (place) {
        envelope.input_at = Where::mapped;
        parcel.places.input = *place;
    } else if (fits && bytes <= sizeof(BoardSlot::beside)) {
        envelope.input_at = Where::beside;
        std::memcpy(board.beside(rank, call.sequence), call.input.data, bytes);
    } else if (fits) {
        envelope.input_at = Where::staged;
        parcel.places.input.offset = board.stage(call.input.data, bytes, own_part(call, rank));
    } else if (copied_by_system &&
               transport.place_of(call.input.data, bytes).kind == ArrayPlace::Kind::address) {
        envelope.input_at = Where::address;
        parcel.places.input.offset = reinterpret_cast<uintptr_t>(call.input.data);
    } else {
        envelope.input_at = Where::hidden;
    }
}

int64_t told_send(Transport& transport, const DirectCall& call, int from, int to) {
    return told(transport, call, from, to);
}

int64_t told_recv(Transport& transport, const DirectCall& call, int from, int to) {
    return told(transport, call, to, transport.size() + from);
}

Route choose_route(Transport& transport, const DirectCall& call) {
    const Board& board = *transport.board();
    bool hidden = false;
    bool mapped = false;
    bool overwrites = false;  // some mapped input is an output, too
    bool outputs_mapped = true;
    for (int rank = 0; rank < transport.size(); ++rank) {
        const Call& theirs = board.call(rank, call.sequence);
        hidden = hidden || theirs.input_at == Where::hidden;
        const bool lies_mapped =
            theirs.input_at == Where::mapped || theirs.input_at == Where::address;
        mapped = mapped || lies_mapped;
        overwrites = overwrites || (lies_mapped && theirs.in_place != 0);
        if (takes(call, rank)) outputs_mapped &= theirs.output_at == Where::mapped;
    }
    // Ranks that compute all of it for themselves alone must not write what others still read.
    hidden = hidden || (call.kind == OpKind::all_reduce && !outputs_mapped && overwrites);
    if (hidden) {
        return ChunkedReduction::suits(transport, call) ? Route::chunked : Route::none;
    }
    return mapped ? Route::shared : Route::one_shot;
}

}  // namespace pycomm
