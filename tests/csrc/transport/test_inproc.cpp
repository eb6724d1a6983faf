// The transport between threads of one process against the contract.
#include "transport/inproc/inproc_transport.h"
#include "transport/transport_contract.h"

namespace pycomm {

contract::Kind contract::contract_kind() {
    contract::Kind kind;
    kind.make = [](Bootstrap& bootstrap) {
        return make_inproc_transport(bootstrap, 8 << 20, Deadline::after(30));
    };
    kind.processes = false;
    kind.max_in_flight = 8 << 20;
    return kind;
}

}  // namespace pycomm
