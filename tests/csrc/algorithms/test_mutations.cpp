// The simulator against every algorithm spoilt in one step: it must find each of them.
#include <doctest/doctest.h>

#include <functional>
#include <string>
#include <vector>

#include "algorithms/problems.h"

using namespace pycomm;
using namespace pycomm::testing;

namespace {

// Ways to spoil one step. Each returns false when it does not apply to that step.
struct Mutation {
    const char* name;
    std::function<bool(std::vector<Step>& steps, size_t index, int size)> apply;
};

bool has_src(const Step& step) {
    return step.kind != StepKind::recv;
}
bool has_dst(const Step& step) {
    return step.kind != StepKind::send;
}

constexpr const char* operands_swapped = "operands swapped";

const Mutation mutations[] = {
    {"step left out",
     [](std::vector<Step>& steps, size_t index, int) {
         steps.erase(steps.begin() + static_cast<std::ptrdiff_t>(index));
         return true;
     }},
    {"step doubled",
     [](std::vector<Step>& steps, size_t index, int) {
         if (steps[index].kind == StepKind::copy) return false;
         const Step step = steps[index];
         steps.push_back(step);
         return true;
     }},
    {"source moved up",
     [](std::vector<Step>& steps, size_t index, int) {
         steps[index].src.offset++;
         return has_src(steps[index]);
     }},
    {"source moved down",
     [](std::vector<Step>& steps, size_t index, int) {
         steps[index].src.offset--;
         return has_src(steps[index]);
     }},
    {"destination moved up",
     [](std::vector<Step>& steps, size_t index, int) {
         steps[index].dst.offset++;
         return has_dst(steps[index]);
     }},
    {"destination moved down",
     [](std::vector<Step>& steps, size_t index, int) {
         steps[index].dst.offset--;
         return has_dst(steps[index]);
     }},
    {"one element less",
     [](std::vector<Step>& steps, size_t index, int) {
         if (has_src(steps[index])) steps[index].src.count--;
         if (has_dst(steps[index])) steps[index].dst.count--;
         return true;
     }},
    {"other peer",
     [](std::vector<Step>& steps, size_t index, int size) {
         if (steps[index].peer < 0) return false;
         steps[index].peer = (steps[index].peer + 1) % size;
         return true;
     }},
    {operands_swapped,
     [](std::vector<Step>& steps, size_t index, int) {
         steps[index].peer_first = !steps[index].peer_first;
         return steps[index].kind == StepKind::recv_reduce;
     }},
    {"received instead of reduced",
     [](std::vector<Step>& steps, size_t index, int) {
         if (steps[index].kind != StepKind::recv_reduce) return false;
         steps[index].kind = StepKind::recv;
         return true;
     }},
};

// The first mutation that passes as right, or "".
std::string first_missed(const Collective& collective, Algorithm algorithm, int* tried) {
    const std::vector<Schedule> right = build_all(collective, algorithm, 4);
    for (size_t rank = 0; rank < right.size(); rank++) {
        for (size_t lane = 0; lane < right[rank].lanes.size(); lane++) {
            for (size_t round = 0; round < right[rank].lanes[lane].rounds.size(); round++) {
                const size_t steps = right[rank].lanes[lane].rounds[round].steps.size();
                for (size_t step = 0; step < steps; step++) {
                    for (const Mutation& mutation : mutations) {
                        std::vector<Schedule> spoilt = right;
                        auto& changed = spoilt[rank].lanes[lane].rounds[round].steps;
                        // Nothing is promised about the order of a ring's sum.
                        const bool swaps = mutation.name == operands_swapped;
                        if (swaps && !collective.balanced_order) continue;
                        if (!mutation.apply(changed, step, collective.size)) continue;
                        ++*tried;
                        if (!simulate(spoilt, collective).empty()) continue;
                        return concat(mutation.name, ": rank ", rank, " round ", round, " step ",
                                      step, " of\n", to_string(right[rank]));
                    }
                }
            }
        }
    }
    return "";
}

void check(Collective collective, int* tried) {
    for (const bool in_place : {false, true}) {
        const bool allowed =
            collective.kind != OpKind::broadcast && collective.kind != OpKind::all_to_all;
        if (in_place && !allowed) continue;
        collective.in_place = in_place;
        for (const Algorithm algorithm : algorithms_for(collective.kind)) {
            collective.balanced_order = keeps_order(algorithm);
            const std::string missed = first_missed(collective, algorithm, tried);
            CHECK_MESSAGE(missed.empty(), algorithm_name(algorithm), " ",
                          kind_name(collective.kind), ", ", missed);
        }
    }
}

}  // namespace

TEST_CASE("every mutation of one step is found") {
    int tried = 0;
    for (int size = 2; size <= 6; size++) {
        for (const OpKind kind : {OpKind::all_reduce, OpKind::reduce, OpKind::broadcast}) {
            check(all_ranks(kind, size, 2 * size + 1, size / 2), &tried);
        }
        for (const OpKind kind :
             {OpKind::reduce_scatter, OpKind::all_gather, OpKind::gather, OpKind::scatter}) {
            Collective collective = all_ranks(kind, size, 0, size - 1);
            for (int i = 0; i < size; i++) collective.counts.push_back((i + 1) % 4);
            check(collective, &tried);
        }
        Collective collective = all_ranks(OpKind::all_to_all, size);
        for (int i = 0; i < size; i++) {
            collective.send_counts.emplace_back();
            for (int j = 0; j < size; j++) collective.send_counts.back().push_back((i + 2 * j) % 3);
        }
        check(collective, &tried);
    }
    CHECK(tried > 10000);
}
