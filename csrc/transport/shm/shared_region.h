// Memory shared by processes of one node: a memfd that rank 0 creates and passes to the others over
// a Unix socket. It has no name, so nothing can clash and nothing is left behind.
#pragma once

#include <memory>

#include "transport/transport.h"

namespace pycomm {

// Collective over `bootstrap`; the ranks must be processes or threads of one node. The pages are
// reserved before this returns, so that a full memory is an error here and not a signal later.
// Throws TransportError, the same on all ranks, saying how much was wanted and how much is free.
std::shared_ptr<Region> make_shared_region(Bootstrap& bootstrap, size_t bytes,
                                           const Deadline& deadline);

// Bytes of memory that this process may still take: the least of the machine's available memory,
// the limits of its control groups and RLIMIT_FSIZE. `source` names the one that is the least.
struct FreeMemory {
    uint64_t bytes;
    const char* source;
};
FreeMemory free_shared_memory();

}  // namespace pycomm
