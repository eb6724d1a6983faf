// Making a transport by name. The one place that knows which kinds were built in.
#pragma once

#include <memory>
#include <string>

#include "base/env.h"
#include "transport/transport.h"

namespace pycomm {

// `kind` is "inproc", "shm" or "tcp". Collective over `bootstrap`; all ranks fail alike.
std::unique_ptr<Transport> make_transport(const std::string& kind, Bootstrap& bootstrap,
                                          const Env& env, const Deadline& deadline);

}  // namespace pycomm
