// Collective algorithms: pure functions from (rank, size, counts) to a Schedule, and the choice
// among them.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/types.h"
#include "schedule/schedule.h"

namespace pycomm {

// clang-format off
// X(enumerator, name in PYCOMM_ALGO)
#define PYCOMM_ALGORITHM_LIST(X)                                                      \
    X(automatic,          "auto")               X(ring, "ring")                       \
    X(tree,               "tree")               X(pairwise, "pairwise")               \
    X(recursive_doubling, "recursive_doubling") X(dissemination, "dissemination")     \
    X(linear,             "linear")             X(direct, "direct")                   \
    X(recursive_halving,  "recursive_halving")
// clang-format on

enum class Algorithm : uint8_t {
#define PYCOMM_ENUM(name, text) name,
    PYCOMM_ALGORITHM_LIST(PYCOMM_ENUM)
#undef PYCOMM_ENUM
};
const char* algorithm_name(Algorithm algorithm);

// What a collective is asked to do, as far as the schedule depends on it. Counts are elements.
struct Problem {
    OpKind kind = OpKind::none;
    int rank = 0;
    int size = 1;
    int root = 0;
    size_t element_size = 4;
    // all_reduce, broadcast, reduce: the count of the buffer.
    int64_t count = 0;
    // reduce_scatter, all_gather, gather, scatter: the count of each rank's slice, size entries.
    // The long buffer (input of reduce_scatter and of scatter at the root, output of all_gather and
    // of gather at the root) holds the slices one after the other in rank order.
    std::vector<int64_t> counts;
    // all_to_all: how many elements go to and come from each rank; slices lie in rank order.
    std::vector<int64_t> send_counts;
    std::vector<int64_t> recv_counts;
    // Input and output are the same memory (all_reduce, reduce, broadcast). For all_gather: the
    // input is this rank's slice of the output; for reduce_scatter: the output is this rank's slice
    // of the input. gather and scatter: the same at the root, nothing on other ranks. Not possible
    // for all_to_all.
    bool in_place = false;
};

// Buffer conventions of the schedules:
//   all_reduce      input[count] -> output[count] on every rank
//   reduce          input[count] -> output[count] at root (other ranks have no output; use scratch)
//   broadcast       output[count]: at root it already holds the data (input is not used)
//   reduce_scatter  input[sum(counts)] -> output[counts[rank]]
//   all_gather      input[counts[rank]] -> output[sum(counts)]
//   gather          input[counts[rank]] -> output[sum(counts)] at root
//   scatter         input[sum(counts)] at root -> output[counts[rank]]
//   all_to_all      input[sum(send_counts)] -> output[sum(recv_counts)]
//   barrier         no buffers; executors send no messages of zero elements, so each message of a
//                   barrier is one scratch element, of any value
// When in_place is set, input and output denote the same memory and a schedule must not read an
// input element after it was overwritten through output.

// Builds the schedule of `problem` with `algorithm` (not automatic, not direct).
// Throws ArgumentError when the algorithm does not exist for that kind.
Schedule build_schedule(const Problem& problem, Algorithm algorithm);

// The algorithms that build_schedule knows for a kind.
std::vector<Algorithm> algorithms_for(OpKind kind);

// Whether results are added up in the order of the tree of reduce.h, like those of every algorithm
// that may be chosen without being asked for. True for what adds up nothing.
bool keeps_order(OpKind kind, Algorithm algorithm);

struct Threshold;

// The operation and the algorithm of these names. Throws ArgumentError when one is unknown, or the
// operation has no such algorithm.
std::pair<OpKind, Algorithm> parse_choice(std::string_view operation, std::string_view algorithm);

// Chooses: the forced algorithm when `forced` (the text of PYCOMM_ALGO, for example
// "all_reduce:ring,broadcast:tree") names one for this kind, else by thresholds: those of a
// profile, when it has some for this kind, or the built-in ones. Must give the same answer on every
// rank: depends only on what all ranks know alike.
Algorithm select_algorithm(const Problem& problem, const std::string& forced,
                           std::span<const Threshold> profile = {});
// The same by the rows of a profile alone; automatic when it has none for the kind.
Algorithm profile_algorithm(OpKind kind, int64_t bytes, std::span<const Threshold> profile);

// What `forced` names for a kind, automatic when nothing.
Algorithm forced_algorithm(OpKind kind, const std::string& forced);

// Throws ArgumentError that lists the known operations and algorithms when `forced` cannot be
// parsed.
void check_forced(const std::string& forced);

}  // namespace pycomm
