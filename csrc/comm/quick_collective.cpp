// The short way through a collective: post, wait for all, compute.
#include "comm/quick_collective.h"

#include <sched.h>

#include "base/futex.h"

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
    for (int peer = 0; peer < context.transport.size(); ++peer) {
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

}  // namespace

QuickResult run_quick(CollectiveContext& context, const CollectiveRequest& request,
                      Posted& posted) {
    if (!suits(context, request)) return QuickResult::unsuited;
    Transport& transport = context.transport;
    Board& board = *transport.board();
    const uint64_t sequence = context.sequence + 1;
    const DirectCall call = make_direct(request, sequence, transport.rank());
    posted.envelope = make_envelope(request, sequence, Algorithm::direct);
    make_offer(transport, call, posted.envelope, posted.parcel);
    if (posted.envelope.input_at == Where::hidden || posted.envelope.input_at == Where::mapped) {
        return QuickResult::unsuited;
    }
    context.sequence = sequence;
    board.post(posted.envelope, posted.parcel);
    const bool all_here = all_arrive(context, board, sequence);
    board.wake_sleepers();
    if (!all_here) return QuickResult::posted;
    for (int peer = 0; peer < transport.size(); ++peer) {
        const Call& theirs = board.call(peer, sequence);
        if (!same_call(posted.envelope, theirs) || theirs.algorithm != posted.envelope.algorithm) {
            return QuickResult::posted;
        }
    }
    if (choose_route(transport, call) != Route::one_shot) return QuickResult::posted;
    DirectRunner runner(transport, call, Route::one_shot, context.scratch);
    while (!runner.done()) runner.progress();
    return QuickResult::finished;
}

}  // namespace pycomm
