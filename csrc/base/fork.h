// Recognising a process made by fork, in which other threads, and the job's trust in this process,
// are missing.
#pragma once

#include <cstdint>

namespace pycomm {

// Grows in the child of every fork, counted from the first call. Objects compare it with what it
// was when they were made. Costs no system call.
uint64_t fork_generation();

}  // namespace pycomm
