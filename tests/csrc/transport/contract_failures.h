// The part of the transport contract about faults and about ranks that end.
#pragma once

#include "transport/contract_traffic.h"

namespace pycomm::contract {

Kind contract_kind();

inline Fault sample_fault() {
    return {ErrorCode::timeout,
            1,
            {0, 2},
            "all_reduce number 7: rank 1 is late. " + std::string(900, 'x')};
}

inline void expect_sample_fault(Transport& transport) {
    wait_until(transport, "the fault", [&] { return transport.fault() != nullptr; });
    const Fault wanted = sample_fault();
    const Fault& seen = *transport.fault();
    expect(seen.text == wanted.text, "text: ", seen.text);
    expect(seen.ranks == wanted.ranks, "ranks: ", join_ranks(seen.ranks));
    expect(seen.code == wanted.code, "code ", error_name(seen.code));
    expect(seen.reporter == wanted.reporter, "reporter ", seen.reporter);
}

TEST_CASE("contract: a fault reaches sleeping ranks, the first one stays") {
    run_everywhere(contract_kind(), 3, [](Transport& transport) {
        all_pairs(transport, {10});
        if (transport.rank() == 1) transport.post_fault(sample_fault());
        expect_sample_fault(transport);
        transport.post_fault({ErrorCode::mismatch, transport.rank(), {1}, "a later fault"});
        expect_sample_fault(transport);
        // A rank that leaves early must not take the fault with it.
        std::this_thread::sleep_for(std::chrono::milliseconds(transport.rank() * 50));
        expect_sample_fault(transport);
    });
}

TEST_CASE("contract: a fault is found without sleeping and posted from another thread") {
    check_threads(contract_kind(), 3, [](Transport& transport) {
        all_pairs(transport, {10});
        std::thread poster;
        if (transport.rank() == 1) {
            poster = std::thread([&] { transport.post_fault(sample_fault()); });
        }
        const Deadline deadline = Deadline::after(patience);
        while (transport.fault() == nullptr && !deadline.expired()) std::this_thread::yield();
        if (poster.joinable()) poster.join();
        expect_sample_fault(transport);
    });
}

TEST_CASE("contract: a fault reaches the living when others have ended") {
    const Kind kind = contract_kind();
    if (!kind.processes) return;
    const Errors errors = run_processes(kind, 4, [](Transport& transport) {
        all_pairs(transport, {10});
        if (transport.rank() == 3) ::raise(SIGKILL);
        if (transport.rank() == 1) {
            wait_for_end_of(transport, 3);
            transport.post_fault(sample_fault());
        }
        expect_sample_fault(transport);
    });
    CHECK(report(errors) == "rank 3: signal 9\n");
}

TEST_CASE("contract: what an ended rank sent can be read after its end") {
    run_everywhere(contract_kind(), 3, [](Transport& transport) {
        if (transport.rank() == 1) {
            Traffic traffic(transport);
            for (int message = 0; message < 3; ++message) {
                traffic.send(0, Stream::collective, message, 4001);
                traffic.send(0, Stream::point_to_point, message, 333);
            }
            traffic.run();
            return;
        }
        if (transport.rank() == 0) {
            // Unread by rank 1 when it ends.
            Traffic unread(transport);
            unread.send(1, Stream::collective, 0, 5000);
            unread.run();
            wait_for_end_of(transport, 1);
            expect(transport.alive(2), "a living rank is said to have ended");
            Traffic traffic(transport);
            for (int message = 0; message < 3; ++message) {
                traffic.recv(1, Stream::collective, message, 4001);
                traffic.recv(1, Stream::point_to_point, message, 333);
            }
            traffic.run();
            expect_quiet(transport);
        }
        meet(transport, 2 - transport.rank(), 0);
    });
}

TEST_CASE("contract: all that a full channel took arrives, though its sender ends at once") {
    const Kind kind = contract_kind();
    run_everywhere(kind, 2, [&](Transport& transport) {
        const int peer = 1 - transport.rank();
        // Rank 0 ends with these bytes unread.
        if (transport.rank() == 1) {
            Traffic unread(transport);
            unread.send(0, Stream::collective, 0, 5000);
            unread.run();
        }
        meet(transport, peer, Stream::point_to_point, 0);
        uint64_t taken = 0;
        if (transport.rank() == 0) {
            taken = fill_channel(transport.channel(1, Stream::collective), 98, kind.max_in_flight);
        }
        pass_number(transport, peer, Stream::point_to_point, transport.rank() == 0, &taken);
        if (transport.rank() == 0) return;
        std::this_thread::sleep_for(std::chrono::milliseconds(300));
        drain_channel(transport, 0, Stream::collective, 98, taken);
    });
}

TEST_CASE("contract: a killed rank is noticed, and what it sent can be read") {
    const Kind kind = contract_kind();
    if (!kind.processes) return;
    const Errors errors = run_processes(kind, 3, [](Transport& transport) {
        all_pairs(transport, {10});
        if (transport.rank() == 1) {
            Traffic traffic(transport);
            traffic.send(0, Stream::collective, 1, 4001);
            traffic.run();
            ::raise(SIGKILL);
        }
        wait_for_end_of(transport, 1);
        expect_quiet(transport);
        if (transport.rank() == 0) {
            Traffic traffic(transport);
            traffic.recv(1, Stream::collective, 1, 4001);
            traffic.run();
        }
        // Sending to it takes or refuses the bytes, but neither throws nor kills.
        Bytes data(100000);
        transport.channel(1, Stream::collective).try_send(data.data(), data.size(), true);
        transport.channel(1, Stream::collective).try_send(data.data(), data.size(), true);
        meet(transport, 2 - transport.rank(), 2);
    });
    CHECK(report(errors) == "rank 1: signal 9\n");
}

TEST_CASE("contract: a forked child that ends does not end its parent's connections") {
    const Kind kind = contract_kind();
    if (!kind.processes) return;
    const Errors errors = run_processes(kind, 2, [](Transport& transport) {
        all_pairs(transport, {100});
        const pid_t child = ::fork();
        if (child == 0) return;  // destroys its copy of the transport
        int status = -1;
        ::waitpid(child, &status, 0);
        expect(status == 0, "the child ended with status ", status);
        expect(transport.alive(1 - transport.rank()), "the peer is said to have ended");
        all_pairs(transport, {100, 100000});
    });
    CHECK(report(errors) == "");
}

TEST_CASE("contract: destruction with unread data, and while peers sleep") {
    run_everywhere(contract_kind(), 3, [](Transport& transport) {
        const Bytes data(100000);
        for (int peer = 0; peer < transport.size(); ++peer) {
            if (peer == transport.rank()) continue;
            for (const Stream stream : both_streams) {
                transport.channel(peer, stream).try_send(data.data(), data.size(), true);
            }
        }
        if (transport.rank() != 0) wait_for_end_of(transport, 0);
    });
}

}  // namespace pycomm::contract
