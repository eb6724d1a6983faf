// Connects every pair of ranks with sockets, safely against strangers on the network.
//
//   1. all-gather: who shares a machine; rank 0's random token
//   2. all-gather: where each rank listens
//   3. the lower rank of a pair connects to the higher one and says hello: the token, both ranks,
//      what the socket is for; the higher rank checks that and answers
//
// All connections proceed at once in one poll loop.
#pragma once

#include <array>
#include <vector>

#include "store/socket.h"
#include "transport/tcp/tcp_transport.h"

namespace pycomm {

// The sockets to one peer: one for each Stream, then control.
inline constexpr int links_per_peer = stream_count + 1;
inline constexpr int control_link = stream_count;
using PeerLinks = std::array<UniqueFd, links_per_peer>;

// By rank; the entry of this rank stays empty. Errors as of make_tcp_transport.
std::vector<PeerLinks> connect_mesh(Bootstrap& bootstrap, const TcpOptions& options);

}  // namespace pycomm
