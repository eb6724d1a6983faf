// The server's side of the TCP store: one thread, one epoll set, one state machine per connection.
//
// A client may send anything: lengths are checked before memory is given, memory grows with the
// bytes that really arrive, and a connection that breaks the protocol is closed without touching
// the others.
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <map>
#include <thread>
#include <unordered_map>

#include "base/error.h"
#include "store/tcp_store.h"
#include "store/tcp_store_protocol.h"

namespace pycomm {
namespace {

using namespace store_protocol;
using Clock = std::chrono::steady_clock;

constexpr size_t max_connections = 16384;
constexpr size_t max_stored = size_t{1} << 30;      // keys and values together
constexpr size_t max_unfinished = size_t{1} << 28;  // requests that have arrived in part
constexpr auto hello_time = std::chrono::seconds(10);

struct Connection {
    UniqueFd fd;
    bool greeted = false;
    Clock::time_point hello_until;
    std::string in;
    std::string out;
    size_t sent = 0;       // bytes of `out`
    bool waiting = false;  // for `key`
    bool closing = false;  // after `out` is sent
    std::string key;
};

void reply(Connection& connection, Status status, std::string_view value) {
    put_u32(connection.out, static_cast<uint32_t>(value.size() + 1));
    connection.out += static_cast<char>(status);
    connection.out += value;
}

}  // namespace

class TcpStoreServer::Loop {
  public:
    Loop(const std::string& host, int port, const std::string& token)
        : token_(token), listener_(listen_on(host, port)) {
        PYCOMM_CHECK(token.size() <= max_token, argument, "a store's token has at most ", max_token,
                     " bytes, not ", token.size());
        port_ = local_address(listener_.get()).port();
        epoll_ = UniqueFd(::epoll_create1(EPOLL_CLOEXEC));
        PYCOMM_CHECK(epoll_, transport, "epoll_create1: ", errno_text(errno));
        stop_ = UniqueFd(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
        PYCOMM_CHECK(stop_, transport, "eventfd: ", errno_text(errno));
        watch(EPOLL_CTL_ADD, listener_.get(), EPOLLIN);
        watch(EPOLL_CTL_ADD, stop_.get(), EPOLLIN);
        thread_ = std::thread([this] { run(); });
    }

    void stop() {
        std::lock_guard lock(stop_mutex_);
        if (!thread_.joinable()) return;
        // A child of fork has copies of the sockets, but not the thread.
        if (::getpid() != owner_) return thread_.detach();
        const uint64_t one = 1;
        while (::write(stop_.get(), &one, sizeof(one)) == -1 && errno == EINTR) {
        }
        thread_.join();
        connections_.clear();
        listener_.reset();
    }

    int port() const { return port_; }

  private:
    void watch(int operation, int fd, uint32_t events) {
        epoll_event event{};
        event.events = events;
        event.data.fd = fd;
        PYCOMM_CHECK_SYSCALL(::epoll_ctl(epoll_.get(), operation, fd, &event), "epoll_ctl");
    }

    void run() {
        epoll_event events[64];
        bool more = true;
        while (more) {
            const int count = ::epoll_wait(epoll_.get(), events, 64, pause_ms());
            for (int i = 0; i < count; ++i) {
                const int fd = events[i].data.fd;
                if (fd == stop_.get()) {
                    more = false;
                } else if (fd == listener_.get()) {
                    accept_all();
                } else {
                    serve_or_drop(fd, events[i].events);
                }
            }
            if (accept_paused_) resume_accept();
            if (newcomers_ > 0) drop_late_hellos();
        }
    }

    int pause_ms() const { return newcomers_ > 0 || accept_paused_ ? 100 : -1; }

    // Whatever goes wrong with one connection, out of memory included, costs that connection only.
    void serve_or_drop(int fd, uint32_t events) {
        try {
            serve(fd, events);
        } catch (const std::exception&) {
            drop(fd);
        }
    }

    void accept_all() {
        while (connections_.size() < max_connections) {
            UniqueFd fd(::accept4(listener_.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
            if (!fd && (errno == EINTR || errno == ECONNABORTED)) continue;
            if (!fd && errno == EAGAIN) return;
            if (!fd) break;  // no descriptors left
            const int number = fd.get();
            set_no_delay(number);
            set_keepalive(number, 10);
            Connection& connection = connections_[number];
            connection.fd = std::move(fd);
            connection.hello_until = Clock::now() + hello_time;
            ++newcomers_;
            watch(EPOLL_CTL_ADD, number, EPOLLIN | EPOLLRDHUP);
        }
        // The listener stays readable; without this the loop would spin on it.
        watch(EPOLL_CTL_MOD, listener_.get(), 0);
        accept_paused_ = true;
        accept_again_ = Clock::now() + std::chrono::milliseconds(100);
    }

    void resume_accept() {
        if (connections_.size() >= max_connections || Clock::now() < accept_again_) return;
        accept_paused_ = false;
        watch(EPOLL_CTL_MOD, listener_.get(), EPOLLIN);
    }

    void drop_late_hellos() {
        const auto now = Clock::now();
        for (auto entry = connections_.begin(); entry != connections_.end();) {
            const auto next = std::next(entry);
            if (!entry->second.greeted && entry->second.hello_until < now) drop(entry->first);
            entry = next;
        }
    }

    void drop(int fd) {
        const auto found = connections_.find(fd);
        if (found == connections_.end()) return;
        Connection& connection = found->second;
        if (!connection.greeted) --newcomers_;
        if (connection.waiting) forget_waiter(connection);
        unfinished_ -= connection.in.size();
        connections_.erase(found);
    }

    void forget_waiter(const Connection& connection) {
        const auto range = waiters_.equal_range(connection.key);
        for (auto entry = range.first; entry != range.second; ++entry) {
            if (entry->second == connection.fd.get()) {
                waiters_.erase(entry);
                return;
            }
        }
    }

    void serve(int fd, uint32_t events) {
        const auto found = connections_.find(fd);
        if (found == connections_.end()) return;
        Connection& connection = found->second;
        bool good = true;
        if ((events & EPOLLOUT) != 0) good = flush(connection);
        if (good && (events & EPOLLIN) != 0) good = receive(connection);
        // Without EPOLLIN in the mask (a waiting client) the end of the connection shows only here.
        const bool ended = (events & (EPOLLERR | EPOLLHUP)) != 0 ||
                           ((events & EPOLLRDHUP) != 0 && (events & EPOLLIN) == 0);
        if (good && !ended) good = advance(connection);
        if (!good || ended) drop(fd);
    }

    // One piece a turn, so that one client cannot keep the others waiting.
    bool receive(Connection& connection) {
        char part[65536];
        const ssize_t count = ::recv(connection.fd.get(), part, sizeof(part), 0);
        if (count == -1) return errno == EAGAIN || errno == EINTR;
        if (count == 0) return false;
        unfinished_ += static_cast<size_t>(count);
        connection.in.append(part, static_cast<size_t>(count));
        return unfinished_ <= max_unfinished;
    }

    // Handles what has arrived in full, sends what can be sent, and says what to wait for next.
    bool advance(Connection& connection) {
        while (!connection.waiting && !connection.closing && connection.out.empty()) {
            bool complete = false;
            const bool good = connection.greeted ? take_request(connection, &complete)
                                                 : take_hello(connection, &complete);
            if (!good) return false;
            if (!complete) break;
            if (!flush(connection)) return false;
        }
        const bool busy = connection.waiting || !connection.out.empty();
        const uint32_t in = busy ? 0u : static_cast<uint32_t>(EPOLLIN);
        const uint32_t out = connection.out.empty() ? 0u : static_cast<uint32_t>(EPOLLOUT);
        watch(EPOLL_CTL_MOD, connection.fd.get(), in | out | EPOLLRDHUP);
        return true;
    }

    bool flush(Connection& connection) {
        std::string& out = connection.out;
        while (connection.sent < out.size()) {
            const ssize_t count = ::send(connection.fd.get(), out.data() + connection.sent,
                                         out.size() - connection.sent, MSG_NOSIGNAL);
            if (count == -1 && errno == EINTR) continue;
            if (count == -1) return errno == EAGAIN;
            connection.sent += static_cast<size_t>(count);
        }
        std::string().swap(out);
        connection.sent = 0;
        return !connection.closing;
    }

    void erase_input(Connection& connection, size_t bytes) {
        unfinished_ -= bytes;
        connection.in.erase(0, bytes);
        if (connection.in.empty()) std::string().swap(connection.in);
    }

    bool take_hello(Connection& connection, bool* complete) {
        const std::string& in = connection.in;
        const size_t checked = std::min(in.size(), magic.size());
        if (in.compare(0, checked, magic.substr(0, checked)) != 0) return false;
        if (in.size() < hello_head) return true;
        const uint32_t theirs = get_u32(in.data() + 8);
        const size_t token_length = get_u32(in.data() + 12);
        Verdict verdict = theirs == version ? welcome : wrong_version;
        if (verdict == welcome) {
            if (token_length > max_token) return false;
            const size_t length = hello_head + token_length + hello_end.size();
            if (in.size() < length) return true;
            if (in.compare(hello_head, token_length, token_) != 0) verdict = wrong_token;
            erase_input(connection, length);
        }
        connection.out += magic;
        put_u32(connection.out, version);
        put_u32(connection.out, verdict);
        connection.closing = verdict != welcome;
        if (verdict == welcome) {
            connection.greeted = true;
            --newcomers_;
        }
        *complete = true;
        return true;
    }

    bool take_request(Connection& connection, bool* complete) {
        const std::string& in = connection.in;
        if (in.size() < 4) return true;
        const size_t length = get_u32(in.data());
        if (length < request_head - 4 || length > request_head - 4 + max_key + max_value) {
            return false;
        }
        if (in.size() < request_head) return true;
        const auto operation = static_cast<uint8_t>(in[4]);
        const size_t key_length = get_u32(in.data() + 5);
        if (key_length > max_key || key_length > length - (request_head - 4)) return false;
        if (in.size() < 4 + length) return true;
        std::string key = in.substr(request_head, key_length);
        std::string value =
            in.substr(request_head + key_length, 4 + length - request_head - key_length);
        erase_input(connection, 4 + length);
        *complete = true;
        return handle(connection, operation, std::move(key), std::move(value));
    }

    bool handle(Connection& connection, uint8_t operation, std::string key, std::string value) {
        const auto found = values_.find(key);
        switch (operation) {
            case op_set:
                store(connection, std::move(key), std::move(value));
                return true;
            case op_contains:
                reply(connection, found == values_.end() ? absent : ok, "");
                return true;
            case op_get:
                if (found != values_.end()) {
                    reply(connection, ok, found->second);
                } else {
                    connection.waiting = true;
                    connection.key = key;
                    waiters_.emplace(std::move(key), connection.fd.get());
                }
                return true;
            default:
                return false;
        }
    }

    void store(Connection& connection, std::string key, std::string value) {
        const auto found = values_.find(key);
        const size_t before = found == values_.end() ? 0 : key.size() + found->second.size();
        const size_t after = key.size() + value.size();
        if (stored_ - before + after > max_stored) {
            reply(connection, refused,
                  concat("it holds ", stored_, " bytes already; at most ", max_stored, " fit"));
            return;
        }
        stored_ += after - before;
        reply(connection, ok, "");
        const auto range = waiters_.equal_range(key);
        std::vector<int> woken;
        for (auto entry = range.first; entry != range.second; ++entry) {
            woken.push_back(entry->second);
        }
        waiters_.erase(range.first, range.second);
        const std::string& kept = values_[std::move(key)] = std::move(value);
        for (const int fd : woken) {
            Connection& waiter = connections_.at(fd);
            waiter.waiting = false;
            reply(waiter, ok, kept);
            // The flush happens in the waiter's own turn, where a failure can drop it.
            watch(EPOLL_CTL_MOD, fd, EPOLLOUT | EPOLLRDHUP);
        }
    }

    const std::string token_;
    UniqueFd listener_;
    UniqueFd epoll_;
    UniqueFd stop_;
    int port_ = 0;
    std::unordered_map<std::string, std::string> values_;
    size_t stored_ = 0;
    std::multimap<std::string, int> waiters_;  // key -> descriptor
    std::map<int, Connection> connections_;    // by descriptor
    size_t newcomers_ = 0;                     // connections before their hello
    size_t unfinished_ = 0;                    // bytes in all `in`
    bool accept_paused_ = false;
    Clock::time_point accept_again_;
    const pid_t owner_ = ::getpid();
    std::mutex stop_mutex_;
    std::thread thread_;
};

TcpStoreServer::TcpStoreServer(const std::string& host, int port, const std::string& token)
    : loop_(std::make_unique<Loop>(host, port, token)) {}

TcpStoreServer::~TcpStoreServer() {
    close();
}

int TcpStoreServer::port() const {
    return loop_->port();
}

void TcpStoreServer::close() {
    loop_->stop();
}

}  // namespace pycomm
