// The TCP store: finding it, its failures, and clients that misbehave.
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>

#include "store/bootstrap.h"
#include "store/interfaces.h"
#include "store/store_contract.h"
#include "store/tcp_store.h"
#include "store/tcp_store_protocol.h"

namespace pycomm {
namespace {

using namespace store_test;
using namespace store_protocol;

std::shared_ptr<TcpStoreClient> client_of(int port, double seconds = 10,
                                          const std::string& token = "") {
    return std::make_shared<TcpStoreClient>("127.0.0.1", std::vector<int>{port},
                                            Deadline::after(seconds), token);
}

std::string greeting(const std::string& token = "") {
    std::string bytes(magic);
    put_u32(bytes, version);
    put_u32(bytes, static_cast<uint32_t>(token.size()));
    return bytes + token + std::string(hello_end);
}

UniqueFd raw_connection(int port, const std::string& bytes) {
    int error = 0;
    UniqueFd fd = connect_to(numeric_address("127.0.0.1", port), Deadline::after(5), &error);
    REQUIRE(fd);
    CHECK(send_all(fd.get(), bytes.data(), bytes.size(), Deadline::after(5)) == IoResult::done);
    return fd;
}

bool was_closed(const UniqueFd& fd) {
    char byte = 0;
    const Deadline deadline = Deadline::after(5);
    IoResult result = IoResult::done;
    while (result == IoResult::done) result = recv_exact(fd.get(), &byte, 1, deadline);
    return result == IoResult::closed;
}

// Another program on a port: says `answer` to every connection, and closes it unless told to hold
// it.
class Stranger {
  public:
    explicit Stranger(std::string answer, bool hold = false)
        : answer_(std::move(answer)), hold_(hold), listener_(listen_on("127.0.0.1", 0)) {
        thread_ = std::thread([this] { run(); });
    }
    ~Stranger() {
        stop_ = true;
        thread_.join();
    }
    int port() const { return local_address(listener_.get()).port(); }

  private:
    void run() {
        std::vector<UniqueFd> held;
        while (!stop_) {
            if (!wait_ready(listener_.get(), POLLIN, Deadline::after(0.02))) continue;
            UniqueFd fd(::accept4(listener_.get(), nullptr, nullptr, SOCK_NONBLOCK));
            if (!fd) continue;
            char hello[20];
            recv_exact(fd.get(), hello, sizeof(hello), Deadline::after(1));
            send_all(fd.get(), answer_.data(), answer_.size(), Deadline::after(1));
            if (hold_) held.push_back(std::move(fd));
        }
    }

    std::string answer_;
    bool hold_;
    UniqueFd listener_;
    std::atomic<bool> stop_{false};
    std::thread thread_;
};

// Some containers have no IPv6.
bool has_ipv6_loopback() {
    for (const Interface& entry : list_interfaces()) {
        if (entry.address.host() == "::1") return true;
    }
    return false;
}

}  // namespace

TEST_CASE("tcp store") {
    TcpStoreServer server("127.0.0.1", 0);
    const Open open = [&] { return client_of(server.port()); };
    SUBCASE("values") {
        check_values(open);
    }
    SUBCASE("waiting") {
        check_waiting(open);
    }
    SUBCASE("threads") {
        check_threads(open);
    }
}

TEST_CASE("tcp store: addresses of both families, names, this machine's own name") {
    TcpStoreServer everywhere("", 0);
    std::vector<std::string> hosts = {"127.0.0.1", "localhost", own_hostname()};
    if (has_ipv6_loopback()) hosts.push_back("::1");
    for (const std::string& host : hosts) {
        CAPTURE(host);
        TcpStoreClient client(host, {everywhere.port()}, Deadline::after(10));
        client.set(host, "yes");
        CHECK(client.contains(host));
        CHECK(client.port() == everywhere.port());
        CHECK_NOTHROW(numeric_address(client.local_host(), 0));
    }
    if (!has_ipv6_loopback()) return;
    TcpStoreServer six("::1", 0);
    CHECK(TcpStoreClient("::1", {six.port()}, Deadline::after(10)).local_host() == "::1");
}

TEST_CASE("tcp store: a taken port is named, two servers with port 0 live side by side") {
    TcpStoreServer first("127.0.0.1", 0);
    TcpStoreServer second("127.0.0.1", 0);
    CHECK(first.port() != second.port());
    const Error error = error_of([&] { TcpStoreServer third("127.0.0.1", first.port()); });
    CHECK(error.code() == ErrorCode::transport);
    CHECK(holds(error.what(), concat("127.0.0.1:", first.port())));
    CHECK(holds(error.what(), "in use"));
    CHECK(error_of([&] { TcpStoreServer everywhere("", first.port()); }).code() ==
          ErrorCode::transport);
    CHECK(error_of([] { TcpStoreServer bad("127.0.0.1", 70000); }).code() == ErrorCode::argument);
    // The port is free again at once.
    const int port = first.port();
    client_of(port)->set("a", "b");
    first.close();
    TcpStoreServer again("127.0.0.1", port);
    CHECK_FALSE(client_of(port)->contains("a"));
}

TEST_CASE("tcp store: the server may start later, on any of the ports") {
    int port = 0;
    {
        TcpStoreServer reserve("127.0.0.1", 0);
        port = reserve.port();
    }
    Stranger stranger("HTTP/1.1 400 Bad Request\r\n\r\n");
    std::unique_ptr<TcpStoreServer> server;
    std::thread later([&] {
        std::this_thread::sleep_for(std::chrono::milliseconds(1500));
        server = std::make_unique<TcpStoreServer>("127.0.0.1", port);
    });
    TcpStoreClient client("127.0.0.1", {stranger.port(), port}, Deadline::after(20));
    later.join();
    CHECK(client.port() == port);
}

TEST_CASE("tcp store: no server by the deadline") {
    int port = 0;
    {
        TcpStoreServer reserve("127.0.0.1", 0);
        port = reserve.port();
    }
    Error error(ErrorCode::comm, "");
    const double waited = seconds_of([&] { error = error_of([&] { client_of(port, 0.5); }); });
    CHECK(error.code() == ErrorCode::timeout);
    CHECK(holds(error.what(), concat("127.0.0.1:", port)));
    CHECK(holds(error.what(), "Connection refused"));
    CHECK(waited >= 0.5);
    CHECK(waited < 2);
    CHECK(holds(error_of([&] {
                    TcpStoreClient("no-such-host.invalid", {port}, Deadline::after(1));
                }).what(),
                "'no-such-host.invalid'"));
    CHECK(error_of([] { TcpStoreClient("127.0.0.1", {}, Deadline::after(1)); }).code() ==
          ErrorCode::argument);
    CHECK(error_of([] { TcpStoreClient("127.0.0.1", {0}, Deadline::after(1)); }).code() ==
          ErrorCode::argument);
}

TEST_CASE("tcp store: strangers on the port are recognised long before the deadline") {
    struct Case {
        const char* answer;
        const char* named;
    };
    for (const Case& entry : {Case{"HTTP/1.1 400 Bad Request\r\n\r\n", "an HTTP server"},
                              Case{"-ERR unknown command\r\n", "a Redis server"},
                              Case{"SSH-2.0-OpenSSH\r\n", "an SSH server"},
                              Case{"\x01\x02 something else entirely", "another program"},
                              Case{"", "closed the connection without an answer"}}) {
        CAPTURE(entry.answer);
        Stranger stranger(entry.answer);
        Error error(ErrorCode::comm, "");
        const double waited =
            seconds_of([&] { error = error_of([&] { client_of(stranger.port(), 30); }); });
        CHECK(error.code() == ErrorCode::transport);
        CHECK(holds(error.what(), concat("127.0.0.1:", stranger.port())));
        CHECK_MESSAGE(holds(error.what(), entry.named), error.what());
        CHECK(waited < 5);
    }
    // One that accepts and stays silent is a matter for the deadline.
    Stranger silent("", true);
    const Error error = error_of([&] { client_of(silent.port(), 0.5); });
    CHECK(error.code() == ErrorCode::timeout);
    CHECK(holds(error.what(), "no store answered"));
}

TEST_CASE("tcp store: versions and tokens keep jobs apart") {
    std::string newer(magic);
    put_u32(newer, version + 1);
    put_u32(newer, wrong_version);
    Stranger other_version(newer);
    const Error version_error = error_of([&] { client_of(other_version.port(), 30); });
    CHECK(holds(version_error.what(), concat("version ", version + 1)));

    TcpStoreServer server("127.0.0.1", 0, "job one");
    client_of(server.port(), 10, "job one")->set("key", "value");
    const Error error = error_of([&] { client_of(server.port(), 30, "job two"); });
    CHECK(error.code() == ErrorCode::transport);
    CHECK(holds(error.what(), "another job"));
    CHECK(error_of([&] { client_of(server.port(), 1, std::string(257, 't')); }).code() ==
          ErrorCode::argument);
}

TEST_CASE("tcp store: clients that misbehave are dropped and hurt nobody") {
    TcpStoreServer server("127.0.0.1", 0);
    const auto good = client_of(server.port());
    const auto request = [](uint32_t length, char operation, uint32_t key_length) {
        std::string bytes;
        put_u32(bytes, length);
        bytes += operation;
        put_u32(bytes, key_length);
        return bytes;
    };
    const std::string hello = greeting();
    const std::vector<std::string> bad = {
        "GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        std::string(100000, '\xff'),
        std::string(magic) + std::string("\x01\x00\x00\x00\xff\xff\xff\xff", 8),  // token of 4 GiB
        hello + request(0xffffffff, op_set, 1),
        hello + request(0x7fffffff, op_set, 1),
        hello + request(4, op_get, 0),
        hello + request(6, op_get, 0xffffffff),
        hello + request(6, op_get, 2),  // a key longer than its request
        hello + request(5, 77, 0),
        hello + request(70000, op_get, 66000),
    };
    for (size_t i = 0; i < bad.size(); ++i) {
        CAPTURE(i);
        CHECK(was_closed(raw_connection(server.port(), bad[i])));
    }
    // A length that is allowed, and then nothing: memory is not given before the bytes come.
    std::vector<UniqueFd> waiting;
    for (int i = 0; i < 100; ++i) {
        waiting.push_back(raw_connection(server.port(), hello + request(60 << 20, op_set, 1)));
    }
    // Connections that say nothing, vanish while they wait for a key, or leave without reading.
    for (int i = 0; i < 50; ++i) waiting.push_back(raw_connection(server.port(), ""));
    good->set("big", std::string(8 << 20, 'b'));
    for (int i = 0; i < 20; ++i) {
        raw_connection(server.port(), hello + request(9, op_get, 4) + "gone");
        raw_connection(server.port(), hello + request(8, op_get, 3) + "big");
    }
    good->set("gone", "x");
    CHECK(good->get("gone", Deadline::after(10)) == "x");
    CHECK(client_of(server.port())->get("big", Deadline::after(10)).size() == 8 << 20);
    CHECK(error_of([&] { good->set(std::string(max_key + 1, 'k'), ""); }).code() ==
          ErrorCode::argument);
    CHECK(error_of([&] { good->set("k", std::string(max_value + 1, 'v')); }).code() ==
          ErrorCode::argument);
}

TEST_CASE("tcp store: a request in single bytes is understood") {
    TcpStoreServer server("127.0.0.1", 0);
    const auto good = client_of(server.port());
    good->set("key", "value");
    std::string bytes = greeting();
    put_u32(bytes, 8);
    bytes += static_cast<char>(op_get);
    put_u32(bytes, 3);
    bytes += "key";
    const UniqueFd fd = raw_connection(server.port(), "");
    set_no_delay(fd.get());
    for (const char byte : bytes) {
        REQUIRE(send_all(fd.get(), &byte, 1, Deadline::after(5)) == IoResult::done);
    }
    char answer[answer_bytes + reply_head + 5];
    REQUIRE(recv_exact(fd.get(), answer, sizeof(answer), Deadline::after(5)) == IoResult::done);
    CHECK(std::string(answer + answer_bytes + reply_head, 5) == "value");
}

TEST_CASE("tcp store: clients that wait are told within a second when the server ends") {
    auto server = std::make_unique<TcpStoreServer>("127.0.0.1", 0);
    const int port = server->port();
    const auto client = client_of(port);
    Error error(ErrorCode::comm, "");
    std::thread waiting(
        [&] { error = error_of([&] { client->get("never", Deadline::after(30)); }); });
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    const double waited = seconds_of([&] {
        server->close();
        server->close();
        waiting.join();
    });
    CHECK(waited < 1);
    CHECK(error.code() == ErrorCode::transport);
    CHECK(holds(error.what(), concat("127.0.0.1:", port)));
    CHECK(error_of([&] { client->set("a", "b"); }).code() == ErrorCode::transport);
    CHECK(error_of([&] { client->contains("a"); }).code() == ErrorCode::transport);
}

TEST_CASE("tcp store: a killed server process is noticed too") {
    int ends[2];
    REQUIRE(::pipe(ends) == 0);
    const pid_t child = ::fork();
    if (child == 0) {
        ::alarm(30);
        TcpStoreServer server("127.0.0.1", 0);
        const int port = server.port();
        const ssize_t written = ::write(ends[1], &port, sizeof(port));
        while (written > 0) ::pause();
        ::_exit(1);
    }
    int port = 0;
    REQUIRE(::read(ends[0], &port, sizeof(port)) == sizeof(port));
    const auto client = client_of(port);
    client->set("a", "b");
    std::thread killer([&] {
        std::this_thread::sleep_for(std::chrono::milliseconds(100));
        ::kill(child, SIGKILL);
    });
    Error error(ErrorCode::comm, "");
    const double waited =
        seconds_of([&] { error = error_of([&] { client->get("never", Deadline::after(30)); }); });
    killer.join();
    ::waitpid(child, nullptr, 0);
    ::close(ends[0]);
    ::close(ends[1]);
    CHECK(error.code() == ErrorCode::transport);
    CHECK(waited < 1.5);
}

TEST_CASE("tcp store: a forked child that ends leaves the server alone") {
    auto server = std::make_unique<TcpStoreServer>("127.0.0.1", 0);
    const auto client = client_of(server->port());
    const pid_t child = ::fork();
    if (child == 0) {
        ::alarm(10);
        server.reset();
        ::_exit(0);
    }
    int status = -1;
    ::waitpid(child, &status, 0);
    CHECK(status == 0);
    client->set("a", "b");
    CHECK(client->get("a", Deadline::after(5)) == "b");
    // The port is free once the parent closes, whatever the child kept.
    server->close();
    CHECK(error_of([&] { client->contains("a"); }).code() == ErrorCode::transport);
}

TEST_CASE("tcp store: many clients wait for one key and bootstrap over it") {
    TcpStoreServer server("127.0.0.1", 0);
    constexpr int size = 16;
    std::atomic<int> right{0};
    std::vector<std::thread> threads;
    for (int rank = 0; rank < size; ++rank) {
        threads.emplace_back([&, rank] {
            const auto store = client_of(server.port(), 20);
            right += rank == 0 || store->get("start", Deadline::after(20)) == "go";
            if (rank == 0) store->set("start", "go");
            StoreBootstrap bootstrap(store, rank, size, "world");
            const auto blobs = bootstrap.all_gather(concat("rank ", rank), Deadline::after(20));
            for (int i = 0; i < size; ++i) {
                right += blobs[static_cast<size_t>(i)] == concat("rank ", i);
            }
        });
    }
    for (std::thread& thread : threads) thread.join();
    CHECK(right == size + size * size);
}

}  // namespace pycomm
