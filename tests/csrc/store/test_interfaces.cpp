// Names, addresses and interfaces of this machine.
#include "store/interfaces.h"
#include "store/store_contract.h"

namespace pycomm {
namespace {

using namespace store_test;

}  // namespace

TEST_CASE(
    "the loopback interface is there, an unknown one is an error that lists those there are") {
    CHECK(interface_address("lo") == "127.0.0.1");
    const Error error = error_of([] { interface_address("nosuch0"); });
    CHECK(error.code() == ErrorCode::argument);
    CHECK(holds(error.what(), "PYCOMM_IFNAME=nosuch0"));
    for (const Interface& entry : list_interfaces()) {
        CHECK(holds(error.what(), concat(entry.name, " (", entry.address.host(), ')')));
    }
}

TEST_CASE("advertised addresses: the interface given, else the one that reached the store first") {
    CHECK(advertised_addresses("lo", "10.1.2.3") == std::vector<std::string>{"127.0.0.1"});
    CHECK(advertised_addresses("", "10.1.2.3").front() == "10.1.2.3");
    const auto hosts = advertised_addresses("", "127.0.0.1");
    REQUIRE_FALSE(hosts.empty());
    for (size_t i = 0; i < hosts.size(); ++i) {
        // Loopback is of use elsewhere only when there is nothing else.
        const bool loopback = numeric_address(hosts[i], 0).loopback();
        CHECK((!loopback || hosts.size() == 1));
        for (size_t j = 0; j < i; ++j) CHECK(hosts[i] != hosts[j]);
    }
    CHECK(error_of([] { advertised_addresses("nosuch0", ""); }).code() == ErrorCode::argument);
}

TEST_CASE("names and numbers resolve; what does not is named") {
    const Deadline deadline = Deadline::after(20);
    CHECK(resolve("127.0.0.1", 80, deadline).front().text() == "127.0.0.1:80");
    CHECK(resolve("::1", 80, deadline).front().text() == "[::1]:80");
    CHECK(resolve("localhost", 80, deadline).front().loopback());
    // Whether or not the name service knows it.
    CHECK(resolve(own_hostname(), 80, deadline).front().port() == 80);
    const Error error = error_of([&] { resolve("no-such-host.invalid", 80, deadline); });
    CHECK(holds(error.what(), "'no-such-host.invalid'"));
    CHECK((error.code() == ErrorCode::transport || error.code() == ErrorCode::timeout));
    CHECK(error_of([&] { resolve("", 80, deadline); }).code() == ErrorCode::argument);
    CHECK(error_of([] { numeric_address("localhost", 80); }).code() == ErrorCode::argument);
}

TEST_CASE("texts of hosts and ports") {
    CHECK(host_port("node1", 5) == "node1:5");
    CHECK(host_port("fe80::1", 5) == "[fe80::1]:5");
    CHECK(network_identity() == network_identity());
    CHECK(network_identity().find(' ') == std::string::npos);
}

}  // namespace pycomm
