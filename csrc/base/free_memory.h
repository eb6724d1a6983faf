// How much memory this process may still take.
#pragma once

#include <cstdint>
#include <string>

namespace pycomm {

// The least of the machine's available memory, the limits of its control groups and RLIMIT_FSIZE;
// `source` names the one that is the least.
struct FreeMemory {
    uint64_t bytes;
    const char* source;
};
FreeMemory free_memory();

// Free memory of which several ranks of this machine take the same amount at the same time. It has
// to be looked at before any of them takes its part.
struct SharedOut {
    FreeMemory free;
    uint64_t ranks = 1;

    bool allows(uint64_t bytes) const { return bytes < free.bytes / ranks; }
};

// "12 MiB", rounded up.
std::string mebibytes(uint64_t bytes);
// "wanted 12 MiB of shared memory, free are 3 MiB (control group)".
std::string wanted_and_free(uint64_t wanted, const FreeMemory& free);
// "wanted 12 MiB of shared memory on each of 4 ranks, free are 30 MiB (control group)".
std::string wanted_and_free(uint64_t wanted, const SharedOut& shared);

}  // namespace pycomm
