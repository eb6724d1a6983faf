// Data and traffic for the transport contract: every byte differs per sender, receiver, stream,
// message and place, and channels are driven as the engine drives them.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstring>
#include <deque>
#include <map>
#include <random>
#include <thread>

#include "transport/contract_ranks.h"

namespace pycomm::contract {

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
            taken = channel.try_recv(target, wanted, wanted == left, left % 2 == 0);
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

inline constexpr Stream both_streams[] = {Stream::collective, Stream::point_to_point};

// Every rank sends messages of all `sizes` to every other, on both streams, at once.
inline void all_pairs(Transport& transport, const std::vector<size_t>& sizes) {
    Traffic traffic(transport);
    for (int peer = 0; peer < transport.size(); ++peer) {
        if (peer == transport.rank()) continue;
        for (const Stream stream : both_streams) {
            for (size_t i = 0; i < sizes.size(); ++i) {
                traffic.send(peer, stream, static_cast<int>(i), sizes[i]);
                traffic.recv(peer, stream, static_cast<int>(i), sizes[i]);
            }
        }
    }
    traffic.run();
}

// A message of one byte there and back: both ranks have come here.
inline void meet(Transport& transport, int peer, Stream stream, int message) {
    Traffic traffic(transport);
    traffic.send(peer, stream, message, 1);
    traffic.recv(peer, stream, message, 1);
    traffic.run();
}
inline void meet(Transport& transport, int peer, int message) {
    meet(transport, peer, Stream::collective, message);
}

// Fills a channel until it takes nothing for a while; returns the number of bytes it took.
inline size_t fill_channel(Channel& channel, uint64_t seed, size_t limit) {
    const Bytes data = make_data(seed, limit + 65536);
    size_t taken = 0;
    for (int refusals = 0; refusals < 50 && taken <= limit;) {
        const size_t now = channel.try_send(data.data() + taken, 65536, false);
        taken += now;
        refusals = now > 0 ? 0 : refusals + 1;
        if (now == 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    return taken;
}

// Receives and checks what fill_channel sent.
inline void drain_channel(Transport& transport, int peer, Stream stream, uint64_t seed,
                          size_t bytes) {
    Channel& channel = transport.channel(peer, stream);
    Bytes data(bytes, std::byte{0xA5});
    size_t done = 0;
    wait_until(transport, "the rest of a full channel", [&] {
        done += channel.try_recv(data.data() + done, bytes - done, false, false);
        return done == bytes;
    });
    const size_t right = matching_bytes(data.data(), bytes, seed, 0);
    expect(right == bytes, "byte ", right, " of ", bytes, " is wrong");
}

// One message with a number, from the rank where `sending` to the other.
inline void pass_number(Transport& transport, int peer, Stream stream, bool sending,
                        uint64_t* number) {
    Channel& channel = transport.channel(peer, stream);
    auto* bytes = reinterpret_cast<std::byte*>(number);
    size_t done = 0;
    wait_until(transport, "a number", [&] {
        const size_t left = sizeof(*number) - done;
        done += sending ? channel.try_send(bytes + done, left, true)
                        : channel.try_recv(bytes + done, left, true, true);
        return done == sizeof(*number);
    });
}

inline void wait_for_end_of(Transport& transport, int peer) {
    const Deadline deadline = Deadline::after(5);
    while (transport.alive(peer)) {
        transport.prepare_wait();
        transport.wait(std::chrono::milliseconds(20));
        expect(!deadline.expired(), "the end of rank ", peer, " was not noticed within 5 s");
    }
}

// A rank that has nothing to do must sleep.
inline void expect_quiet(Transport& transport) {
    int returns = 0;
    const Deadline deadline = Deadline::after(0.5);
    while (!deadline.expired()) {
        transport.prepare_wait();
        transport.wait(std::chrono::milliseconds(100));
        ++returns;
    }
    expect(returns <= 40, "wait returned ", returns, " times in half a second without a reason");
}

}  // namespace pycomm::contract
