// The TCP transport against the contract, and what only it does: interfaces, strangers, limits.
#include <doctest/doctest.h>

#include "store/interfaces.h"
#include "transport/tcp/tcp_transport.h"
#include "transport/transport_contract.h"

namespace pycomm {

contract::Kind contract::contract_kind() {
    contract::Kind kind;
    kind.make = [](Bootstrap& bootstrap) { return make_tcp_transport(bootstrap, TcpOptions{}); };
    // The kernel sizes the sockets' buffers: at most tcp_wmem + tcp_rmem, some MiB each.
    kind.max_in_flight = 64 << 20;
    return kind;
}

}  // namespace pycomm
