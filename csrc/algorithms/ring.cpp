// Ring: each rank sends only to the next rank and receives only from the previous one.
//
// Idea: the buffer is cut into one slice a rank. In the reduce-scatter, slice q starts at rank q +
// 1 and travels once around; each rank adds its own part in passing, and rank q, where it ends, has
// the sum. In the all-gather, each finished slice travels around once more, unchanged. An
// all-reduce is the one, then the other, segment by segment. For 4 ranks:
//
//      slice 0:  1 -> 2 -> 3 -> 0   (sum complete)   0 -> 1 -> 2 -> 3   (everywhere)
//      slice 1:  2 -> 3 -> 0 -> 1                    1 -> 2 -> 3 -> 0
//
// Steps: size - 1 rounds for reduce-scatter or all-gather, 2 (size - 1) for all-reduce, a segment.
// Bytes sent per rank: (size - 1) / size of the buffer, twice that for all-reduce: the least
// possible. Order of the sum: along the ring, another rotation for each slice; not the balanced
// tree.
//
// Source: R. Thakur, R. Rabenseifner, W. Gropp, "Optimization of Collective Communication
// Operations in MPICH", 2005; P. Patarasuk, X. Yuan, "Bandwidth Optimal All-reduce Algorithms for
// Clusters of Workstations", 2009.
#include "algorithms/builder.h"
#include "algorithms/families.h"

namespace pycomm {

Schedule ring_all_reduce(const Problem& problem) {
    const int size = problem.size, rank = problem.rank;
    ScheduleBuilder builder;
    if (size == 1) {
        if (!problem.in_place) {
            builder.copy({Space::input, 0, problem.count}, {Space::output, 0, problem.count});
        }
        return builder.finish();
    }
    const int next = around(rank, 1, size), previous = around(rank, -1, size);
    const int segments = segments_for(slice_count(problem.count, size, 0), problem.element_size);
    for (int s = 0; s < segments; s++) {
        const Range segment = slice({0, problem.count}, segments, s);
        const auto part = [&](Space space, int distance) {
            return block(space, slice(segment, size, around(rank, distance, size)));
        };
        for (int round = 0; round < size - 1; round++) {
            builder.next_round();
            builder.send(next, part(round == 0 ? Space::input : Space::output, -1 - round));
            builder.recv_reduce(previous, part(Space::input, -2 - round),
                                part(Space::output, -2 - round));
        }
        for (int round = 0; round < size - 1; round++) {
            builder.next_round();
            builder.send(next, part(Space::output, -round));
            builder.recv(previous, part(Space::output, -1 - round));
        }
    }
    return builder.finish();
}

// The partial sums that pass by lie in scratch, in one half what is being sent, in the other what
// is being received.
Schedule ring_reduce_scatter(const Problem& problem) {
    const int size = problem.size, rank = problem.rank;
    const std::vector<Range> slices = layout(problem.counts);
    ScheduleBuilder builder;
    if (size == 1) {
        if (!problem.in_place) {
            builder.copy(block(Space::input, slices[0]), block(Space::output, slices[0]));
        }
        return builder.finish();
    }
    const int next = around(rank, 1, size), previous = around(rank, -1, size);
    const int64_t longest = largest(problem.counts);
    const int segments = segments_for(longest, problem.element_size);
    const int64_t half = slice_count(longest, segments, 0);
    for (int s = 0; s < segments; s++) {
        const auto part = [&](int distance) {
            return slice(slices[static_cast<size_t>(around(rank, distance, size))], segments, s);
        };
        const auto partial = [&](int round, int64_t count) {
            return Block{Space::scratch, round % 2 * half, count};
        };
        for (int round = 0; round < size - 1; round++) {
            const Range sent = part(-1 - round), received = part(-2 - round);
            builder.next_round();
            builder.send(next,
                         round == 0 ? block(Space::input, sent) : partial(round - 1, sent.count));
            const Block own = {Space::output,
                               received.offset - slices[static_cast<size_t>(rank)].offset,
                               received.count};
            builder.recv_reduce(previous, block(Space::input, received),
                                round == size - 2 ? own : partial(round, received.count));
        }
    }
    return builder.finish(half * std::min(size - 2, 2));
}

Schedule ring_all_gather(const Problem& problem) {
    const int size = problem.size, rank = problem.rank;
    const std::vector<Range> slices = layout(problem.counts);
    const int next = around(rank, 1, size), previous = around(rank, -1, size);
    const int segments = segments_for(largest(problem.counts), problem.element_size);
    ScheduleBuilder builder;
    for (int s = 0; s < segments; s++) {
        const auto part = [&](int distance) {
            return block(
                Space::output,
                slice(slices[static_cast<size_t>(around(rank, distance, size))], segments, s));
        };
        builder.next_round();
        if (!problem.in_place) {
            const Block own = part(0);
            builder.copy(
                {Space::input, own.offset - slices[static_cast<size_t>(rank)].offset, own.count},
                own);
        }
        for (int round = 0; round < size - 1; round++) {
            if (round > 0) builder.next_round();
            builder.send(next, part(-round));
            builder.recv(previous, part(-1 - round));
        }
    }
    return builder.finish();
}

}  // namespace pycomm
