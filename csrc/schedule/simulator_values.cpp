// The buffers of a simulated collective, what the steps do to their values, and what they must hold
// at the end.
#include <algorithm>
#include <bit>
#include <numeric>

#include "base/error.h"
#include "schedule/simulation.h"

namespace pycomm::simulation {
namespace {

int64_t sum(const std::vector<int64_t>& counts, int until) {
    return std::accumulate(counts.begin(), counts.begin() + until, int64_t{0});
}

}  // namespace

void Simulator::set_up_buffers(int rank) {
    const Collective& c = collective_;
    const bool is_root = rank == c.root;
    const auto own_slice = [&] { return c.counts[static_cast<size_t>(rank)]; };
    const auto own_offset = [&] { return sum(c.counts, rank); };
    Region input{0, 0, 0}, output{1, 0, 0};
    switch (c.kind) {
        case OpKind::all_reduce:
        case OpKind::reduce:
            input.count = c.count;
            output.count = c.kind == OpKind::all_reduce || is_root ? c.count : 0;
            if (c.in_place) output.memory = input.memory;
            break;
        case OpKind::broadcast:
            output.count = c.count;
            break;
        case OpKind::all_gather:
        case OpKind::gather:
            input.count = own_slice();
            if (c.kind == OpKind::gather && !is_root) break;
            output.count = sum(c.counts, size_);
            if (c.in_place) input = {output.memory, own_offset(), input.count};
            break;
        case OpKind::reduce_scatter:
        case OpKind::scatter:
            output.count = own_slice();
            if (c.kind == OpKind::scatter && !is_root) break;
            input.count = sum(c.counts, size_);
            if (c.in_place) output = {input.memory, own_offset(), output.count};
            break;
        case OpKind::all_to_all:
            input.count = sum(c.send_counts[static_cast<size_t>(rank)], size_);
            for (const auto& row : c.send_counts) output.count += row[static_cast<size_t>(rank)];
            break;
        default:
            break;
    }

    RankState& state = this->state(rank);
    state.regions = {input, output,
                     Region{2, 0, schedules_[static_cast<size_t>(rank)].scratch_count}};
    if (input.count > 0) {
        state.memories[static_cast<size_t>(input.memory)].write(
            {input.shift, input.shift + input.count, expressions_.leaf(rank), 0});
    }
    if (c.kind == OpKind::broadcast && is_root && c.count > 0) {
        state.memories[1].write({0, c.count, expressions_.leaf(rank), 0});
    }
}

// The values of a block, from index 0 on.
void Simulator::load(int rank, const Position& at, const Block& block, std::vector<Run>* runs) {
    runs->clear();
    const Access a = access(rank, block, 0);
    const int64_t until =
        state(rank).memories[static_cast<size_t>(a.memory)].read(a.begin, a.end, runs);
    PYCOMM_CHECK(until == a.end, argument, where(rank, at), ": reads element ",
                 block.offset + until - a.begin, ", which was never written");
    for (Run& run : *runs) {
        run.begin -= a.begin;
        run.end -= a.begin;
        PYCOMM_CHECK(block.space != Space::input || (run.value == expressions_.leaf(rank) &&
                                                     run.index == block.offset + run.begin),
                     argument, where(rank, at), ": reads input element ", block.offset + run.begin,
                     " after it was overwritten");
    }
}

void Simulator::store(int rank, const Block& block, const std::vector<Run>& runs) {
    const Access a = access(rank, block, 0);
    SymbolicMemory& memory = state(rank).memories[static_cast<size_t>(a.memory)];
    for (const Run& run : runs) {
        memory.write({a.begin + run.begin, a.begin + run.end, run.value, run.index});
    }
}

void Simulator::copy(int rank, const Position& at) {
    const Step& step = this->step(rank, at);
    load(rank, at, step.src, &result_);
    store(rank, step.dst, result_);
}

void Simulator::deliver(int from, const Position& send, int to, const Position& recv) {
    const Step& step = this->step(to, recv);
    if (step.kind == StepKind::recv) {
        load(from, send, this->step(from, send).src, &result_);
        store(to, step.dst, result_);
    } else {
        load(to, recv, step.src, &parts_[step.peer_first ? 1 : 0]);
        load(from, send, this->step(from, send).src, &parts_[step.peer_first ? 0 : 1]);
        reduce(to, recv, std::span(parts_).first(2), step.dst);
    }
    if (collective_.kind == OpKind::barrier) {
        for (size_t word = 0; word < state(to).heard.size(); word++) {
            state(to).heard[word] |= state(from).heard_before[word];
        }
    }
}

// dst = balanced tree over the parts, element by element.
void Simulator::reduce(int rank, const Position& at, std::span<const std::vector<Run>> parts,
                       const Block& dst) {
    std::vector<size_t> next(parts.size(), 0);
    std::vector<Expressions::Id> values(parts.size());
    result_.clear();
    for (int64_t position = 0; position < dst.count;) {
        int64_t until = dst.count;
        int64_t index = 0;
        for (size_t p = 0; p < parts.size(); p++) {
            while (parts[p][next[p]].end <= position) next[p]++;
            const Run& run = parts[p][next[p]];
            until = std::min(until, run.end);
            values[p] = run.value;
            const int64_t run_index = run.index + (position - run.begin);
            if (p == 0) index = run_index;
            PYCOMM_CHECK(run_index == index, argument, where(rank, at), ": combines element ",
                         index, " with element ", run_index, " of the contributions");
        }
        const Expressions::Id value = expressions_.balanced(values);
        if (value == Expressions::invalid) {
            std::string texts;
            for (const auto id : values) texts += concat(" ", expressions_.text(id));
            PYCOMM_FAIL(argument, where(rank, at), ": combines a contribution twice:", texts);
        }
        result_.push_back({position, until, value, index});
        position = until;
    }
    store(rank, dst, result_);
}

void Simulator::reduce_all(int rank, const Position& at) {
    const Step& step = this->step(rank, at);

    for (int peer = 0; peer < size_; peer++) {
        std::vector<Run>* part = &parts_[static_cast<size_t>(peer)];
        if (peer == rank) {
            load(rank, at, step.src, part);
        } else {
            const Position send = send_of(pair(peer, rank), pair(peer, rank).done);
            load(peer, send, this->step(peer, send).src, part);
        }
        for (const Run& run : *part) {
            PYCOMM_CHECK(!schedules_[0].reduces_at_once || expressions_.is_leaf(run.value),
                         argument, where(rank, at), ": gets a partial result, ",
                         expressions_.text(run.value), ", although reduces_at_once is set");
        }
    }
    reduce(rank, at, parts_, step.dst);
}

void Simulator::check_result(int rank) {
    const Collective& c = collective_;
    const Region& output = state(rank).regions[static_cast<size_t>(Space::output)];
    constexpr int all = -1;
    switch (c.kind) {
        case OpKind::all_reduce:
        case OpKind::reduce:
            return check_output(rank, 0, output.count, all, 0);
        case OpKind::broadcast:
            return check_output(rank, 0, output.count, c.root, 0);
        case OpKind::reduce_scatter:
            return check_output(rank, 0, output.count, all, sum(c.counts, rank));
        case OpKind::scatter:
            return check_output(rank, 0, output.count, c.root, sum(c.counts, rank));
        case OpKind::all_gather:
        case OpKind::gather: {
            if (output.count == 0) return;
            int64_t begin = 0;
            for (int source = 0; source < size_; source++) {
                const int64_t count = c.counts[static_cast<size_t>(source)];
                check_output(rank, begin, count, source, 0);
                begin += count;
            }
            return;
        }
        case OpKind::all_to_all: {
            int64_t begin = 0;
            for (int source = 0; source < size_; source++) {
                const auto& row = c.send_counts[static_cast<size_t>(source)];
                check_output(rank, begin, row[static_cast<size_t>(rank)], source, sum(row, rank));
                begin += row[static_cast<size_t>(rank)];
            }
            return;
        }
        case OpKind::barrier: {
            int heard = 0;
            for (const uint64_t word : state(rank).heard) heard += std::popcount(word);
            PYCOMM_CHECK(heard == size_, argument, "rank ", rank,
                         " leaves the barrier having heard from ", heard, " of ", size_, " ranks");
            return;
        }
        default:
            PYCOMM_FAIL(argument, "cannot simulate ", kind_name(c.kind));
    }
}

// output[begin:begin+count] must be elements `index`... of `source`, or of all ranks when it is -1.
void Simulator::check_output(int rank, int64_t begin, int64_t count, int source, int64_t index) {
    const Region& output = state(rank).regions[static_cast<size_t>(Space::output)];
    const int64_t first = output.shift + begin;
    std::vector<Run>& runs = result_;
    runs.clear();
    const int64_t until =
        state(rank).memories[static_cast<size_t>(output.memory)].read(first, first + count, &runs);
    PYCOMM_CHECK(until == first + count, argument, "rank ", rank, ": output element ",
                 until - output.shift, " was never written");
    for (const Run& run : runs) {
        const int64_t element = run.begin - output.shift;
        const auto text = [&] { return expressions_.text(run.value); };
        PYCOMM_CHECK(run.index == index + (run.begin - first), argument, "rank ", rank,
                     ": output element ", element, " is ", text(), " of element ", run.index,
                     " instead of element ", index + (run.begin - first));
        if (source >= 0) {
            PYCOMM_CHECK(run.value == expressions_.leaf(source), argument, "rank ", rank,
                         ": output element ", element, " is ", text(), ", wanted is rank ", source,
                         "'s");
            continue;
        }
        PYCOMM_CHECK(expressions_.complete(run.value), argument, "rank ", rank, ": output element ",
                     element, " lacks contributions: ", text());

        PYCOMM_CHECK(!collective_.balanced_order || run.value == balanced_, argument, "rank ", rank,
                     ": output element ", element, " is reduced in the order ", text());
    }
}

}  // namespace pycomm::simulation
