// The table of transports.
#include "transport/registry.h"

#include <chrono>

#include "transport/inproc/inproc_transport.h"
#include "transport/shm/shm_transport.h"
#include "transport/tcp/tcp_transport.h"

namespace pycomm {

std::unique_ptr<Transport> make_transport(const std::string& kind, Bootstrap& bootstrap,
                                          const Env& env, const Deadline& deadline) {
    if (kind == "inproc") return make_inproc_transport(bootstrap, env.buffer_bytes, deadline);
    if (kind == "shm") {
        return make_shm_transport(bootstrap, env.buffer_bytes, env.cma, deadline);
    }
    if (kind == "tcp") {
        TcpOptions options;
        options.ifname = env.interface;
        options.buffer_bytes = env.buffer_bytes;
        options.timeout = std::chrono::duration<double>(deadline.remaining()).count();
        return make_tcp_transport(bootstrap, options);
    }
    PYCOMM_FAIL(argument, "transport ", kind, " is not built in");
}

}  // namespace pycomm
