// Pairwise: every rank deals with every other rank directly.
//
// Idea: the buffer is cut into one slice a rank. For a reduce-scatter each rank sends each slice
// straight to its owner, who combines the parts of all ranks in one pass (recv_reduce_all): each
// element is read once, written once and rounded once. For an all-gather each rank sends its slice
// to all others. For 3 ranks:
//
//      rank 0  [a0 | b0 | c0]    a0+a1+a2 -+->  [A | B | C]
//      rank 1  [a1 | b1 | c1]    b0+b1+b2 -+->  [A | B | C]
//      rank 2  [a2 | b2 | c2]    c0+c1+c2 -+->  [A | B | C]
//
// A reduce gathers the finished slices at the root. Long buffers go in segments, one after the
// other. An all-to-all takes size - 1 rounds; in round i each rank sends to rank + i and receives
// from rank - i, so that no rank is the target of two at once.
//
// Steps: per segment 1 round for reduce-scatter or all-gather, 2 for all-reduce and reduce, each
// with size - 1 messages out and in. Where messages to different ranks are as cheap as to one, this
// has the bytes of the ring, (size - 1) / size of the buffer a phase, with none of its chain of
// waiting. Order of the sum: the balanced tree.
//
// Source: R. Thakur, R. Rabenseifner, W. Gropp, "Optimization of Collective Communication
// Operations in MPICH", 2005 (pairwise exchange).
#include "algorithms/builder.h"
#include "algorithms/families.h"

namespace pycomm {
namespace {

// Sends to rank + 1, rank + 2, ..., so that nobody is everybody's first target.
template <typename BlockOf>
void send_to_all(ScheduleBuilder& builder, const Problem& problem, BlockOf block_of) {
    for (int distance = 1; distance < problem.size; distance++) {
        const int peer = around(problem.rank, distance, problem.size);
        builder.send(peer, block_of(peer));
    }
}

template <typename BlockOf>
void recv_from_all(ScheduleBuilder& builder, const Problem& problem, BlockOf block_of) {
    for (int distance = 1; distance < problem.size; distance++) {
        const int peer = around(problem.rank, -distance, problem.size);
        builder.recv(peer, block_of(peer));
    }
}

// One round: each slice of the input to its owner, the own one combined into `dst`.
template <typename SliceOf>
void reduce_scatter_round(ScheduleBuilder& builder, const Problem& problem, SliceOf slice_of,
                          const Block& dst) {
    const auto input = [&](int rank) { return block(Space::input, slice_of(rank)); };
    builder.next_round();
    if (problem.size == 1) {
        if (!problem.in_place) builder.copy(input(0), dst);
        return;
    }
    builder.recv_reduce_all(input(problem.rank), dst);
    send_to_all(builder, problem, input);
}

}  // namespace

Schedule pairwise_all_reduce(const Problem& problem) {
    const int segments =
        segments_for(slice_count(problem.count, problem.size, 0), problem.element_size);
    ScheduleBuilder builder;
    for (int s = 0; s < segments; s++) {
        const Range segment = slice({0, problem.count}, segments, s);
        const auto slice_of = [&](int rank) { return slice(segment, problem.size, rank); };
        const auto output = [&](int rank) { return block(Space::output, slice_of(rank)); };
        reduce_scatter_round(builder, problem, slice_of, output(problem.rank));
        builder.next_round();
        send_to_all(builder, problem, [&](int) { return output(problem.rank); });
        recv_from_all(builder, problem, output);
    }
    return builder.finish(0, true);
}

Schedule pairwise_reduce_scatter(const Problem& problem) {
    const std::vector<Range> slices = layout(problem.counts);
    const int segments = segments_for(largest(problem.counts), problem.element_size);
    ScheduleBuilder builder;
    for (int s = 0; s < segments; s++) {
        const auto slice_of = [&](int rank) {
            return slice(slices[static_cast<size_t>(rank)], segments, s);
        };
        const Range own = slice_of(problem.rank);
        const int64_t start = slices[static_cast<size_t>(problem.rank)].offset;
        reduce_scatter_round(builder, problem, slice_of,
                             {Space::output, own.offset - start, own.count});
    }
    return builder.finish(0, true);
}

Schedule pairwise_all_gather(const Problem& problem) {
    const std::vector<Range> slices = layout(problem.counts);
    const int segments = segments_for(largest(problem.counts), problem.element_size);
    ScheduleBuilder builder;
    for (int s = 0; s < segments; s++) {
        const auto output = [&](int rank) {
            return block(Space::output, slice(slices[static_cast<size_t>(rank)], segments, s));
        };
        const Block own = output(problem.rank);
        const int64_t start = slices[static_cast<size_t>(problem.rank)].offset;
        const Block input = {Space::input, own.offset - start, own.count};
        builder.next_round();
        if (!problem.in_place) builder.copy(input, own);
        send_to_all(builder, problem, [&](int) { return input; });
        recv_from_all(builder, problem, output);
    }
    return builder.finish();
}

Schedule pairwise_reduce(const Problem& problem) {
    const bool is_root = problem.rank == problem.root;
    const int segments =
        segments_for(slice_count(problem.count, problem.size, 0), problem.element_size);
    int64_t scratch_count = 0;
    ScheduleBuilder builder;
    for (int s = 0; s < segments; s++) {
        const Range segment = slice({0, problem.count}, segments, s);
        const auto slice_of = [&](int rank) { return slice(segment, problem.size, rank); };
        const Range own = slice_of(problem.rank);
        const Block sum = is_root ? block(Space::output, own) : Block{Space::scratch, 0, own.count};
        reduce_scatter_round(builder, problem, slice_of, sum);
        builder.next_round();
        if (is_root) {
            recv_from_all(builder, problem,
                          [&](int rank) { return block(Space::output, slice_of(rank)); });
        } else {
            builder.send(problem.root, sum);
            scratch_count = std::max(scratch_count, own.count);
        }
    }
    return builder.finish(scratch_count, true);
}

Schedule pairwise_all_to_all(const Problem& problem) {
    const int size = problem.size, rank = problem.rank;
    const std::vector<Range> sent = layout(problem.send_counts);
    const std::vector<Range> received = layout(problem.recv_counts);
    const auto input = [&](int peer) {
        return block(Space::input, sent[static_cast<size_t>(peer)]);
    };
    const auto output = [&](int peer) {
        return block(Space::output, received[static_cast<size_t>(peer)]);
    };
    ScheduleBuilder builder;
    builder.copy(input(rank), output(rank));
    for (int distance = 1; distance < size; distance++) {
        if (distance > 1) builder.next_round();
        const int to = around(rank, distance, size), from = around(rank, -distance, size);
        builder.send(to, input(to));
        builder.recv(from, output(from));
    }
    return builder.finish();
}

}  // namespace pycomm
