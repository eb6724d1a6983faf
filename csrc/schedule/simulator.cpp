// The schedule simulator: matches messages, then lets them meet one by one.
//
// Values do not depend on timing, since racing steps are refused, and a schedule that completes
// without any buffering completes with it; so one run, in any order of events, proves all.
#include "schedule/simulator.h"

#include <algorithm>
#include <numeric>

#include "base/error.h"
#include "schedule/simulation.h"

namespace pycomm {
namespace simulation {

Simulator::Simulator(const std::vector<Schedule>& schedules, const Collective& collective)
    : schedules_(schedules),
      collective_(collective),
      size_(collective.size),
      expressions_(collective.size),
      ranks_(static_cast<size_t>(collective.size)),
      pairs_(ranks_.size() * ranks_.size()),
      parts_(ranks_.size()) {
    std::vector<Expressions::Id> leaves(ranks_.size());
    std::iota(leaves.begin(), leaves.end(), 0);
    balanced_ = expressions_.balanced(leaves);
}

void Simulator::run() {
    PYCOMM_CHECK(schedules_.size() == ranks_.size(), argument, schedules_.size(), " schedules for ",
                 size_, " ranks");
    for (int rank = 0; rank < size_; rank++) set_up(rank);
    for (int rank = 0; rank < size_; rank++) check_form(rank);
    for (int rank = 0; rank < size_; rank++) check_lanes(rank);
    match();
    for (int rank = 0; rank < size_; rank++) enter_next_round(rank);
    while (!to_visit_.empty()) {
        const int pair = to_visit_.back();
        to_visit_.pop_back();
        visit(pair / size_, pair % size_);
    }
    check_complete();
    for (int rank = 0; rank < size_; rank++) check_result(rank);
}

void Simulator::set_up(int rank) {
    RankState& state = this->state(rank);
    const Schedule& schedule = schedules_[static_cast<size_t>(rank)];
    PYCOMM_CHECK(schedule.scratch_count >= 0, argument, "rank ", rank, ": scratch of ",
                 schedule.scratch_count, " elements");
    PYCOMM_CHECK(schedule.reduces_at_once == schedules_[0].reduces_at_once, argument, "rank ", rank,
                 ": reduces_at_once differs from rank 0's");
    for (size_t l = 0; l < schedule.lanes.size(); l++) {
        const std::vector<Round>& rounds = schedule.lanes[l].rounds;
        for (size_t r = 0; r < rounds.size(); r++) {
            state.rounds.push_back({&rounds[r].steps, static_cast<int>(l), static_cast<int>(r)});
        }
    }
    set_up_buffers(rank);
    if (collective_.kind == OpKind::barrier) {
        // A barrier's messages have no meaning, so its scratch need not be written first.
        if (schedule.scratch_count > 0) {
            state.memories[2].write({0, schedule.scratch_count, expressions_.leaf(rank), 0});
        }
        state.heard.assign((ranks_.size() + 63) / 64, 0);
        state.heard[static_cast<size_t>(rank / 64)] |= uint64_t{1} << (rank % 64);
    }
}

// Sorts all sends and receives by pair of ranks; the n-th send of a pair belongs to its n-th
// receive.
void Simulator::match() {
    std::vector<int> received(pairs_.size(), 0);
    for (int rank = 0; rank < size_; rank++) {
        for_each_step(rank, [&](const Position&, const Step& step) {
            if (step.kind == StepKind::send) pair(rank, step.peer).count++;
            if (!receives(step)) return;
            for_each_source(rank, step, [&](int peer) {
                received[static_cast<size_t>(peer * size_ + rank)]++;
            });
        });
    }
    int total = 0;
    for (size_t p = 0; p < pairs_.size(); p++) {
        PYCOMM_CHECK(pairs_[p].count == received[p], argument, "rank ", p / ranks_.size(),
                     " sends ", pairs_[p].count, " messages to rank ", p % ranks_.size(),
                     ", which receives ", received[p]);
        pairs_[p].first = total;
        total += pairs_[p].count;
    }
    sends_.resize(static_cast<size_t>(total));
    recvs_.resize(static_cast<size_t>(total));
    std::vector<int> sent(pairs_.size(), 0);
    std::fill(received.begin(), received.end(), 0);
    const auto put = [&](std::vector<Position>& list, std::vector<int>& filled, int from, int to,
                         const Position& at) {
        const auto p = static_cast<size_t>(from * size_ + to);
        list[static_cast<size_t>(pairs_[p].first + filled[p]++)] = at;
    };
    for (int rank = 0; rank < size_; rank++) {
        for_each_step(rank, [&](const Position& at, const Step& step) {
            if (step.kind == StepKind::send) put(sends_, sent, rank, step.peer, at);
            if (!receives(step)) return;
            for_each_source(rank, step, [&](int peer) { put(recvs_, received, peer, rank, at); });
        });
    }
    for (int from = 0; from < size_; from++) {
        for (int to = 0; to < size_; to++) check_matched(from, to);
    }
}

void Simulator::enter_next_round(int rank) {
    RankState& state = this->state(rank);
    while (state.outstanding == 0 && ++state.current < static_cast<int>(state.rounds.size())) {
        const std::vector<Step>& steps = *state.rounds[static_cast<size_t>(state.current)].steps;
        state.done.assign(steps.size(), 0);
        state.arrived.assign(steps.size(), 0);
        state.heard_before = state.heard;
        for (int s = 0; s < static_cast<int>(steps.size()); s++) {
            if (steps[static_cast<size_t>(s)].kind != StepKind::copy) continue;
            copy(rank, {state.current, s});
            state.done[static_cast<size_t>(s)] = 1;
        }
        check_races(rank);
        for (const Step& step : steps) {
            if (step.kind == StepKind::copy) continue;
            state.outstanding++;
            if (step.kind == StepKind::send) {
                to_visit_.push_back(rank * size_ + step.peer);
            } else {
                for_each_source(rank, step,
                                [&](int peer) { to_visit_.push_back(peer * size_ + rank); });
            }
        }
    }
}

// Completes the next message of a pair when both sides have come to it.
void Simulator::visit(int from, int to) {
    Pair& messages = pair(from, to);
    if (messages.done == messages.count) return;
    const Position send = send_of(messages, messages.done);
    const Position recv = recv_of(messages, messages.done);
    if (send.round != state(from).current || recv.round != state(to).current) return;
    if (step(to, recv).kind != StepKind::recv_reduce_all) {
        deliver(from, send, to, recv);
        messages.done++;
        to_visit_.push_back(from * size_ + to);
        complete(from, send.step);
        complete(to, recv.step);
        return;
    }
    if (messages.announced == messages.done) return;
    messages.announced = messages.done;
    if (++state(to).arrived[static_cast<size_t>(recv.step)] < size_ - 1) return;
    reduce_all(to, recv);
    for (int peer = 0; peer < size_; peer++) {
        if (peer == to) continue;
        Pair& part = pair(peer, to);
        const Position sent = send_of(part, part.done++);
        to_visit_.push_back(peer * size_ + to);
        complete(peer, sent.step);
    }
    complete(to, recv.step);
}

void Simulator::complete(int rank, int step) {
    RankState& state = this->state(rank);
    state.done[static_cast<size_t>(step)] = 1;
    if (--state.outstanding == 0) enter_next_round(rank);
}

}  // namespace simulation

std::string simulate(const std::vector<Schedule>& schedules, const Collective& collective) {
    try {
        simulation::Simulator(schedules, collective).run();
        return "";
    } catch (const Error& error) {
        return error.what();
    }
}

}  // namespace pycomm
