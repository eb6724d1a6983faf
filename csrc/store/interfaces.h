// The network addresses of this machine, and which of them to tell to peers.
#pragma once

#include <string>
#include <vector>

#include "store/socket.h"

namespace pycomm {

struct Interface {
    std::string name;
    Address address;  // port 0
};

// Every IPv4 and IPv6 address of the interfaces that are up, in the kernel's order.
std::vector<Interface> list_interfaces();

// The numeric address of the interface called `name`, IPv4 before IPv6. Throws ArgumentError that
// lists the interfaces there are.
std::string interface_address(const std::string& name);

// The addresses under which peers on other machines may reach this one, the likeliest first: the
// one of the interface called `ifname` and no other when it is not empty; else the one that reached
// the store (`store_host`, may be empty), what this machine's hostname resolves to, every other
// address, and 127.0.0.1 when there is none.
std::vector<std::string> advertised_addresses(const std::string& ifname,
                                              const std::string& store_host);

// Equal for two processes exactly when they share a kernel and a network namespace, so that one
// reaches the other on 127.0.0.1.
std::string network_identity();

}  // namespace pycomm
