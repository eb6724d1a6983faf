// Recursive doubling: groups that know their result exchange it with a neighbour group and double.
//
// All-reduce. Idea: the ranks form the balanced binary tree, whose left part is the largest power
// of two below the size. Both parts compute their sums, recursively; then each rank gets the other
// part's sum from one rank of that part. Within powers of two this is the plain exchange with rank
// xor 2^k; a right part that is smaller serves several left ranks each. For 5 ranks:
//
//      round 0     0 <-> 1   2 <-> 3
//      round 1     0 <-> 2   1 <-> 3
//      round 2     0 <-> 4   4 -> 1, 2, 3
//
// Steps: at most ceil(log2 size) rounds. Bytes sent per rank: the buffer once a round; the ranks of
// a small right part send it several times. For small messages, where rounds cost more than bytes.
// Order of the sum: the balanced tree, on every rank the same expression.
//
// All-gather. Idea (Bruck): after k rounds a rank holds the slices of itself and of the 2^k - 1
// ranks that follow it; it sends them to the rank 2^k before it and gets the next 2^k from the rank
// 2^k after it. Slices lie at their final places from the start; where the group wraps around the
// end of the buffer it is two messages. For 5 ranks, what rank 0 holds:
//
//      [0]  ->  [0 1]  ->  [0 1 2 3]  ->  [0 1 2 3 4]
//
// Steps: ceil(log2 size) rounds. Bytes sent per rank: (size - 1) / size of the result.
//
// Source: R. Thakur, R. Rabenseifner, W. Gropp, "Optimization of Collective Communication
// Operations in MPICH", 2005; J. Bruck et al., "Efficient Algorithms for All-to-All Communications
// in Multiport Message-Passing Systems", 1997.
#include <bit>

#include "algorithms/builder.h"
#include "algorithms/families.h"

namespace pycomm {
namespace {

// One level of the tree, as seen by one rank: to whom its part's sum goes and who brings the
// other's.
struct Exchange {
    std::vector<int> to;
    int from = -1;
    bool from_left = false;
};

// Appends the exchanges of `rank` among ranks first .. first + count - 1, lowest level first.
void add_exchanges(int first, int count, int rank, std::vector<Exchange>* exchanges) {
    if (count == 1) return;
    const int left = static_cast<int>(std::bit_floor(static_cast<unsigned>(count - 1)));
    const int right = count - left;
    const int middle = first + left;
    Exchange exchange;
    if (rank < middle) {
        add_exchanges(first, left, rank, exchanges);
        const int i = rank - first;
        exchange.from = middle + i % right;
        if (i < right) exchange.to.push_back(middle + i);
    } else {
        add_exchanges(middle, right, rank, exchanges);
        const int i = rank - middle;
        exchange.from = first + i;
        exchange.from_left = true;
        for (int peer = i; peer < left; peer += right) exchange.to.push_back(first + peer);
    }
    exchanges->push_back(std::move(exchange));
}

}  // namespace

Schedule recursive_doubling_all_reduce(const Problem& problem) {
    const auto all_of = [&](Space space) { return Block{space, 0, problem.count}; };
    std::vector<Exchange> exchanges;
    add_exchanges(0, problem.size, problem.rank, &exchanges);
    ScheduleBuilder builder;
    if (exchanges.empty() && !problem.in_place) {
        builder.copy(all_of(Space::input), all_of(Space::output));
    }
    // A round cannot write the sum that it is sending, so results alternate between scratch and
    // output such that the last one is in the output.
    bool uses_scratch = false;
    Space from = Space::input;
    for (size_t level = 0; level < exchanges.size(); level++) {
        const Exchange& exchange = exchanges[level];
        const Space to = (exchanges.size() - level) % 2 == 1 ? Space::output : Space::scratch;
        builder.next_round();
        if (level == 0 && problem.in_place && to == Space::output) {
            builder.copy(all_of(Space::input), all_of(Space::scratch));
            from = Space::scratch;
        }
        for (const int peer : exchange.to) builder.send(peer, all_of(from));
        builder.recv_reduce(exchange.from, all_of(from), all_of(to), exchange.from_left);
        uses_scratch = uses_scratch || from == Space::scratch || to == Space::scratch;
        from = to;
    }
    return builder.finish(uses_scratch ? problem.count : 0);
}

Schedule recursive_doubling_all_gather(const Problem& problem) {
    const int size = problem.size, rank = problem.rank;
    const std::vector<Range> slices = layout(problem.counts);
    // The slices of `count` ranks from `first` on, around the end: one block or two.
    const auto blocks_of = [&](int first, int count) {
        const auto joined = [&](int begin, int end) {
            const Range &head = slices[static_cast<size_t>(begin)],
                        &tail = slices[static_cast<size_t>(end - 1)];
            return Block{Space::output, head.offset, tail.offset + tail.count - head.offset};
        };
        std::vector<Block> blocks = {joined(first, std::min(first + count, size))};
        if (first + count > size) blocks.push_back(joined(0, first + count - size));
        return blocks;
    };
    const Range& own = slices[static_cast<size_t>(rank)];
    ScheduleBuilder builder;
    if (!problem.in_place) builder.copy({Space::input, 0, own.count}, block(Space::output, own));
    for (int held = 1; held < size; held *= 2) {
        if (held > 1) builder.next_round();
        const int moved = std::min(held, size - held);
        const int to = around(rank, -held, size), from = around(rank, held, size);
        for (const Block& sent : blocks_of(rank, moved)) builder.send(to, sent);
        for (const Block& received : blocks_of(from, moved)) builder.recv(from, received);
    }
    return builder.finish();
}

}  // namespace pycomm
