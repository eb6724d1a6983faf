// Recursive halving: an all-reduce that halves what a rank is responsible for in every round.
//
// Idea: the ranks form the balanced binary tree, whose left part is the largest power of two below
// the size. First a reduce-scatter, from the leaves up: within each part every rank owns a range of
// the buffer, summed over that part. Where two parts of equal size meet, ranks that own the same
// range give each other one half of it and keep the sum of the other. Where the right part is
// smaller, it hands what its ranks own to the owners in the left part and waits. Then an
// all-gather, the same messages backwards with results. For 4 ranks and the buffer [abcd]:
//
//              rank 0    rank 1    rank 2    rank 3
//   round 0    ab 0+1    cd 0+1    ab 2+3    cd 2+3      with the neighbour, half the buffer
//   round 1    a 0..3    c 0..3    b 0..3    d 0..3      with the rank 2 away, a quarter
//   round 2    ab        cd        ab        cd
//   round 3    abcd      abcd      abcd      abcd
//
// Steps: at most 2 ceil(log2 size) rounds. Bytes sent per rank: 2 (size - 1) / size of the buffer
// for powers of two, at most twice the buffer for other sizes. For large messages over links where
// rounds cost little. Order of the sum: the balanced tree.
//
// There is no reduce-scatter of this kind: with neighbours first, the range that a rank owns is not
// its slice in rank order.
//
// Source: R. Rabenseifner, "Optimization of Collective Reduction Operations", 2004; neighbours come
// first here, which keeps the order of the tree.
#include <bit>

#include "algorithms/builder.h"
#include "algorithms/families.h"

namespace pycomm {
namespace {

int left_part(int count) {
    return static_cast<int>(std::bit_floor(static_cast<unsigned>(count - 1)));
}

// What rank `index` of a part of `count` ranks owns once the part has summed `whole`.
Range owned(Range whole, int count, int index) {
    if (count == 1) return whole;
    const int left = left_part(count);
    if (2 * left == count) return slice(owned(whole, left, index % left), 2, index / left);
    return index < left ? owned(whole, left, index) : Range{whole.offset, 0};
}

Range common(Range a, Range b) {
    const int64_t begin = std::max(a.offset, b.offset);
    const int64_t end = std::min(a.offset + a.count, b.offset + b.count);
    return {begin, std::max<int64_t>(0, end - begin)};
}

// One level of the tree as one rank sees it: sums it gives away and gets, on the way up.
struct Transfer {
    int peer;
    Range range;
};
struct Level {
    std::vector<Transfer> given;
    std::vector<Transfer> taken;
    bool from_left = false;
};

// Appends the levels of `rank` among ranks first .. first + count - 1, lowest first.
void add_levels(Range whole, int first, int count, int rank, std::vector<Level>* levels) {
    if (count == 1) return;
    const int left = left_part(count), right = count - left, middle = first + left;
    const bool is_left = rank < middle;
    if (is_left) {
        add_levels(whole, first, left, rank, levels);
    } else {
        add_levels(whole, middle, right, rank, levels);
    }
    Level level;
    level.from_left = !is_left;
    const int index = is_left ? rank - first : rank - middle;
    const Range before = owned(whole, is_left ? left : right, index);
    if (left == right) {
        const int peer = is_left ? rank + left : rank - left;
        level.given.push_back({peer, slice(before, 2, is_left ? 1 : 0)});
        level.taken.push_back({peer, slice(before, 2, is_left ? 0 : 1)});
    } else if (is_left) {
        for (int i = 0; i < right; i++) {
            level.taken.push_back({middle + i, common(before, owned(whole, right, i))});
        }
    } else {
        for (int i = 0; i < left; i++) {
            level.given.push_back({first + i, common(before, owned(whole, left, i))});
        }
    }
    levels->push_back(std::move(level));
}

}  // namespace

Schedule recursive_halving_all_reduce(const Problem& problem) {
    const Range whole{0, problem.count};
    std::vector<Level> levels;
    add_levels(whole, 0, problem.size, problem.rank, &levels);
    ScheduleBuilder builder;
    if (levels.empty() && !problem.in_place) {
        builder.copy(block(Space::input, whole), block(Space::output, whole));
    }
    // The own contribution is in the input until the first sum of it is in the output.
    Space from = Space::input;
    for (const Level& level : levels) {
        builder.next_round();
        for (const auto& [peer, range] : level.given) builder.send(peer, block(from, range));
        for (const auto& [peer, range] : level.taken) {
            builder.recv_reduce(peer, block(from, range), block(Space::output, range),
                                level.from_left);
        }
        if (!level.taken.empty()) from = Space::output;
    }
    for (auto level = levels.rbegin(); level != levels.rend(); ++level) {
        builder.next_round();
        for (const auto& [peer, range] : level->taken) {
            builder.send(peer, block(Space::output, range));
        }
        for (const auto& [peer, range] : level->given) {
            builder.recv(peer, block(Space::output, range));
        }
    }
    return builder.finish();
}

}  // namespace pycomm
