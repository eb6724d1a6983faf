// getifaddrs, and the order of preference among its results.
#include "store/interfaces.h"

#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <memory>

#include "base/error.h"

namespace pycomm {
namespace {

// Link-local IPv6 addresses need the interface of the other side and are of no use to it.
bool link_local(const Address& address) {
    return address.family() == AF_INET6 &&
           IN6_IS_ADDR_LINKLOCAL(
               &reinterpret_cast<const sockaddr_in6*>(&address.storage)->sin6_addr);
}

std::string describe(const std::vector<Interface>& interfaces) {
    std::string text;
    for (const Interface& entry : interfaces) {
        text += concat(text.empty() ? "" : ", ", entry.name, " (", entry.address.host(), ')');
    }
    return text.empty() ? "none with an IP address" : text;
}

void add_once(std::vector<std::string>* hosts, const std::string& host) {
    if (std::find(hosts->begin(), hosts->end(), host) == hosts->end()) hosts->push_back(host);
}

// A peer on another machine cannot use loopback or wildcard addresses.
bool useful_elsewhere(const Address& address) {
    return !address.loopback() && !address.wildcard() && !link_local(address);
}

void add_resolved_hostname(std::vector<std::string>* hosts) {
    try {
        for (const Address& address : resolve(own_hostname(), 0, Deadline::after(5))) {
            if (useful_elsewhere(address)) add_once(hosts, address.host());
        }
    } catch (const Error&) {
        // A machine whose name nobody knows is reached through its interfaces.
    }
}

}  // namespace

std::vector<Interface> list_interfaces() {
    ifaddrs* list = nullptr;
    PYCOMM_CHECK_SYSCALL(::getifaddrs(&list), "getifaddrs");
    const std::unique_ptr<ifaddrs, decltype(&::freeifaddrs)> owner(list, &::freeifaddrs);
    std::vector<Interface> interfaces;
    for (const ifaddrs* entry = list; entry != nullptr; entry = entry->ifa_next) {
        if (entry->ifa_addr == nullptr || (entry->ifa_flags & IFF_UP) == 0) continue;
        const int family = entry->ifa_addr->sa_family;
        if (family != AF_INET && family != AF_INET6) continue;
        Interface found;
        found.name = entry->ifa_name;
        found.address.length = family == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6);
        std::memcpy(&found.address.storage, entry->ifa_addr, found.address.length);
        interfaces.push_back(found);
    }
    return interfaces;
}

std::string interface_address(const std::string& name) {
    const std::vector<Interface> interfaces = list_interfaces();
    for (const int family : {AF_INET, AF_INET6}) {
        for (const Interface& entry : interfaces) {
            const bool right = entry.name == name && entry.address.family() == family;
            if (right && !link_local(entry.address)) return entry.address.host();
        }
    }
    PYCOMM_FAIL(argument, "PYCOMM_IFNAME=", name,
                ": no such network interface is up with an IP address;", " this machine has ",
                describe(interfaces));
}

std::vector<std::string> advertised_addresses(const std::string& ifname,
                                              const std::string& store_host) {
    if (!ifname.empty()) return {interface_address(ifname)};
    std::vector<std::string> hosts;
    if (!store_host.empty() && useful_elsewhere(numeric_address(store_host, 0))) {
        hosts.push_back(store_host);
    }
    add_resolved_hostname(&hosts);
    for (const int family : {AF_INET, AF_INET6}) {
        for (const Interface& entry : list_interfaces()) {
            const bool right = entry.address.family() == family && useful_elsewhere(entry.address);
            if (right) add_once(&hosts, entry.address.host());
        }
    }
    if (hosts.empty()) hosts.push_back("127.0.0.1");
    return hosts;
}

std::string network_identity() {
    std::string boot;
    std::ifstream("/proc/sys/kernel/random/boot_id") >> boot;
    struct stat network{};
    const bool known = ::stat("/proc/self/ns/net", &network) == 0;
    return concat(boot, '/', own_hostname(), '/', known ? network.st_ino : 0);
}

}  // namespace pycomm
