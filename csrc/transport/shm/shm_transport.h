// Transport between the processes of one node, over a shared memfd.
#pragma once

#include <memory>
#include <string>

#include "transport/transport.h"

namespace pycomm {

// Collective over `bootstrap`, whose ranks must all be on this node and in one pid namespace.
// Throws TransportError, the same on all ranks, when shared memory cannot be had. `cma` is
// PYCOMM_CMA.
std::unique_ptr<Transport> make_shm_transport(Bootstrap& bootstrap, int64_t buffer_bytes,
                                              const std::string& cma, const Deadline& deadline);

}  // namespace pycomm
