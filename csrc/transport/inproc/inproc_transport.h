// Transport between threads of one process, each of them a rank. For notebooks and tests.
#pragma once

#include <memory>

#include "transport/transport.h"

namespace pycomm {

// Collective over `bootstrap`, whose ranks must all be threads of this process.
std::unique_ptr<Transport> make_inproc_transport(Bootstrap& bootstrap, int64_t buffer_bytes,
                                                 const Deadline& deadline);

}  // namespace pycomm
