// Dissemination barrier: after round k every rank has heard from the 2^(k+1) - 1 ranks before it.
//
// Idea: in round k each rank tells the rank 2^k after it that it, and all those it has heard of,
// have arrived, and hears the same from the rank 2^k before it. For 5 ranks, whom rank 0 has heard
// of:
//
//      round 0:  4      round 1:  3 (and with it 2)      round 2:  1
//
// Steps: ceil(log2 size) rounds, for any size. Bytes sent per rank: one element a round, of any
// value.
//
// Source: D. Hensgen, R. Finkel, U. Manber, "Two Algorithms for Barrier Synchronization", 1988.
#include "algorithms/builder.h"
#include "algorithms/families.h"

namespace pycomm {

Schedule dissemination_barrier(const Problem& problem) {
    ScheduleBuilder builder;
    for (int distance = 1; distance < problem.size; distance *= 2) {
        builder.next_round();
        builder.send(around(problem.rank, distance, problem.size), {Space::scratch, 0, 1});
        builder.recv(around(problem.rank, -distance, problem.size), {Space::scratch, 1, 1});
    }
    return builder.finish(problem.size > 1 ? 2 : 0);
}

}  // namespace pycomm
