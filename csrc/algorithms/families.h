// The algorithms, one function each; select.cpp holds their table. What each does, and what it
// costs, is told at the head of its family's file.
#pragma once

#include "algorithms/algorithms.h"
#include "schedule/schedule.h"

namespace pycomm {

// ring.cpp
Schedule ring_all_reduce(const Problem& problem);
Schedule ring_reduce_scatter(const Problem& problem);
Schedule ring_all_gather(const Problem& problem);
// pairwise.cpp
Schedule pairwise_all_reduce(const Problem& problem);
Schedule pairwise_reduce_scatter(const Problem& problem);
Schedule pairwise_all_gather(const Problem& problem);
Schedule pairwise_reduce(const Problem& problem);
Schedule pairwise_all_to_all(const Problem& problem);
// recursive_doubling.cpp
Schedule recursive_doubling_all_reduce(const Problem& problem);
Schedule recursive_doubling_all_gather(const Problem& problem);
// recursive_halving.cpp
Schedule recursive_halving_all_reduce(const Problem& problem);
// tree.cpp
Schedule tree_broadcast(const Problem& problem);
Schedule tree_reduce(const Problem& problem);
// linear.cpp
Schedule linear_broadcast(const Problem& problem);
Schedule linear_reduce(const Problem& problem);
Schedule linear_gather(const Problem& problem);
Schedule linear_scatter(const Problem& problem);
// dissemination.cpp
Schedule dissemination_barrier(const Problem& problem);

}  // namespace pycomm
