// Splitting, several communicators at once, faults that reach everyone, and processes made by fork.
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>

#include "comm/rank_threads.h"

using namespace pycomm;
using namespace pycomm::testing;

TEST_CASE("split orders ranks by key and leaves out those without color") {
    const auto errors = run_ranks(5, quick_env(), [](Communicator& comm) {
        const std::optional<int> color =
            comm.rank() == 4 ? std::nullopt : std::optional<int>(comm.rank() % 2);
        const auto part = comm.split(color, -comm.rank(), nullptr);
        expect((part == nullptr) == (comm.rank() == 4), "who takes part");
        if (!part) return;
        expect(part->size() == 2 && part->rank() == (comm.rank() < 2 ? 1 : 0), "order");
        std::vector<int64_t> data(5, comm.rank());
        const auto task = all_reduce_task(*part, data);
        part->run({&task, 1}, nullptr);
        expect(data[4] == (comm.rank() % 2 == 0 ? 2 : 4), "sum ", data[4]);
    });
    check_all_well(errors);
}

TEST_CASE("communicators are independent of each other") {
    const auto errors = run_ranks(3, quick_env(), [](Communicator& comm) {
        std::vector<std::unique_ptr<Communicator>> parts;
        for (int i = 0; i < 3; ++i) parts.push_back(comm.split(0, comm.rank(), nullptr));
        // Each has its own thread; their operations meet in any order.
        std::vector<std::thread> threads;
        std::vector<std::string> failures(parts.size());
        for (size_t i = 0; i < parts.size(); ++i) {
            threads.emplace_back([&, i] {
                try {
                    for (int64_t turn = 0; turn < 300; ++turn) {
                        std::vector<int64_t> data(1 + static_cast<size_t>(turn) * 7, turn);
                        const auto task = all_reduce_task(*parts[i], data);
                        parts[i]->run({&task, 1}, nullptr);
                        expect(data[0] == 3 * turn, "communicator ", i);
                    }
                } catch (const std::exception& error) {
                    failures[i] = error.what();
                }
            });
        }
        for (auto& thread : threads) thread.join();
        for (const auto& text : failures) expect(text.empty(), text);
        // One breaks, the others and the parent do not.
        if (comm.rank() == 1) parts[1]->abort("for the test");
        expect(code_of([&] {
                   while (true) barrier(*parts[1]);
               }) == ErrorCode::aborted,
               "abort");
        barrier(*parts[0]);
        barrier(*parts[2]);
        barrier(comm);
    });
    check_all_well(errors);
}

TEST_CASE("a peer that leaves is named, also to those that set up a communicator with it") {
    for (const bool splitting : {false, true}) {
        const auto errors = run_ranks(3, quick_env(), [splitting](Communicator& comm) {
            if (comm.rank() == 2) {
                std::this_thread::sleep_for(std::chrono::milliseconds(100));
                return;
            }
            std::string text;
            std::vector<int> ranks;
            try {
                if (splitting) {
                    comm.split(0, 0, nullptr);
                } else {
                    barrier(comm);
                }
            } catch (const Error& error) {
                expect(error.code() == ErrorCode::peer_lost, error.what());
                ranks = error.ranks();
            }
            expect(ranks == std::vector<int>{2}, "rank 2 was not named");
        });
        check_all_well(errors);
    }
}

TEST_CASE("mismatched calls end on all ranks with both calls in the text") {
    const auto errors = run_ranks(3, quick_env(), [](Communicator& comm) {
        std::vector<int64_t> data(comm.rank() == 1 ? 5 : 4, 1);
        std::string text;
        try {
            const auto task = all_reduce_task(comm, data);
            comm.run({&task, 1}, nullptr);
        } catch (const Error& error) {
            expect(error.code() == ErrorCode::mismatch, error.what());
            text = error.what();
        }
        expect(text.find("5 elements") != std::string::npos, text);
        expect(text.find("4 elements") != std::string::npos, text);
    });
    check_all_well(errors);
}

TEST_CASE("bad arguments are refused before anything is sent") {
    const auto errors = run_ranks(2, quick_env(), [](Communicator& comm) {
        std::vector<int64_t> data(4);
        const auto refused = [&](const std::function<void()>& call) {
            expect(code_of(call) == ErrorCode::argument, "an argument was not refused");
        };
        for (const double bad : {0.0, -1.0, std::numeric_limits<double>::quiet_NaN(),
                                 std::numeric_limits<double>::infinity()}) {
            refused([&] { barrier(comm, bad); });
        }
        refused([&] { message_task(comm, OpKind::send, data, 2, 0); });
        refused([&] { message_task(comm, OpKind::send, data, -1, 0); });
        refused([&] { message_task(comm, OpKind::send, data, 1, -1); });
        barrier(comm);
    });
    check_all_well(errors);
}

#if !defined(__SANITIZE_THREAD__)  // which does not follow forks of threaded processes
TEST_CASE("a forked process can neither use a communicator nor disturb it") {
    const auto errors = run_ranks(2, quick_env(), [](Communicator& comm) {
        std::vector<int64_t> data(3, 1);
        const auto work = all_reduce_task(comm, data);
        comm.submit(work);
        finish(comm, *work);
        barrier(comm);
        if (comm.rank() == 0) {
            const pid_t child = fork();
            if (child == 0) {
                const bool refused = code_of([&] { barrier(comm); }) == ErrorCode::argument;
                comm.close();
                _exit(refused ? 0 : 1);
            }
            int status = -1;
            waitpid(child, &status, 0);
            expect(status == 0, "the child's status is ", status);
        }
        for (int turn = 0; turn < 10; ++turn) barrier(comm);
    });
    check_all_well(errors);
}
#endif
