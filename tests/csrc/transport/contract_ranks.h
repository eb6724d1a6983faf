// What the transport contract is written with: ranks as threads or as forked processes, checks that
// work on any rank, data that differs everywhere, and traffic that is driven as the engine drives
// it.
#pragma once

#include <doctest/doctest.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <filesystem>
#include <functional>
#include <iostream>
#include <map>
#include <random>
#include <stdexcept>
#include <thread>

#include "store/bootstrap.h"
#include "store/file_store.h"
#include "store/socket.h"
#include "transport/transport.h"

namespace pycomm::contract {

// What a transport's test file says about it.
struct Kind {
    // Called on every rank at the same time.
    std::function<std::unique_ptr<Transport>(Bootstrap&)> make;
    bool processes = true;            // false: ranks can only be threads
    size_t max_in_flight = 16 << 20;  // the most bytes a channel may take that nobody has received
};

using Body = std::function<void(Transport&)>;
// By rank; empty when all went well.
using Errors = std::vector<std::string>;

// One line for each rank that failed.
inline std::string report(const Errors& errors) {
    std::string text;
    for (size_t rank = 0; rank < errors.size(); ++rank) {
        if (!errors[rank].empty()) text += concat("rank ", rank, ": ", errors[rank], '\n');
    }
    return text;
}

// The outer time limits: of one operation in a test, and of a whole rank.
inline constexpr double patience = 30;
inline constexpr unsigned rank_seconds = 90;

// A check that may run on any thread or process.
template <typename... Parts>
void expect(bool condition, const Parts&... parts) {
    if (!condition) throw std::runtime_error(concat(parts...));
}

inline std::string run_rank(const Kind& kind, Bootstrap& bootstrap, const Body& body) {
    try {
        const std::unique_ptr<Transport> transport = kind.make(bootstrap);
        body(*transport);
    } catch (const std::exception& error) {
        return error.what();
    }
    return "";
}

inline Errors run_threads(const Kind& kind, int size, const Body& body) {
    const auto group = InprocGroup::create(size);
    Errors errors(static_cast<size_t>(size));
    std::vector<std::thread> threads;
    for (size_t i = 0; i < errors.size(); ++i) {
        threads.emplace_back([&, i] { errors[i] = run_rank(kind, *group[i], body); });
    }
    for (std::thread& thread : threads) thread.join();
    return errors;
}

// One forked process: its number and the pipe on which it tells its error.
struct Child {
    pid_t pid = -1;
    UniqueFd pipe;
};

inline Child start_child(const std::function<std::string()>& work) {
    int ends[2];
    if (::pipe(ends) != 0) std::abort();
    std::cout.flush();  // or the child would hold a second copy of what is buffered
    Child child;
    child.pid = ::fork();
    if (child.pid == 0) {
        ::prctl(PR_SET_PDEATHSIG, SIGKILL);
        ::alarm(rank_seconds);
        const std::string error = work();
        const ssize_t written = ::write(ends[1], error.data(), error.size());
        ::_exit(written == static_cast<ssize_t>(error.size()) ? 0 : 1);
    }
    ::close(ends[1]);
    child.pipe = UniqueFd(ends[0]);
    return child;
}

// The child's own words, or how it ended.
inline std::string finish_child(Child& child) {
    std::string text;
    char bytes[1024];
    while (true) {
        const ssize_t count = ::read(child.pipe.get(), bytes, sizeof(bytes));
        if (count <= 0) break;
        text.append(bytes, static_cast<size_t>(count));
    }
    int status = 0;
    ::waitpid(child.pid, &status, 0);
    if (WIFSIGNALED(status)) return concat("signal ", WTERMSIG(status));
    if (text.empty() && WEXITSTATUS(status) != 0) return concat("exit ", WEXITSTATUS(status));
    return text;
}

inline Errors run_processes(const Kind& kind, int size, const Body& body) {
    char folder[] = "/tmp/pycomm-contract-XXXXXX";
    if (::mkdtemp(folder) == nullptr) std::abort();
    std::vector<Child> children;
    for (int rank = 0; rank < size; ++rank) {
        children.push_back(start_child([&] {
            StoreBootstrap bootstrap(std::make_shared<FileStore>(folder), rank, size, "contract");
            return run_rank(kind, bootstrap, body);
        }));
    }
    Errors errors;
    for (Child& child : children) errors.push_back(finish_child(child));
    std::filesystem::remove_all(folder);
    return errors;
}

inline void check_threads(const Kind& kind, int size, const Body& body) {
    CHECK(report(run_threads(kind, size, body)) == "");
}

// Runs `body` with threads and, where the transport can, with processes.
inline void run_everywhere(const Kind& kind, int size, const Body& body) {
    check_threads(kind, size, body);
    if (kind.processes) CHECK(report(run_processes(kind, size, body)) == "");
}

// Data that differs per sender, receiver, stream, message and place.
using Bytes = std::vector<std::byte>;

inline std::byte pattern(uint64_t seed, size_t index) {
    const uint64_t mixed = index * 0x9E3779B97F4A7C15u + seed * 0xBF58476D1CE4E5B9u;
    return static_cast<std::byte>((mixed ^ (mixed >> 29)) >> 40);
}

inline uint64_t seed_of(int from, int to, Stream stream, int message) {
    return ((static_cast<uint64_t>(from) * 64 + static_cast<uint64_t>(to)) * 2 +
            static_cast<uint64_t>(stream)) *
               65536 +
           static_cast<uint64_t>(message) + 1;
}

inline Bytes make_data(uint64_t seed, size_t bytes) {
    Bytes data(bytes);
    for (size_t i = 0; i < bytes; ++i) data[i] = pattern(seed, i);
    return data;
}

// How many of `bytes` bytes from place `start` of the pattern are right, counted to the first wrong
// one.
inline size_t matching_bytes(const std::byte* data, size_t bytes, uint64_t seed, size_t start) {
    size_t i = 0;
    while (i < bytes && data[i] == pattern(seed, start + i)) ++i;
    return i;
}

// Messages to be sent and received, driven by one thread as the engine does it: pass over all
// channels, and sleep when nothing moves.
class Traffic {
  public:
    // With `random_pieces`, messages go and come in pieces of random size, half of them by peek and
    // consume.
    explicit Traffic(Transport& transport, bool random_pieces = false)
        : transport_(transport),
          random_pieces_(random_pieces),
          random_(static_cast<uint32_t>(transport.rank()) + 7) {}

    void send(int peer, Stream stream, int message, size_t bytes) {
        Lane& lane = lanes_[{peer, stream}];
        const uint64_t seed = seed_of(transport_.rank(), peer, stream, message);
        lane.sends.push_back({seed, make_data(seed, bytes), 0});
    }

    void recv(int peer, Stream stream, int message, size_t bytes) {
        Lane& lane = lanes_[{peer, stream}];
        const uint64_t seed = seed_of(peer, transport_.rank(), stream, message);
        lane.recvs.push_back({seed, Bytes(bytes + guard, sentinel), 0});
    }

    // Ends when everything is sent and received and right.
    void run() {
        const Deadline deadline = Deadline::after(patience);
        while (!empty()) {
            if (pass()) continue;
            transport_.prepare_wait();
            if (pass()) {
                transport_.cancel_wait();
                continue;
            }
            const auto start = Deadline::Clock::now();
            transport_.wait(longest_sleep);
            const bool slept_through = Deadline::Clock::now() - start >= longest_sleep;
            expect(!(pass() && slept_through), "a wake-up was lost");
            expect(!deadline.expired(), "rank ", transport_.rank(), ": nothing moves");
        }
    }

  private:
    static constexpr size_t guard = 32;
    static constexpr std::byte sentinel{0xA5};
    static constexpr std::chrono::seconds longest_sleep{2};

    struct Message {
        uint64_t seed;
        Bytes data;
        size_t done;
    };
    struct Lane {
        std::deque<Message> sends;
        std::deque<Message> recvs;
    };

    bool empty() const {
        for (const auto& [key, lane] : lanes_) {
            if (!lane.sends.empty() || !lane.recvs.empty()) return false;
        }
        return true;
    }

    size_t piece(size_t left) {
        if (!random_pieces_) return left;
        return std::min<size_t>(left, 1 + random_() % (random_() % 4 == 0 ? 4000 : 50));
    }

    bool pass() {
        bool moved = false;
        for (auto& [key, lane] : lanes_) {
            Channel& channel = transport_.channel(key.first, key.second);
            if (!lane.sends.empty()) moved |= advance_send(channel, lane.sends);
            if (!lane.recvs.empty()) moved |= advance_recv(channel, lane.recvs);
        }
        return moved;
    }

    bool advance_send(Channel& channel, std::deque<Message>& queue) {
        Message& message = queue.front();
        const size_t left = message.data.size() - message.done;
        const size_t wanted = piece(left);
        const size_t taken =
            channel.try_send(message.data.data() + message.done, wanted, wanted == left);
        expect(taken <= wanted, "more was taken than offered");
        message.done += taken;
        if (message.done == message.data.size()) queue.pop_front();
        return taken > 0;
    }

    bool advance_recv(Channel& channel, std::deque<Message>& queue) {
        Message& message = queue.front();
        const size_t left = message.data.size() - guard - message.done;
        const size_t wanted = piece(left);
        std::byte* target = message.data.data() + message.done;
        size_t taken = 0;
        if (random_pieces_ && random_() % 2 == 0) {
            const std::span<const std::byte> view = channel.peek(wanted);
            taken = view.size();
            if (taken > 0) std::memcpy(target, view.data(), taken);
            if (taken > 0) channel.consume(taken, taken == left);
        } else {
            taken = channel.try_recv(target, wanted, wanted == left);
        }
        expect(taken <= wanted, "more was received than asked for");
        message.done += taken;
        if (taken == left) {
            check(message);
            queue.pop_front();
        }
        return taken > 0;
    }

    void check(const Message& message) const {
        const size_t bytes = message.data.size() - guard;
        const size_t right = matching_bytes(message.data.data(), bytes, message.seed, 0);
        expect(right == bytes, "rank ", transport_.rank(), ": byte ", right, " of ", bytes,
               " is wrong");
        for (size_t i = bytes; i < message.data.size(); ++i) {
            expect(message.data[i] == sentinel, "something was written behind the message");
        }
    }

    Transport& transport_;
    bool random_pieces_;
    std::mt19937 random_;
    std::map<std::pair<int, Stream>, Lane> lanes_;
};

// Sleeps in the transport until `done()`.
inline void wait_until(Transport& transport, const char* what, const std::function<bool()>& done) {
    const Deadline deadline = Deadline::after(patience);
    while (!done()) {
        transport.prepare_wait();
        if (done()) return transport.cancel_wait();
        transport.wait(std::chrono::milliseconds(50));
        expect(!deadline.expired(), "rank ", transport.rank(), " waited in vain for: ", what);
    }
}

}  // namespace pycomm::contract
