// Ranks without a launcher: processes or threads of this program.
#pragma once

#include <functional>

#include "store/store.h"

namespace pycomm::tools {

// Takes its place in the job and returns an exit code.
using RankBody = std::function<int(Bootstrap&)>;

// Both return the highest exit code of the ranks. Processes are forked, so no thread may run yet;
// they end with this process, and within seconds of one that failed.
int launch_processes(int ranks, const RankBody& body);
int launch_threads(int ranks, const RankBody& body);

}  // namespace pycomm::tools
