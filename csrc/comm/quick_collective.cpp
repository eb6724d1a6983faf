// The short way through a collective: post, wait for all, compute.
#include "comm/quick_collective.h"

#include <sched.h>

#include "base/futex.h"
#include "reduce/reduce.h"

namespace pycomm {
namespace {

// Looking again costs less than a pause as long as the peers are about to arrive.
constexpr int eager_looks = 64;

bool suits(const CollectiveContext& context, const CollectiveRequest& request) {
    const bool compares_more = request.kind == OpKind::scatter ||
                               (request.kind == OpKind::all_to_all && request.explicit_counts);
    return !compares_more && goes_direct(context, request.kind) &&
           !overlaps(request, context.transport.rank());
}

// Whether all ranks have arrived before this one has looked often enough.
bool all_arrive(const CollectiveContext& context, Board& board, uint64_t sequence) {
    int looks = 0;
    const int size = context.transport.size();
    for (int peer = 0; peer < size; ++peer) {
        while (!board.arrived(peer, sequence)) {
            if (++looks <= eager_looks) continue;
            // A sleeping peer does not come by itself.
            if (looks == eager_looks + 1) board.wake_sleepers();
            if (looks > eager_looks + context.spins) return false;
            context.yields ? static_cast<void>(sched_yield()) : cpu_relax();
        }
    }
    return true;
}

// An all_reduce of so little that all inputs are in or beside the lines needs no preparation.
bool reduce_lines(const DirectCall& call, const Board& board, int size, const Posted& posted) {
    constexpr int most_ranks = 16;
    const Where where = posted.envelope.input_at;
    if (call.kind != OpKind::all_reduce || (where != Where::line && where != Where::beside) ||
        size > most_ranks) {
        return false;
    }
    const void* sources[most_ranks];
    for (int rank = 0; rank < size; ++rank) {
        if (board.call(rank, call.sequence).input_at != where) return false;
        sources[rank] = where == Where::line ? board.parcel(rank, call.sequence).bytes
                                             : board.beside(rank, call.sequence);
    }
    reduce(call.output.data, sources, size, static_cast<size_t>(call.input.count), call.input.dtype,
           call.op, size);
    return true;
}

}  // namespace

QuickResult run_quick(CollectiveContext& context, const CollectiveRequest& request,
                      Posted& posted) {
    if (!suits(context, request)) return QuickResult::unsuited;
    Transport& transport = context.transport;
    Board& board = *transport.board();
    const int size = transport.size();
    const uint64_t sequence = context.sequence + 1;
    const DirectCall call = direct_call(context, request, sequence);
    posted.envelope = make_envelope(request, sequence, Algorithm::direct);
    make_offer(transport, call, posted.envelope, posted.parcel);
    if (posted.envelope.input_at >= Where::mapped) {  // large
        return QuickResult::unsuited;
    }
    context.sequence = sequence;
    board.post(posted.envelope, posted.parcel);
    const bool all_here = all_arrive(context, board, sequence);
    board.wake_sleepers();
    if (!all_here) return QuickResult::posted;
    for (int peer = 0; peer < size; ++peer) {
        if (!same_call(posted.envelope, board.call(peer, sequence))) return QuickResult::posted;
    }
    if (reduce_lines(call, board, size, posted)) return QuickResult::finished;
    if (choose_route(transport, call) != Route::one_shot) return QuickResult::posted;
    DirectRunner runner(transport, call, Route::one_shot, context.scratch);
    while (!runner.done()) runner.progress();
    return QuickResult::finished;
}

}  // namespace pycomm
