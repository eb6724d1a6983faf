// The TCP transport against the contract, and what only it does: interfaces, strangers, limits.
#include <doctest/doctest.h>
#include <poll.h>

#include "store/interfaces.h"
#include "store/little_endian.h"
#include "transport/tcp/fault_wire.h"
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

namespace {

using contract::check_threads;
using contract::expect;

contract::Kind with_options(const TcpOptions& options) {
    contract::Kind kind;
    kind.make = [options](Bootstrap& bootstrap) { return make_tcp_transport(bootstrap, options); };
    return kind;
}

// Lets a test see and use what the ranks tell each other.
class SpyBootstrap : public Bootstrap {
  public:
    using Hook = std::function<void(int call, const std::vector<std::string>& blobs)>;
    SpyBootstrap(Bootstrap& inner, Hook hook) : inner_(inner), hook_(std::move(hook)) {}

    int rank() const override { return inner_.rank(); }
    int size() const override { return inner_.size(); }
    std::vector<std::string> all_gather(const std::string& blob,
                                        const Deadline& deadline) override {
        auto blobs = inner_.all_gather(blob, deadline);
        hook_(++calls_, blobs);
        return blobs;
    }

  private:
    Bootstrap& inner_;
    Hook hook_;
    int calls_ = 0;
};

// Connects to a rank that is waiting for its peers and says `bytes`.
UniqueFd intrude(int port, const std::string& bytes) {
    int error = 0;
    UniqueFd fd = connect_to(numeric_address("127.0.0.1", port), Deadline::after(5), &error);
    expect(bool(fd), "a stranger cannot even connect: ", errno_text(error));
    expect(send_all(fd.get(), bytes.data(), bytes.size(), Deadline::after(5)) == IoResult::done,
           "a stranger cannot send");
    return fd;
}

// As the transport's own hello, for rank 1 from rank 0, with `token`.
std::string forged_hello(const std::string& token) {
    std::string bytes = "pycommTP";
    for (const uint32_t field : {1u, 0u, 1u, 0u}) put_u32(bytes, field);
    return bytes + token;
}

}  // namespace

TEST_CASE("an unknown interface is an error on its rank, and not a timeout on the others") {
    const auto start = Deadline::Clock::now();
    contract::Kind kind;
    kind.make = [](Bootstrap& bootstrap) {
        TcpOptions options;
        options.timeout = 20;
        if (bootstrap.rank() == 1) options.ifname = "nosuch0";
        return make_tcp_transport(bootstrap, options);
    };
    const auto errors = contract::run_threads(kind, 3, [](Transport&) {});
    const std::string own = errors[1];
    CHECK(own.find("PYCOMM_IFNAME=nosuch0") != std::string::npos);
    CHECK(own.find("lo (127.0.0.1)") != std::string::npos);
    for (const int other : {0, 2}) {
        const std::string& text = errors[static_cast<size_t>(other)];
        CHECK(text.find("rank 1 cannot be connected to") != std::string::npos);
        CHECK(text.find("nosuch0") != std::string::npos);
    }
    CHECK(Deadline::Clock::now() - start < std::chrono::seconds(5));
}

TEST_CASE("a given interface is used") {
    TcpOptions options;
    options.ifname = "lo";
    check_threads(with_options(options), 3,
                  [](Transport& transport) { contract::all_pairs(transport, {5, 70000}); });
}

TEST_CASE("ranks with different machine identities connect over advertised addresses") {
    // Every rank hears other identities than its own, as on different machines.
    contract::Kind kind;
    kind.make = [](Bootstrap& inner) {
        struct Foreign : Bootstrap {
            explicit Foreign(Bootstrap& real) : real(real) {}
            int rank() const override { return real.rank(); }
            int size() const override { return real.size(); }
            std::vector<std::string> all_gather(const std::string& blob,
                                                const Deadline& deadline) override {
                const bool first = calls++ == 0;
                return real.all_gather(first ? concat(blob, rank()) : blob, deadline);
            }
            Bootstrap& real;
            int calls = 0;
        } foreign(inner);
        TcpOptions options;
        options.store_host = "127.0.0.1";
        options.timeout = 20;
        return make_tcp_transport(foreign, options);
    };
    check_threads(kind, 3,
                  [](Transport& transport) { contract::all_pairs(transport, {5, 70000}); });
}

TEST_CASE("the smallest buffers work, smaller ones are an error that says how much is needed") {
    TcpOptions options;
    options.buffer_bytes = 4 * 4096;
    check_threads(with_options(options), 3, [](Transport& transport) {
        contract::all_pairs(transport, {1, 4095, 4096, 4097, 70000});
    });
    options.buffer_bytes -= 1;
    const auto errors = contract::run_threads(with_options(options), 3, [](Transport&) {});
    for (const std::string& text : errors) {
        CHECK(text.find("PYCOMM_BUFFER_BYTES=16383") != std::string::npos);
        CHECK(text.find("16384") != std::string::npos);
    }
}

TEST_CASE("strangers are turned away and do not disturb") {
    std::mutex mutex;
    std::vector<UniqueFd> strangers;
    contract::Kind kind;
    kind.make = [&](Bootstrap& inner) {
        SpyBootstrap spy(inner, [&](int call, const std::vector<std::string>& blobs) {
            if (call != 2 || inner.rank() != 0) return;
            const int port = std::atoi(blobs[1].c_str());
            const std::lock_guard lock(mutex);
            strangers.push_back(intrude(port, "GET / HTTP/1.1\r\n\r\n"));
            strangers.push_back(intrude(port, forged_hello(std::string(32, '0'))));
            strangers.push_back(intrude(port, std::string(100000, '\xff')));
            strangers.push_back(intrude(port, "pyco"));  // and then nothing more
        });
        TcpOptions options;
        options.timeout = 20;
        return make_tcp_transport(spy, options);
    };
    check_threads(kind, 2,
                  [](Transport& transport) { contract::all_pairs(transport, {5, 70000}); });
    REQUIRE(strangers.size() == 4);
    for (const UniqueFd& stranger : strangers) {
        char byte = 0;
        CHECK(recv_exact(stranger.get(), &byte, 1, Deadline::after(5)) == IoResult::closed);
    }
}

TEST_CASE("a rank that cannot be reached is named with its address") {
    contract::Kind kind;
    kind.make = [](Bootstrap& bootstrap) -> std::unique_ptr<Transport> {
        TcpOptions options;
        options.timeout = 1.0;
        if (bootstrap.rank() == 0) return make_tcp_transport(bootstrap, options);
        // Rank 1 claims to listen where nobody does.
        const auto blobs = bootstrap.all_gather("", Deadline::after(5));
        bootstrap.all_gather("1 127.0.0.1 127.0.0.1", Deadline::after(5));
        throw std::runtime_error("done");
    };
    const auto start = Deadline::Clock::now();
    const auto errors = contract::run_threads(kind, 2, [](Transport&) {});
    CHECK(Deadline::Clock::now() - start < std::chrono::milliseconds(2500));
    CHECK(errors[0].find("could not connect to rank 1 within 1 s") != std::string::npos);
    CHECK(errors[0].find("127.0.0.1:1: Connection refused") != std::string::npos);
}

TEST_CASE("a rank that does not come is named by the timeout") {
    const auto group = InprocGroup::create(3);
    TcpOptions options;
    options.timeout = 0.5;
    std::thread other([&] { CHECK_THROWS_AS(make_tcp_transport(*group[2], options), Error); });
    try {
        make_tcp_transport(*group[0], options);
        FAIL("no error");
    } catch (const Error& error) {
        CHECK(error.code() == ErrorCode::timeout);
        CHECK(error.ranks() == std::vector<int>{1});
    }
    other.join();
}

TEST_CASE("faults survive the wire, garbage does not pass for one") {
    const Fault fault{ErrorCode::mismatch, 3, {0, 7}, "text of the fault"};
    const std::string frame = encode_fault(fault);
    bool malformed = false;
    for (size_t length = 0; length < frame.size(); ++length) {
        std::string part = frame.substr(0, length);
        CHECK_FALSE(decode_fault(&part, &malformed));
        CHECK_FALSE(malformed);
    }
    std::string bytes = frame + frame.substr(0, 3);
    const auto decoded = decode_fault(&bytes, &malformed);
    REQUIRE(decoded);
    CHECK(decoded->code == fault.code);
    CHECK(decoded->reporter == 3);
    CHECK(decoded->ranks == fault.ranks);
    CHECK(decoded->text == fault.text);
    CHECK(bytes == frame.substr(0, 3));

    for (const size_t place : {size_t{0}, size_t{3}, size_t{4}, size_t{12}, size_t{15}}) {
        std::string broken = frame;
        broken[place] = '\x7f';
        if (place == 0) broken += std::string(200, 'x');
        const bool passed = decode_fault(&broken, &malformed).has_value();
        CHECK((malformed || (passed && place == 0)));
    }

    const Fault long_one{ErrorCode::timeout, 0, std::vector<int>(5000, 1),
                         std::string(1 << 20, 'y')};
    std::string cut = encode_fault(long_one);
    CHECK(cut.size() < 16384);
    CHECK(decode_fault(&cut, &malformed)->text.substr(0, 10) == "yyyyyyyyyy");
}

}  // namespace pycomm
