// Trees: broadcast down a binomial tree, reduce up the balanced binary tree.
//
// Broadcast. Idea: numbered from the root, rank v gets the data from v without its lowest set bit,
// and passes it on to v + 2^k for all 2^k below that bit, the largest first. Long messages go in
// segments: in round j a rank receives segment j and passes on segment j - 1. For 8 ranks:
//
//      0 -> 4, 2, 1     4 -> 6, 5     2 -> 3     6 -> 7
//
// Steps: depth ceil(log2 size), plus one round a segment. Bytes sent per rank: the buffer times its
// children, at most ceil(log2 size); received: the buffer.
//
// Reduce. Idea: the balanced binary tree over the ranks in their order, left part the largest power
// of two. The result of a part is held by the root when the root is in it, else by its first rank;
// one message, from the holder of the one half to that of the other, merges two halves. For 5
// ranks, root 3:
//
//      1 -> 0     2 -> 3     0 -> 3     4 -> 3
//
// Steps: the root receives at most ceil(log2 size) messages a segment, one after the other. Bytes
// sent per rank: the buffer, once. Order of the sum: the balanced tree, whatever the root.
//
// Source: R. Thakur, R. Rabenseifner, W. Gropp, "Optimization of Collective Communication
// Operations in MPICH", 2005 (binomial trees).
#include <bit>

#include "algorithms/builder.h"
#include "algorithms/families.h"

namespace pycomm {
namespace {

// A merge of two halves in which a rank takes part.
struct Merge {
    int peer = -1;
    bool holds = false;  // this rank receives and keeps the result
    bool peer_is_left = false;
};

// Appends the merges of `rank` among ranks first .. first + count - 1, lowest level first. Returns
// the rank that holds the result.
int add_merges(int first, int count, const Problem& problem, std::vector<Merge>* merges) {
    if (count == 1) return first;
    const int left = static_cast<int>(std::bit_floor(static_cast<unsigned>(count - 1)));
    const int left_holder = add_merges(first, left, problem, merges);
    const int right_holder = add_merges(first + left, count - left, problem, merges);
    const int holder = right_holder == problem.root ? right_holder : left_holder;
    const int sender = holder == left_holder ? right_holder : left_holder;
    if (problem.rank == holder) merges->push_back({sender, true, sender == left_holder});
    if (problem.rank == sender) merges->push_back({holder, false, false});
    return holder;
}

}  // namespace

Schedule tree_broadcast(const Problem& problem) {
    const int size = problem.size;
    const unsigned relative = static_cast<unsigned>(around(problem.rank, -problem.root, size));
    const auto rank_of = [&](unsigned relative_rank) {
        return around(problem.root, static_cast<int>(relative_rank), size);
    };
    const unsigned below =
        relative == 0 ? std::bit_ceil(static_cast<unsigned>(size)) : relative & (~relative + 1);
    std::vector<int> children;
    for (unsigned bit = below / 2; bit > 0; bit /= 2) {
        if (relative + bit < static_cast<unsigned>(size))
            children.push_back(rank_of(relative + bit));
    }
    const int parent = rank_of(relative & (relative - 1));
    const int segments = segments_for(problem.count, problem.element_size);
    const auto segment = [&](int index) {
        return block(Space::output, slice({0, problem.count}, segments, index));
    };
    // The root already has what the others receive in the same round.
    const int delay = relative == 0 ? 0 : 1;
    ScheduleBuilder builder;
    for (int round = 0; round < segments + delay; round++) {
        builder.next_round();
        if (relative != 0 && round < segments) builder.recv(parent, segment(round));
        if (round < delay) continue;
        for (const int child : children) builder.send(child, segment(round - delay));
    }
    return builder.finish();
}

Schedule tree_reduce(const Problem& problem) {
    const bool is_root = problem.rank == problem.root;
    std::vector<Merge> merges;
    add_merges(0, problem.size, problem, &merges);
    const int segments = segments_for(problem.count, problem.element_size);
    int64_t scratch_count = 0;
    ScheduleBuilder builder;
    for (int s = 0; s < segments; s++) {
        const Range segment = slice({0, problem.count}, segments, s);
        const Block input = block(Space::input, segment);
        const Block sum =
            is_root ? block(Space::output, segment) : Block{Space::scratch, 0, segment.count};
        Block partial = input;
        if (problem.size == 1 && !problem.in_place) builder.copy(input, sum);
        for (const Merge& merge : merges) {
            builder.next_round();
            if (merge.holds) {
                builder.recv_reduce(merge.peer, partial, sum, merge.peer_is_left);
                partial = sum;
            } else {
                builder.send(merge.peer, partial);
            }
        }
        if (partial.space == Space::scratch) scratch_count = std::max(scratch_count, segment.count);
    }
    return builder.finish(scratch_count);
}

}  // namespace pycomm
