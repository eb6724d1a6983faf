// Linear: the root deals with every other rank directly, in one round.
//
//      root --> rank + 1, rank + 2, ...      or      root <-- rank + 1, rank + 2, ...
//
// Idea: one message between the root and each other rank. Gather and scatter cannot move fewer
// bytes at the root, and nothing is copied on the way. Broadcast and reduce load the root with size
// - 1 times the buffer, which is only good for few ranks; the reduce combines all parts in one pass
// (recv_reduce_all).
//
// Steps: 1 round; the root sends or receives size - 1 messages, the others one. Bytes at the root:
// all slices but its own (gather, scatter), the buffer size - 1 times (broadcast, reduce). Order of
// the sum: the balanced tree.
//
// Source: the definition of these operations; compared with trees in R. Thakur, R. Rabenseifner,
// W. Gropp, "Optimization of Collective Communication Operations in MPICH", 2005.
#include "algorithms/builder.h"
#include "algorithms/families.h"

namespace pycomm {

Schedule linear_broadcast(const Problem& problem) {
    const Block all = {Space::output, 0, problem.count};
    ScheduleBuilder builder;
    if (problem.rank != problem.root) {
        builder.recv(problem.root, all);
        return builder.finish();
    }
    for (int distance = 1; distance < problem.size; distance++) {
        builder.send(around(problem.rank, distance, problem.size), all);
    }
    return builder.finish();
}

Schedule linear_reduce(const Problem& problem) {
    const Block input = {Space::input, 0, problem.count};
    const Block output = {Space::output, 0, problem.count};
    ScheduleBuilder builder;
    if (problem.rank != problem.root) {
        builder.send(problem.root, input);
    } else if (problem.size > 1) {
        builder.recv_reduce_all(input, output);
    } else if (!problem.in_place) {
        builder.copy(input, output);
    }
    return builder.finish(0, true);
}

Schedule linear_gather(const Problem& problem) {
    const std::vector<Range> slices = layout(problem.counts);
    const Range& own = slices[static_cast<size_t>(problem.rank)];
    const Block input = {Space::input, 0, own.count};
    ScheduleBuilder builder;
    if (problem.rank != problem.root) {
        builder.send(problem.root, input);
        return builder.finish();
    }
    if (!problem.in_place) builder.copy(input, block(Space::output, own));
    for (int distance = 1; distance < problem.size; distance++) {
        const int peer = around(problem.rank, distance, problem.size);
        builder.recv(peer, block(Space::output, slices[static_cast<size_t>(peer)]));
    }
    return builder.finish();
}

Schedule linear_scatter(const Problem& problem) {
    const std::vector<Range> slices = layout(problem.counts);
    const Range& own = slices[static_cast<size_t>(problem.rank)];
    const Block output = {Space::output, 0, own.count};
    ScheduleBuilder builder;
    if (problem.rank != problem.root) {
        builder.recv(problem.root, output);
        return builder.finish();
    }
    if (!problem.in_place) builder.copy(block(Space::input, own), output);
    for (int distance = 1; distance < problem.size; distance++) {
        const int peer = around(problem.rank, distance, problem.size);
        builder.send(peer, block(Space::input, slices[static_cast<size_t>(peer)]));
    }
    return builder.finish();
}

}  // namespace pycomm
