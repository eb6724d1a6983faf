// The contract of transport.h as one suite of tests. A transport's test file defines
// contract_kind() and includes this header:
//
//   #include "transport/transport_contract.h"
//   #include "transport/tcp/tcp_transport.h"
//
//   pycomm::contract::Kind pycomm::contract::contract_kind() {
//       return {[](Bootstrap& bootstrap) { return make_tcp_transport(bootstrap, {}); }};
//   }
#pragma once

#include <atomic>

#include "transport/contract_failures.h"
#include "transport/contract_traffic.h"

namespace pycomm::contract {

Kind contract_kind();

inline bool aligned(const void* data) {
    return reinterpret_cast<uintptr_t>(data) % 16 == 0;
}

// Receives one message in place, in multiples of 16 bytes, and checks place and content of each
// view.
inline void recv_in_place(Transport& transport, int peer, int message, size_t bytes) {
    Channel& channel = transport.channel(peer, Stream::collective);
    const uint64_t seed = seed_of(peer, transport.rank(), Stream::collective, message);
    for (size_t done = 0; done < bytes;) {
        const size_t left = bytes - done;
        std::span<const std::byte> view;
        wait_until(transport, "a view of at least min_view bytes", [&] {
            view = channel.peek(left);
            return view.size() >= std::min(left, Channel::min_view);
        });
        expect(view.size() <= left, "the view reaches into the next message");
        expect(aligned(view.data()), "byte ", done, " of message ", message, " is not aligned");
        const size_t right = matching_bytes(view.data(), view.size(), seed, done);
        expect(right == view.size(), "byte ", done + right, " of message ", message, " is wrong");
        // Half of what is there, to leave a rest that the next view has to show again.
        size_t part = view.size() == left && left < 64 ? left : view.size() / 2 / 16 * 16;
        if (part == 0) part = view.size() == left ? left : 16;
        channel.consume(part, part == left);
        done += part;
    }
}

TEST_CASE("contract: rank, size, name, channels") {
    run_everywhere(contract_kind(), 3, [](Transport& transport) {
        expect(transport.size() == 3, "size ", transport.size());
        expect(std::strlen(transport.name()) > 0, "no name");
        expect(transport.fault() == nullptr, "a new transport has a fault");
        const int next = (transport.rank() + 1) % 3;
        expect(transport.alive(next), "a living peer is said to have ended");
        expect(&transport.channel(next, Stream::collective) !=
                   &transport.channel(next, Stream::point_to_point),
               "streams share a channel");
        all_pairs(transport, {8});
    });
}

TEST_CASE("contract: a group of one") {
    run_everywhere(contract_kind(), 1, [](Transport& transport) {
        transport.prepare_wait();
        transport.wait(std::chrono::milliseconds(5));
        transport.wake();
        transport.post_fault({ErrorCode::aborted, 0, {}, "over"});
        expect(transport.fault() != nullptr && transport.fault()->text == "over", "no fault");
    });
}

TEST_CASE("contract: order and content of messages of many sizes, all pairs at once") {
    const std::vector<size_t> sizes = {1, 15, 16, 17, 4095, 65537, (3 << 20) + 5, 2, 1023, 64, 16};
    run_everywhere(contract_kind(), 3, [&](Transport& transport) { all_pairs(transport, sizes); });
}

TEST_CASE("contract: eight ranks, all pairs at once") {
    const std::vector<size_t> sizes = {33, 100000, 7};
    check_threads(contract_kind(), 8, [&](Transport& transport) { all_pairs(transport, sizes); });
}

TEST_CASE("contract: 8 MiB in both directions at once") {
    run_everywhere(contract_kind(), 2, [](Transport& transport) {
        Traffic traffic(transport);
        traffic.send(1 - transport.rank(), Stream::collective, 0, 8 << 20);
        traffic.recv(1 - transport.rank(), Stream::collective, 0, 8 << 20);
        traffic.run();
    });
}

TEST_CASE("contract: messages in pieces of random size") {
    run_everywhere(contract_kind(), 2, [](Transport& transport) {
        const int peer = 1 - transport.rank();
        std::mt19937 sizes(5);  // the same on both ranks
        Traffic traffic(transport, true);
        for (int message = 0; message < 200; ++message) {
            for (const Stream stream : both_streams) {
                const size_t bytes = 1 + sizes() % (message % 20 == 0 ? 100000 : 300);
                traffic.send(peer, stream, message, bytes);
                traffic.recv(peer, stream, message, bytes);
            }
        }
        traffic.run();
    });
}

TEST_CASE("contract: views are aligned, long enough and end with the message") {
    run_everywhere(contract_kind(), 2, [](Transport& transport) {
        std::vector<size_t> sizes = {1,    15,   16,    17, 31,     33,  100,
                                     1000, 4095, 65537, 5,  400001, 1024};
        for (size_t i = 0; i < 300; ++i) sizes.push_back(1 + i * 7919 % 3000);
        if (transport.rank() == 0) {
            Traffic traffic(transport);
            for (size_t i = 0; i < sizes.size(); ++i) {
                traffic.send(1, Stream::collective, static_cast<int>(i), sizes[i]);
            }
            traffic.run();
        } else {
            for (size_t i = 0; i < sizes.size(); ++i) {
                recv_in_place(transport, 0, static_cast<int>(i), sizes[i]);
            }
        }
    });
}

TEST_CASE("contract: peek repeats itself, consume takes part") {
    run_everywhere(contract_kind(), 2, [](Transport& transport) {
        if (transport.rank() == 0) {
            Traffic traffic(transport);
            traffic.send(1, Stream::collective, 0, 100);
            traffic.send(1, Stream::collective, 1, 3);
            traffic.run();
            meet(transport, 1, 2);
            return;
        }
        Channel& channel = transport.channel(0, Stream::collective);
        expect(transport.channel(0, Stream::point_to_point).peek(1).empty(), "data from nowhere");
        const uint64_t seed = seed_of(0, 1, Stream::collective, 0);
        size_t done = 0;
        for (const size_t part : {size_t{16}, size_t{1}, size_t{30}, size_t{40}}) {
            std::span<const std::byte> view;
            wait_until(transport, "bytes", [&] {
                view = channel.peek(part);
                return view.size() >= std::min(part, Channel::min_view);
            });
            expect(channel.peek(1).front() == view.front(), "the second view differs");
            const size_t taken = channel.peek(part).size();
            expect(taken <= part, "the view is longer than asked for");
            expect(channel.peek(part).front() == pattern(seed, done), "byte ", done, " is wrong");
            channel.consume(taken, false);
            done += taken;
        }
        Bytes rest(100 - done);
        size_t received = 0;
        wait_until(transport, "the rest", [&] {
            received +=
                channel.try_recv(rest.data() + received, rest.size() - received, true, false);
            return received == rest.size();
        });
        const size_t right = matching_bytes(rest.data(), rest.size(), seed, done);
        expect(right == rest.size(), "byte ", done + right, " is wrong");
        Traffic traffic(transport);
        traffic.recv(0, Stream::collective, 1, 3);
        traffic.run();
        meet(transport, 0, 2);
    });
}

TEST_CASE("contract: a full channel refuses, is bounded and does not stop the other stream") {
    const Kind kind = contract_kind();
    const Stream full = Stream::point_to_point;
    run_everywhere(kind, 2, [&](Transport& transport) {
        const int peer = 1 - transport.rank();
        uint64_t taken = 0;
        if (transport.rank() == 0) {
            taken = fill_channel(transport.channel(1, full), 99, kind.max_in_flight);
            expect(taken > 0, "an empty channel took nothing");
            expect(taken <= kind.max_in_flight, "the channel took ", taken, " bytes unread");
        }
        meet(transport, peer, 0);
        {
            Traffic traffic(transport);
            traffic.send(peer, Stream::collective, 1, 300000);
            traffic.recv(peer, Stream::collective, 1, 300000);
            traffic.run();
        }
        // Rank 1 has to know how much to expect.
        pass_number(transport, peer, Stream::collective, transport.rank() == 0, &taken);
        if (transport.rank() == 1) drain_channel(transport, 0, full, 99, taken);
        meet(transport, peer, 2);
    });
}

TEST_CASE("contract: a sender that waits for room is woken") {
    run_everywhere(contract_kind(), 2, [](Transport& transport) {
        Traffic traffic(transport);
        if (transport.rank() == 0) {
            traffic.send(1, Stream::collective, 0, 20 << 20);
        } else {
            std::this_thread::sleep_for(std::chrono::milliseconds(200));
            traffic.recv(0, Stream::collective, 0, 20 << 20);
        }
        traffic.run();
    });
}

TEST_CASE("contract: no wake-up is lost in thousands of short waits") {
    run_everywhere(contract_kind(), 3, [](Transport& transport) {
        const int next = (transport.rank() + 1) % 3;
        const int previous = (transport.rank() + 2) % 3;
        for (int message = 0; message < 1500; ++message) {
            const Stream stream = both_streams[message % 2];
            Traffic traffic(transport);
            traffic.send(next, stream, message, 1 + static_cast<size_t>(message) % 40);
            traffic.recv(previous, stream, message, 1 + static_cast<size_t>(message) % 40);
            traffic.run();
        }
    });
}

TEST_CASE("contract: wake() from another thread ends a wait, also one that is about to begin") {
    check_threads(contract_kind(), 2, [](Transport& transport) {
        std::atomic<int> wanted{0};
        std::atomic<int> seen{0};
        std::thread other([&] {
            for (int i = 1; i <= 1000; ++i) {
                wanted.store(i);
                transport.wake();
                while (seen.load() != i && seen.load() >= 0) std::this_thread::yield();
            }
        });
        std::string error;
        while (seen.load() < 1000 && error.empty()) {
            transport.prepare_wait();
            if (wanted.load() == seen.load()) {
                const auto start = Deadline::Clock::now();
                transport.wait(std::chrono::seconds(3));
                if (Deadline::Clock::now() - start >= std::chrono::seconds(3)) {
                    error = "a wake-up was lost";
                }
            } else {
                transport.cancel_wait();
            }
            seen.store(error.empty() ? wanted.load() : -1);
        }
        other.join();
        expect(error.empty(), error);
        meet(transport, 1 - transport.rank(), 0);
    });
}

TEST_CASE("contract: an idle rank sleeps, with unread messages of others too") {
    run_everywhere(contract_kind(), 2, [](Transport& transport) {
        if (transport.rank() == 0) {
            Traffic traffic(transport);
            traffic.send(1, Stream::point_to_point, 0, 1000);
            traffic.run();
        }
        meet(transport, 1 - transport.rank(), 0);
        expect_quiet(transport);
        meet(transport, 1 - transport.rank(), 1);
    });
}

TEST_CASE("contract: the board shows this and the previous call, with parcel and slot") {
    run_everywhere(contract_kind(), 3, [](Transport& transport) {
        Board* board = transport.board();
        if (board == nullptr) return;
        const auto byte_of = [](int rank, uint64_t sequence) {
            return static_cast<int>((sequence * 31 + static_cast<uint64_t>(rank) * 7) % 251);
        };
        const size_t most = board->largest_staged();
        expect(most >= 256, "stages no more than ", most, " bytes");
        // Now and then as much as possible.
        const auto bytes_of = [&](uint64_t sequence) {
            return sequence % 32 < 8 ? most : std::min(most, 100 + size_t{sequence} * 13);
        };
        const auto shows = [&](int peer, uint64_t sequence) {
            const Call& call = board->call(peer, sequence);
            expect(call.root == peer && call.kind == sequence % 7 &&
                       call.count == static_cast<int64_t>(sequence) * 10 + peer,
                   "rank ", peer, " posted something else for ", sequence);
            const auto byte = static_cast<std::byte>(byte_of(peer, sequence));
            const Parcel& parcel = board->parcel(peer, sequence);
            for (size_t i = sizeof(parcel.places.input); i < sizeof(parcel); ++i) {
                expect(parcel.bytes[i] == byte, "the parcel of rank ", peer, " for ", sequence);
            }
            const std::byte* staged = board->staged(peer, parcel.places.input.offset);
            // ThreadSanitizer makes each look expensive.
            const size_t bytes = bytes_of(sequence);
            const size_t stride = std::max<size_t>(1, bytes / 4096);
            for (size_t i = 0; i < bytes; i += stride) {
                expect(staged[i] == byte, "what rank ", peer, " staged for ", sequence);
            }
        };
        for (uint64_t sequence = 1; sequence <= 300; ++sequence) {
            Envelope mine;
            mine.sequence = sequence;
            mine.count = static_cast<int64_t>(sequence) * 10 + transport.rank();
            mine.root = transport.rank();
            mine.kind = static_cast<uint8_t>(sequence % 7);
            const int byte = byte_of(transport.rank(), sequence);
            Parcel parcel;
            std::memset(parcel.bytes, byte, sizeof(parcel.bytes));
            const std::vector<std::byte> data(bytes_of(sequence), static_cast<std::byte>(byte));
            parcel.places.input.offset = board->stage(data.data(), data.size());
            board->post(mine, parcel);
            board->wake_sleepers();
            for (int peer = 0; peer < transport.size(); ++peer) {
                wait_until(transport, "a call", [&] { return board->arrived(peer, sequence); });
                shows(peer, sequence);
                expect(!board->arrived(peer, sequence + 2), "a call from the future");
            }
            for (int peer = 0; peer < transport.size(); ++peer) {
                expect(board->arrived(peer, sequence), "a call vanished too early");
                shows(peer, sequence);
            }
        }
        all_pairs(transport, {1});
    });
}

TEST_CASE("contract: pieces are claimed once, and finishing is seen by all") {
    run_everywhere(contract_kind(), 3, [](Transport& transport) {
        Board* board = transport.board();
        if (board == nullptr) return;
        constexpr uint64_t pieces = 1000;
        const auto meet_on_board = [&](uint64_t sequence, const Parcel& parcel) {
            Envelope mine;
            mine.sequence = sequence;
            board->post(mine, parcel);
            board->wake_sleepers();
            for (int peer = 0; peer < transport.size(); ++peer) {
                wait_until(transport, "a call", [&] { return board->arrived(peer, sequence); });
            }
        };
        // Odd operations claim, even ones tell what was claimed: all of 0 to pieces - 1 once.
        for (uint64_t sequence = 1; sequence <= 40; sequence += 2) {
            meet_on_board(sequence, {});
            uint64_t claimed[2] = {};
            while (true) {
                const uint64_t piece = board->claims(sequence).fetch_add(1);
                if (piece >= pieces) break;
                claimed[0] += 1;
                claimed[1] += piece;
            }
            expect(!board->finished(transport.rank(), sequence), "finished too early");
            board->post_finished(sequence);
            for (int peer = 0; peer < transport.size(); ++peer) {
                wait_until(transport, "the end", [&] { return board->finished(peer, sequence); });
            }
            if (transport.rank() == 0) board->claims(sequence).store(0);
            Parcel parcel{};
            parcel.places.input.offset = board->stage(claimed, sizeof(claimed));
            meet_on_board(sequence + 1, parcel);
            uint64_t total[2] = {};
            for (int peer = 0; peer < transport.size(); ++peer) {
                uint64_t theirs[2];
                const uint64_t place = board->parcel(peer, sequence + 1).places.input.offset;
                std::memcpy(theirs, board->staged(peer, place), sizeof(theirs));
                total[0] += theirs[0];
                total[1] += theirs[1];
            }
            expect(total[0] == pieces && total[1] == pieces * (pieces - 1) / 2, "claimed ",
                   total[0], " pieces with the sum ", total[1]);
        }
    });
}

TEST_CASE("contract: nobody enters memory that was withdrawn") {
    run_everywhere(contract_kind(), 2, [](Transport& transport) {
        Board* board = transport.board();
        if (board == nullptr) return;
        Envelope mine;
        mine.sequence = 1;
        if (transport.rank() == 0) {
            expect(board->enter(), "refused before anything was withdrawn");
            board->post(mine, {});
            board->wake_sleepers();
            // Rank 1 withdraws as soon as it sees that; it has to wait for us.
            std::this_thread::sleep_for(std::chrono::milliseconds(100));
            board->claims(1).store(1);
            board->leave();
            wait_until(transport, "the withdrawal", [&] { return board->finished(1, 1); });
            expect(!board->enter(), "entered memory that was withdrawn");
        } else {
            wait_until(transport, "rank 0", [&] { return board->arrived(0, 1); });
            board->withdraw();
            expect(board->claims(1).load() == 1, "did not wait for the rank inside");
            board->post_finished(1);
        }
    });
}

}  // namespace pycomm::contract
