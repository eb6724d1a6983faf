// Problems for the algorithm tests, and the simulator's verdict on an algorithm.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "algorithms/algorithms.h"
#include "base/error.h"
#include "schedule/simulator.h"

namespace pycomm::testing {

// The ring alone reduces in another order than the balanced tree.
inline bool keeps_order(Algorithm algorithm) {
    return algorithm != Algorithm::ring;
}

inline Collective all_ranks(OpKind kind, int size, int64_t count = 0, int root = 0) {
    Collective collective;
    collective.kind = kind;
    collective.size = size;
    collective.count = count;
    collective.root = root;
    return collective;
}

inline Problem of_rank(const Collective& collective, int rank, size_t element_size) {
    Problem problem;
    problem.kind = collective.kind;
    problem.rank = rank;
    problem.size = collective.size;
    problem.root = collective.root;
    problem.element_size = element_size;
    problem.count = collective.count;
    problem.counts = collective.counts;
    problem.in_place = collective.in_place;
    if (collective.kind == OpKind::all_to_all) {
        problem.send_counts = collective.send_counts[static_cast<size_t>(rank)];
        for (const auto& row : collective.send_counts) {
            problem.recv_counts.push_back(row[static_cast<size_t>(rank)]);
        }
    }
    return problem;
}

inline std::vector<Schedule> build_all(const Collective& collective, Algorithm algorithm,
                                       size_t element_size) {
    std::vector<Schedule> schedules;
    for (int rank = 0; rank < collective.size; rank++) {
        schedules.push_back(build_schedule(of_rank(collective, rank, element_size), algorithm));
    }
    return schedules;
}

// Empty when `algorithm` is right, else the fault and what was tried.
inline std::string verdict(Collective collective, Algorithm algorithm, size_t element_size = 4) {
    collective.balanced_order = keeps_order(algorithm);
    const std::string fault = simulate(build_all(collective, algorithm, element_size), collective);
    if (fault.empty()) return fault;
    std::string counts;
    for (const int64_t count : collective.counts) counts += concat(" ", count);
    return concat(algorithm_name(algorithm), " ", kind_name(collective.kind), ", ", collective.size,
                  " ranks, root ", collective.root, ", count ", collective.count, ", counts",
                  counts, collective.in_place ? ", in place: " : ": ", fault);
}

// 0, 1, 2, size - 1, size, size + 1, 63, 64, 65, 1000, each once.
inline std::vector<int64_t> awkward_counts(int size) {
    std::vector<int64_t> counts = {0, 1, 2, size - 1, size, size + 1, 63, 64, 65, 1000};
    std::sort(counts.begin(), counts.end());
    counts.erase(std::unique(counts.begin(), counts.end()), counts.end());
    return counts;
}

// Slices: as array_split makes them, unequal ones with zeros among them, all with one rank.
inline std::vector<std::vector<int64_t>> awkward_slices(int size) {
    std::vector<std::vector<int64_t>> all;
    const auto add = [&](auto count_of) {
        std::vector<int64_t> counts;
        for (int i = 0; i < size; i++) counts.push_back(count_of(i));
        all.push_back(counts);
    };
    for (const int64_t total : awkward_counts(size)) {
        add([&](int i) { return slice_count(total, size, i); });
    }
    add([](int i) { return i * 7 % 5; });
    add([](int i) { return i % 2 == 0 ? 0 : 10 + i; });
    add([&](int i) { return i == size - 1 ? 65 : 0; });
    add([&](int i) { return i == size / 2 ? 0 : 3; });
    return all;
}

// All roots of few ranks, some of many.
inline std::vector<int> roots(int size) {
    std::vector<int> all;
    for (int root = 0; root < size; root++) {
        const int last = size - 1;
        if (size <= 17 || root < 2 || root == size / 2 || root >= last) all.push_back(root);
    }
    return all;
}

}  // namespace pycomm::testing
