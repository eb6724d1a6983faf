// Proves schedules right without a transport: runs the schedules of all ranks on symbolic values.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/types.h"
#include "schedule/schedule.h"

namespace pycomm {

// What the schedules of all ranks together are to achieve. Buffers and aliasing are those that
// algorithms.h describes for a Problem of the same kind.
struct Collective {
    OpKind kind = OpKind::none;
    int size = 1;
    int root = 0;
    int64_t count = 0;  // all_reduce, broadcast, reduce
    std::vector<int64_t>
        counts;  // reduce_scatter, all_gather, gather, scatter: of each rank's slice
    // all_to_all: send_counts[i][j] elements go from rank i to rank j.
    std::vector<std::vector<int64_t>> send_counts;
    bool in_place = false;
    // Reductions must be computed as the balanced binary tree over ranks, ((0+1)+(2+3))+4.
    bool balanced_order = false;
};

// Returns an empty text when the schedules (one a rank) are right, else the first fault found, with
// rank, lane, round and step. Proved are:
//   - each step is well-formed, within its buffers, and never writes the input;
//   - the sends from each rank to each other match the receives there in order and count;
//   - all rounds complete although a send completes only when its receive takes it (that is, with
//     no buffer in between); the steps of a round progress together, messages between two ranks in
//     order, and a recv_reduce_all takes from all ranks at the same time;
//   - no step of a round touches what another step of it writes (copies, which run first, may);
//     lanes, which run here one after the other, do not depend on each other;
//   - nothing is read that was never written, no input after it was overwritten in place;
//   - every output element holds exactly the wanted contributions, each once; after a barrier
//     every rank has heard, directly or not, from all;
//   - reduces_at_once is the same everywhere and true only when it is so.
// The time depends on the number of steps, not on counts.
std::string simulate(const std::vector<Schedule>& schedules, const Collective& collective);

}  // namespace pycomm
