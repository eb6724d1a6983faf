// The simulator must find planted faults: right schedules, each spoilt in one way.
#include <doctest/doctest.h>

#include <string>
#include <vector>

#include "schedule/schedule.h"
#include "schedule/simulator.h"

using namespace pycomm;

namespace {

using Schedules = std::vector<Schedule>;

Block input(int64_t offset, int64_t count) {
    return {Space::input, offset, count};
}
Block output(int64_t offset, int64_t count) {
    return {Space::output, offset, count};
}
Block scratch(int64_t offset, int64_t count) {
    return {Space::scratch, offset, count};
}
Step send(int peer, Block src) {
    return {StepKind::send, peer, src, {}};
}
Step recv(int peer, Block dst) {
    return {StepKind::recv, peer, {}, dst};
}
Step recv_reduce(int peer, Block src, Block dst, bool peer_first = false) {
    return {StepKind::recv_reduce, peer, src, dst, peer_first};
}
Step recv_reduce_all(Block src, Block dst) {
    return {StepKind::recv_reduce_all, -1, src, dst};
}
Step copy(Block src, Block dst) {
    return {StepKind::copy, -1, src, dst};
}

Schedule schedule(const std::vector<std::vector<Step>>& rounds) {
    Schedule result;
    result.lanes.resize(1);
    for (const auto& steps : rounds) result.lanes[0].rounds.push_back({steps});
    return result;
}

std::vector<Step>& steps(Schedule& schedule, size_t round) {
    return schedule.lanes[0].rounds[round].steps;
}

bool contains(const std::string& text, const std::string& part) {
    const bool found = text.find(part) != std::string::npos;
    if (!found) MESSAGE("got: ", text);
    return found;
}

// All-reduce of 4 elements on two ranks: exchange halves, reduce, exchange results.
Collective all_reduce(bool in_place = false) {
    Collective c;
    c.kind = OpKind::all_reduce;
    c.size = 2;
    c.count = 4;
    c.in_place = in_place;
    c.balanced_order = true;
    return c;
}
Schedules halves() {
    return {schedule({{send(1, input(2, 2)), recv_reduce(1, input(0, 2), output(0, 2))},
                      {send(1, output(0, 2)), recv(1, output(2, 2))}}),
            schedule({{send(0, input(0, 2)), recv_reduce(0, input(2, 2), output(2, 2), true)},
                      {send(0, output(2, 2)), recv(0, output(0, 2))}})};
}

// All-reduce of 3 elements on three ranks, one slice each.
Collective all_reduce_of_three() {
    Collective c = all_reduce();
    c.size = 3;
    c.count = 3;
    return c;
}
Schedules slices() {
    Schedules all;
    for (int rank = 0; rank < 3; rank++) {
        const int a = (rank + 1) % 3, b = (rank + 2) % 3;
        all.push_back(schedule({{recv_reduce_all(input(rank, 1), output(rank, 1)),
                                 send(a, input(a, 1)), send(b, input(b, 1))},
                                {send(a, output(rank, 1)), send(b, output(rank, 1)),
                                 recv(a, output(a, 1)), recv(b, output(b, 1))}}));
        all.back().reduces_at_once = true;
    }
    return all;
}

}  // namespace

TEST_CASE("right schedules pass") {
    CHECK(simulate(halves(), all_reduce()) == "");
    CHECK(simulate(halves(), all_reduce(true)) == "");
    CHECK(simulate(slices(), all_reduce_of_three()) == "");
    Collective in_place = all_reduce_of_three();
    in_place.in_place = true;
    CHECK(simulate(slices(), in_place) == "");
}

TEST_CASE("malformed steps") {
    const auto fault = [](auto spoil) {
        Schedules all = halves();
        spoil(all);
        return simulate(all, all_reduce());
    };
    CHECK(fault([](Schedules& s) { steps(s[1], 0)[0].src.offset = 3; }) ==
          "rank 1 lane 0 round 0 step 0: send to 0 input[3:5]: outside of its buffer");
    CHECK(contains(fault([](Schedules& s) { steps(s[1], 0)[0].src.offset = -1; }), "outside"));
    CHECK(contains(fault([](Schedules& s) { steps(s[0], 0)[0].src.count = 0; }), "left out"));
    CHECK(contains(fault([](Schedules& s) { steps(s[0], 0)[1].dst.count = 1; }), "counts of"));
    CHECK(contains(fault([](Schedules& s) { steps(s[0], 0)[1].dst.space = Space::input; }),
                   "writes the input"));
    CHECK(contains(fault([](Schedules& s) { steps(s[0], 1)[0].peer = 0; }), "no such peer"));
    CHECK(contains(fault([](Schedules& s) { steps(s[0], 1)[0].peer = 2; }), "no such peer"));
    CHECK(contains(fault([](Schedules& s) { steps(s[0], 1)[0].src = scratch(0, 1); }), "outside"));
    CHECK(contains(fault([](Schedules& s) { s.pop_back(); }), "1 schedules for 2 ranks"));
    CHECK(
        contains(fault([](Schedules& s) { s[1].reduces_at_once = true; }), "differs from rank 0"));
    CHECK(contains(fault([](Schedules& s) { s[0].reduces_at_once = s[1].reduces_at_once = true; }),
                   "partial reduction although"));
}

TEST_CASE("missing and unequal messages") {
    Schedules all = halves();
    steps(all[1], 1).pop_back();
    CHECK(simulate(all, all_reduce()) == "rank 0 sends 2 messages to rank 1, which receives 1");
    all = halves();
    steps(all[0], 1).erase(steps(all[0], 1).begin());
    CHECK(contains(simulate(all, all_reduce()),
                   "rank 0 sends 1 messages to rank 1, which receives 2"));
    all = halves();
    steps(all[1], 1)[0].src.count = 1;
    CHECK(simulate(all, all_reduce()) ==
          "rank 1 lane 0 round 1 step 0: send to 0 output[2:3]: meets a receive of another count, "
          "rank 0 lane 0 round 1 step 1: recv from 1 -> output[2:4]");
}

TEST_CASE("swapped order of two messages") {
    Collective c;
    c.kind = OpKind::broadcast;
    c.size = 2;
    c.count = 4;
    Schedules all = {schedule({{send(1, output(0, 2)), send(1, output(2, 2))}}),
                     schedule({{recv(0, output(0, 2)), recv(0, output(2, 2))}})};
    CHECK(simulate(all, c) == "");
    std::swap(steps(all[0], 0)[0], steps(all[0], 0)[1]);
    CHECK(simulate(all, c) == "rank 1: output element 0 is 0 of element 2 instead of element 0");
}

TEST_CASE("wrong slice, wrong source, missing and doubled contributions") {
    Schedules all = halves();
    steps(all[0], 0)[0].src = input(1, 2);
    CHECK(contains(simulate(all, all_reduce()), "combines element 1 with element 2"));

    all = halves();
    steps(all[1], 1)[0].src = input(2, 2);
    CHECK(simulate(all, all_reduce()) == "rank 0: output element 2 lacks contributions: 1");

    all = halves();  // the sum once more added to a part of it
    steps(all[0], 1)[1] = recv_reduce(1, input(2, 2), output(2, 2));
    CHECK(contains(simulate(all, all_reduce()), "combines a contribution twice: 0 (0+1)"));

    Collective c;
    c.kind = OpKind::all_gather;
    c.size = 3;
    c.counts = {1, 1, 1};
    Schedules gather;
    for (int rank = 0; rank < 3; rank++) {
        const int a = (rank + 1) % 3, b = (rank + 2) % 3;
        gather.push_back(
            schedule({{copy(input(0, 1), output(rank, 1)), send(a, input(0, 1)),
                       send(b, input(0, 1)), recv(a, output(a, 1)), recv(b, output(b, 1))}}));
    }
    CHECK(simulate(gather, c) == "");
    std::swap(steps(gather[1], 0)[3].dst, steps(gather[1], 0)[4].dst);
    CHECK(simulate(gather, c) == "rank 1: output element 0 is 2, wanted is rank 0's");
}

TEST_CASE("order of a reduction") {
    Schedules all = halves();
    steps(all[1], 0)[1].peer_first = false;
    CHECK(simulate(all, all_reduce()) == "rank 0: output element 2 is reduced in the order (1+0)");
    Collective any_order = all_reduce();
    any_order.balanced_order = false;
    CHECK(simulate(all, any_order) == "");
}

TEST_CASE("a partial result where reduces_at_once is claimed") {
    Schedules all = slices();
    CHECK(simulate(all, all_reduce_of_three()) == "");
    // Rank 0 sends in the second round what it has reduced in the first.
    Collective c = all_reduce_of_three();
    c.kind = OpKind::reduce_scatter;
    c.count = 0;
    c.counts = {1, 1, 1};
    for (int rank = 0; rank < 3; rank++) {
        all[static_cast<size_t>(rank)].lanes[0].rounds.resize(1);
        steps(all[static_cast<size_t>(rank)], 0)[0].dst = output(0, 1);
    }
    CHECK(simulate(all, c) == "");
    for (int rank = 0; rank < 3; rank++) {
        const int a = (rank + 1) % 3, b = (rank + 2) % 3;
        all[static_cast<size_t>(rank)].lanes[0].rounds.push_back(
            {{recv_reduce_all(output(0, 1), output(0, 1)), send(a, input(a, 1)),
              send(b, input(b, 1))}});
    }
    CHECK(contains(simulate(all, c), "gets a partial result, ((0+1)+2), although"));
}

TEST_CASE("never written, overwritten, never finished") {
    Schedules all = halves();
    all[0].scratch_count = 2;
    steps(all[0], 1)[0].src = scratch(0, 2);
    CHECK(simulate(all, all_reduce()) ==
          "rank 0 lane 0 round 1 step 0: send to 1 scratch[0:2]: reads element 0, which was never "
          "written");

    // In place, a copy into the part of the output that is still to be sent.
    all = halves();
    steps(all[0], 0).insert(steps(all[0], 0).begin(), copy(input(0, 2), output(2, 2)));
    CHECK(simulate(all, all_reduce()) == "");
    CHECK(contains(
        simulate(all, all_reduce(true)),
        "rank 0 lane 0 round 0 step 1: send to 1 input[2:4]: reads input element 2 after it "
        "was overwritten"));

    Collective c;
    c.kind = OpKind::broadcast;
    c.size = 2;
    c.count = 3;
    CHECK(simulate({schedule({{send(1, output(0, 2))}}), schedule({{recv(0, output(0, 2))}})}, c) ==
          "rank 1: output element 2 was never written");
}

TEST_CASE("races within a round") {
    // Receives into what the same round sends.
    Schedules all = {
        schedule({{send(1, input(0, 4)), recv_reduce(1, input(0, 4), output(0, 4))}}),
        schedule({{send(0, input(0, 4)), recv_reduce(0, input(0, 4), output(0, 4), true)}})};
    CHECK(simulate(all, all_reduce()) == "");
    CHECK(contains(simulate(all, all_reduce(true)),
                   "step 0: send to 1 input[0:4]: races with step 1: recv_reduce"));
    // Two receives into the same place; a reduction whose result is shifted against what it reads.
    all = halves();
    steps(all[0], 1)[1].dst = output(1, 2);
    CHECK(contains(simulate(all, all_reduce()), "races with step 1"));
    all = slices();
    steps(all[0], 1)[3].dst = output(1, 1);
    CHECK(contains(simulate(all, all_reduce_of_three()), "races with step 3"));
    all = halves();
    steps(all[0], 0)[1] = recv_reduce(1, input(0, 2), output(1, 2));
    CHECK(contains(simulate(all, all_reduce(true)), "races with"));
}

TEST_CASE("deadlocks") {
    // Both send first and receive in the next round: only buffering would help.
    Schedules all = {
        schedule({{send(1, input(0, 4))}, {recv_reduce(1, input(0, 4), output(0, 4))}}),
        schedule({{send(0, input(0, 4))}, {recv_reduce(0, input(0, 4), output(0, 4), true)}})};
    CHECK(simulate(all, all_reduce()) ==
          "deadlock: rank 0 lane 0 round 0 step 0: send to 1 input[0:4] never completes; rank 1 is "
          "in "
          "lane 0 round 0");
    // A recv_reduce_all blocks the receive behind it, which its missing sender waits for.
    Collective c = all_reduce_of_three();
    c.kind = OpKind::reduce;
    c.count = 1;
    const auto rounds = [&](bool late) {
        Schedules three(3);
        three[0] = schedule({{recv_reduce_all(input(0, 1), output(0, 1)), recv(1, scratch(0, 1))}});
        three[0].scratch_count = 1;
        three[1] =
            schedule({{send(0, input(0, 1))}, {send(0, input(0, 1))}, {send(2, input(0, 1))}});
        three[2] = late ? schedule({{recv(1, scratch(0, 1))}, {send(0, input(0, 1))}})
                        : schedule({{send(0, input(0, 1))}, {recv(1, scratch(0, 1))}});
        three[2].scratch_count = 1;
        return three;
    };
    CHECK(simulate(rounds(false), c) == "");
    CHECK(contains(simulate(rounds(true), c), "deadlock: rank 0"));
    // A ring of three in which each waits for its predecessor.
    Collective gather;
    gather.kind = OpKind::all_gather;
    gather.size = 3;
    gather.counts = {1, 1, 1};
    Schedules ring;
    for (int rank = 0; rank < 3; rank++) {
        ring.push_back(
            schedule({{recv((rank + 2) % 3, output(0, 1))}, {send((rank + 1) % 3, input(0, 1))}}));
    }
    CHECK(contains(simulate(ring, gather), "deadlock: rank 0 lane 0 round 0 step 0: recv from 2"));
}

TEST_CASE("lanes are independent") {
    Collective c;
    c.kind = OpKind::broadcast;
    c.size = 2;
    c.count = 4;
    Schedules all(2);
    all[0].lanes = {{{{{send(1, output(0, 2))}}}}, {{{{send(1, output(2, 2))}}}}};
    all[1].lanes = {{{{{recv(0, output(0, 2))}}}}, {{{{recv(0, output(2, 2))}}}}};
    CHECK(simulate(all, c) == "");
    all[1].scratch_count = 1;
    all[1].lanes[1].rounds[0].steps.push_back(copy(output(1, 1), scratch(0, 1)));
    CHECK(
        contains(simulate(all, c),
                 "rank 1 lane 1 round 0 step 1: copy output[1:2] -> scratch[0:1]: lane 0 writes"));
}

TEST_CASE("barriers") {
    Collective c;
    c.kind = OpKind::barrier;
    c.size = 3;
    const auto barrier = [](int rounds) {
        Schedules all;
        for (int rank = 0; rank < 3; rank++) {
            all.push_back(schedule({}));
            all.back().scratch_count = 2;
            for (int distance = 1; distance <= rounds; distance++) {
                all.back().lanes[0].rounds.push_back(
                    {{send((rank + distance) % 3, scratch(0, 1)),
                      recv((rank + 3 - distance) % 3, scratch(1, 1))}});
            }
        }
        return all;
    };
    CHECK(simulate(barrier(2), c) == "");
    CHECK(simulate(barrier(1), c) == "rank 0 leaves the barrier having heard from 2 of 3 ranks");
    // What a rank hears in a round it cannot have told in the same round.
    Schedules at_once = barrier(2);
    for (Schedule& s : at_once) {
        s.lanes[0].rounds[0].steps[1].dst = scratch(0, 1);
        s.lanes[0].rounds[0].steps[0].src = scratch(1, 1);
        s.lanes[0].rounds.resize(1);
    }
    CHECK(contains(simulate(at_once, c), "having heard from 2 of 3"));
}
