// The inside of the schedule simulator.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/error.h"
#include "schedule/schedule.h"
#include "schedule/simulator.h"
#include "schedule/symbolic.h"

namespace pycomm::simulation {

constexpr int space_count = 3;

// A step of a rank; rounds are numbered through all lanes.
struct Position {
    int round = 0;
    int step = 0;
};

struct FlatRound {
    const std::vector<Step>* steps = nullptr;
    int lane = 0;
    int round = 0;  // within the lane
};

// Where a space of a rank lies: `count` elements of memory `memory` from `shift` on.
struct Region {
    int memory = 0;
    int64_t shift = 0;
    int64_t count = 0;
};

struct Access {
    int memory = 0;
    int64_t begin = 0;
    int64_t end = 0;
    int step = 0;
};

struct RankState {
    std::vector<FlatRound> rounds;
    std::array<Region, space_count> regions;
    std::array<SymbolicMemory, space_count> memories;
    int current = -1;     // round
    int outstanding = 0;  // steps of the current round that are not complete
    // By step of the current round: is it complete; of a recv_reduce_all, the senders it has met.
    std::vector<char> done;
    std::vector<int> arrived;
    // Barrier: the ranks heard from, now and when the current round began.
    std::vector<uint64_t> heard, heard_before;
};

// The messages from one rank to another.
struct Pair {
    int first = 0;  // in sends_ and recvs_
    int count = 0;
    int done = 0;
    int announced = -1;  // the last message that its recv_reduce_all has counted
};

inline bool reads(const Step& step) {
    return step.kind != StepKind::recv;
}
inline bool writes(const Step& step) {
    return step.kind != StepKind::send;
}
inline bool reduces(const Step& step) {
    return step.kind == StepKind::recv_reduce || step.kind == StepKind::recv_reduce_all;
}
inline bool receives(const Step& step) {
    return step.kind == StepKind::recv || reduces(step);
}

// The state of one simulation. Its functions lie in simulator.cpp (order of events),
// simulator_checks.cpp (what a schedule must not do) and simulator_values.cpp (buffers and what
// they hold).
class Simulator {
  public:
    Simulator(const std::vector<Schedule>& schedules, const Collective& collective);

    // Throws Error with the first fault.
    void run();

  private:
    // Set-up and static checks.
    void set_up(int rank);
    void set_up_buffers(int rank);
    void check_form(int rank);
    void check_lanes(int rank);
    void match();
    void check_matched(int from, int to);
    // Events.
    void enter_next_round(int rank);
    void check_races(int rank);
    void visit(int from, int to);
    void complete(int rank, int step);
    void check_complete();
    // Values.
    void load(int rank, const Position& at, const Block& block, std::vector<Run>* runs);
    void store(int rank, const Block& block, const std::vector<Run>& runs);
    void copy(int rank, const Position& at);
    void deliver(int from, const Position& send, int to, const Position& recv);
    void reduce(int rank, const Position& at, std::span<const std::vector<Run>> parts,
                const Block& dst);
    void reduce_all(int rank, const Position& at);
    void check_result(int rank);
    void check_output(int rank, int64_t begin, int64_t count, int source, int64_t index);

    RankState& state(int rank) { return ranks_[static_cast<size_t>(rank)]; }
    Pair& pair(int from, int to) { return pairs_[static_cast<size_t>(from * size_ + to)]; }
    Position send_of(const Pair& pair, int n) const {
        return sends_[static_cast<size_t>(pair.first + n)];
    }
    Position recv_of(const Pair& pair, int n) const {
        return recvs_[static_cast<size_t>(pair.first + n)];
    }
    const Step& step(int rank, const Position& at) {
        const FlatRound& round = state(rank).rounds[static_cast<size_t>(at.round)];
        return (*round.steps)[static_cast<size_t>(at.step)];
    }
    Access access(int rank, const Block& block, int step) {
        const Region& region = state(rank).regions[static_cast<size_t>(block.space)];
        const int64_t begin = region.shift + block.offset;
        return {region.memory, begin, begin + block.count, step};
    }
    std::string where(int rank, const Position& at) {
        const FlatRound& round = state(rank).rounds[static_cast<size_t>(at.round)];
        return concat("rank ", rank, " lane ", round.lane, " round ", round.round, " step ",
                      at.step, ": ", to_string(step(rank, at)));
    }
    // Calls visitor(position, step) for all steps of a rank in order.
    template <typename Visitor>
    void for_each_step(int rank, Visitor visitor) {
        for (int r = 0; r < static_cast<int>(state(rank).rounds.size()); r++) {
            const std::vector<Step>& steps = *state(rank).rounds[static_cast<size_t>(r)].steps;
            for (int s = 0; s < static_cast<int>(steps.size()); s++) {
                visitor(Position{r, s}, steps[static_cast<size_t>(s)]);
            }
        }
    }
    // Calls visitor(peer) for each rank that a receiving step of `rank` takes a message from.
    template <typename Visitor>
    void for_each_source(int rank, const Step& step, Visitor visitor) {
        if (step.kind != StepKind::recv_reduce_all) return visitor(step.peer);
        for (int peer = 0; peer < size_; peer++) {
            if (peer != rank) visitor(peer);
        }
    }

    const std::vector<Schedule>& schedules_;
    const Collective& collective_;
    const int size_;
    Expressions expressions_;
    Expressions::Id balanced_;  // the tree over all ranks
    std::vector<RankState> ranks_;
    std::vector<Pair> pairs_;
    std::vector<Position> sends_, recvs_;  // by pair
    std::vector<int> to_visit_;            // pairs whose next message may be ready
    std::vector<std::vector<Run>> parts_;  // work space
    std::vector<Run> result_;
    std::vector<Access> written_;
};

}  // namespace pycomm::simulation
