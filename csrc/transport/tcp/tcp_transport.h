// Transport over TCP sockets, within a machine and between machines.
//
//   per peer:  one socket for each Stream      Channel
//              one socket for control          faults; its end is the end of the peer
//
// Sockets are non-blocking and belong to the thread that drives the transport; there is no thread
// of its own. Sleeping is epoll in edge-triggered mode, so that data which nobody wants yet (a
// message without its receive) wakes nobody twice.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "store/store.h"
#include "transport/transport.h"

namespace pycomm {

struct TcpOptions {
    std::string ifname;              // network interface to use; empty: chosen
    int64_t buffer_bytes = 8 << 20;  // of receive buffers in this process, all peers together
    double timeout = 300;            // seconds, for connecting all ranks
    std::string store_host;          // numeric address that reached the store; may be empty
};

// Collective over `bootstrap`. Ranks on one machine use 127.0.0.1 unless an interface is given.
// Connections carry a random token of this group, so strangers that connect are turned away. Throws
// ArgumentError for an unknown interface or too small buffers, CommTimeoutError with the ranks that
// no connection was made with and what each attempt met, TransportError when the system refuses.
//
// The destructor waits up to 2 s until the peers' systems have all bytes that try_send took.
std::unique_ptr<Transport> make_tcp_transport(Bootstrap& bootstrap, const TcpOptions& options);

}  // namespace pycomm
