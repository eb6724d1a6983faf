// Copies between arrays of different processes by the operating system.
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

#include "transport/transport.h"

namespace pycomm {

// False, with errno set, when the system refused or the memory is not there in the whole.
bool read_process(pid_t process, uint64_t address, void* to, size_t bytes);
// `target` is in memory that its owner may change until the copy begins; it then fails.
bool write_process(pid_t process, const HandoverLine::Target& target, const void* from,
                   size_t bytes);

// Whether every rank may copy to and from the memory of every other, found out by trying, on lines
// of `transport`, which all ranks have mapped. `wanted` is PYCOMM_CMA, the same on all ranks.
// Collective.
OneCopy try_one_copy(Bootstrap& bootstrap, Transport& transport, const std::string& wanted,
                     const std::vector<pid_t>& processes, const Deadline& deadline);

}  // namespace pycomm
