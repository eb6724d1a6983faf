// Which ranks share a node, and whether all ranks were set up alike; found out once per
// communicator.
#pragma once

#include <string>
#include <vector>

#include "base/env.h"
#include "store/store.h"

namespace pycomm {

struct Topology {
    int node = 0;
    int num_nodes = 1;
    int local_rank = 0;
    int local_size = 1;
    bool one_process = false;  // all ranks are threads of this process
    int cores = 1;             // that this node's ranks may use, all together
};

// Collective. Throws ArgumentError naming both ranks when their PYCOMM_* settings differ, or their
// versions of the library cannot talk to each other.
Topology discover_topology(Bootstrap& bootstrap, const Env& env, const Deadline& deadline);

}  // namespace pycomm
