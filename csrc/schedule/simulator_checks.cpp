// What the simulator refuses in a schedule, whatever the values: malformed steps, dependent lanes,
// messages that do not fit, races, deadlock.
#include <algorithm>

#include "base/error.h"
#include "schedule/simulation.h"

namespace pycomm::simulation {

void Simulator::check_form(int rank) {
    const bool at_once = schedules_[static_cast<size_t>(rank)].reduces_at_once;
    for_each_step(rank, [&](const Position& at, const Step& step) {
        const auto check = [&](bool condition, const char* text) {
            PYCOMM_CHECK(condition, argument, where(rank, at), ": ", text);
        };
        const auto check_block = [&](const Block& block) {
            const int64_t size = state(rank).regions[static_cast<size_t>(block.space)].count;
            check(block.count > 0, "an empty step must be left out");
            check(block.offset >= 0 && block.count <= size && block.offset <= size - block.count,
                  "outside of its buffer");
        };
        if (reads(step)) check_block(step.src);
        if (writes(step)) {
            check_block(step.dst);
            check(step.dst.space != Space::input, "writes the input");
        }
        if (reads(step) && writes(step)) {
            check(step.src.count == step.dst.count, "the counts of source and destination differ");
        }
        if (step.kind == StepKind::recv_reduce_all) {
            check(size_ > 1, "there is no other rank");
        } else if (step.kind != StepKind::copy) {
            check(step.peer >= 0 && step.peer < size_ && step.peer != rank, "no such peer");
        }
        check(!at_once || step.kind != StepKind::recv_reduce,
              "a partial reduction although reduces_at_once is set");
    });
}

void Simulator::check_lanes(int rank) {
    const size_t lanes = schedules_[static_cast<size_t>(rank)].lanes.size();
    if (lanes < 2) return;
    std::vector<std::array<SymbolicMemory, space_count>> written(lanes);
    const auto each_access = [&](auto visitor) {
        for_each_step(rank, [&](const Position& at, const Step& step) {
            const auto lane =
                static_cast<size_t>(state(rank).rounds[static_cast<size_t>(at.round)].lane);
            if (reads(step)) visitor(at, lane, access(rank, step.src, 0), false);
            if (writes(step)) visitor(at, lane, access(rank, step.dst, 0), true);
        });
    };
    each_access([&](const Position&, size_t lane, const Access& a, bool writes) {
        if (writes)
            written[lane][static_cast<size_t>(a.memory)].write({a.begin, a.end, 0, a.begin});
    });
    each_access([&](const Position& at, size_t lane, const Access& a, bool) {
        for (size_t other = 0; other < lanes; other++) {
            PYCOMM_CHECK(
                other == lane ||
                    !written[other][static_cast<size_t>(a.memory)].overlaps(a.begin, a.end),
                argument, where(rank, at), ": lane ", other, " writes what this lane uses");
        }
    });
}

void Simulator::check_matched(int from, int to) {
    const Pair& messages = pair(from, to);
    for (int n = 0; n < messages.count; n++) {
        const Position send = send_of(messages, n), recv = recv_of(messages, n);
        PYCOMM_CHECK(step(from, send).src.count == step(to, recv).dst.count, argument,
                     where(from, send), ": meets a receive of another count, ", where(to, recv));
    }
}

// No step of the current round, but for copies, may touch what another one writes. A step may read
// what it writes itself when both blocks are the same.
void Simulator::check_races(int rank) {
    const int round = state(rank).current;
    const std::vector<Step>& steps = *state(rank).rounds[static_cast<size_t>(round)].steps;
    const auto fail = [&](int first, int second) {
        PYCOMM_FAIL(argument, where(rank, {round, first}), ": races with step ", second, ": ",
                    to_string(steps[static_cast<size_t>(second)]));
    };
    written_.clear();
    for (int s = 0; s < static_cast<int>(steps.size()); s++) {
        const Step& step = steps[static_cast<size_t>(s)];
        if (receives(step)) written_.push_back(access(rank, step.dst, s));
    }
    const auto before = [](const Access& a, const Access& b) {
        return a.memory != b.memory ? a.memory < b.memory : a.begin < b.begin;
    };
    std::sort(written_.begin(), written_.end(), before);
    for (size_t i = 1; i < written_.size(); i++) {
        const Access &a = written_[i - 1], &b = written_[i];
        if (a.memory == b.memory && b.begin < a.end) fail(a.step, b.step);
    }
    for (int s = 0; s < static_cast<int>(steps.size()); s++) {
        const Step& step = steps[static_cast<size_t>(s)];
        if (step.kind != StepKind::send && !reduces(step)) continue;
        const Access read = access(rank, step.src, s);
        // The last write that begins before the read ends; earlier ones may reach into it, too, but
        // the writes are disjoint, so walking back ends at the first that does not.
        auto write = std::lower_bound(written_.begin(), written_.end(),
                                      Access{read.memory, read.end, 0, 0}, before);
        while (write != written_.begin()) {
            --write;
            if (write->memory != read.memory || write->end <= read.begin) break;
            if (write->step != s || write->begin != read.begin) fail(s, write->step);
        }
    }
}

void Simulator::check_complete() {
    for (int rank = 0; rank < size_; rank++) {
        const RankState& state = this->state(rank);
        if (state.outstanding == 0) continue;
        const auto waiting = std::find(state.done.begin(), state.done.end(), 0);
        const Position at{state.current, static_cast<int>(waiting - state.done.begin())};
        const int peer = step(rank, at).peer;
        std::string other;
        if (step(rank, at).kind != StepKind::recv_reduce_all) {
            const FlatRound* round =
                this->state(peer).outstanding == 0
                    ? nullptr
                    : &this->state(peer).rounds[static_cast<size_t>(this->state(peer).current)];
            other = round ? concat("; rank ", peer, " is in lane ", round->lane, " round ",
                                   round->round)
                          : concat("; rank ", peer, " has ended");
        }
        PYCOMM_FAIL(argument, "deadlock: ", where(rank, at), " never completes", other);
    }
}

}  // namespace pycomm::simulation
