// The driver under many threads: no wake-up is lost, nothing races, and every operation ends.
#include <atomic>
#include <chrono>
#include <random>

#include "comm/rank_threads.h"

using namespace pycomm;
using namespace pycomm::testing;

namespace {

#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
constexpr int rounds = 1500;
#else
constexpr int rounds = 10000;
#endif

// Messages around the ring of ranks, started asynchronously by a thread beside the collectives.
void pass_messages(Communicator& comm, int tag, const std::atomic<bool>& stop, int64_t* passed) {
    const int next = (comm.rank() + 1) % comm.size();
    const int before = (comm.rank() + comm.size() - 1) % comm.size();
    bool last = false;
    for (int64_t turn = 0; !last; ++turn) {
        // Whether this is the last message goes round as well, since all must stop at the same one.
        last = stop && comm.rank() == 0;
        std::vector<int64_t> out(static_cast<size_t>(2 + turn % 300), turn * 10 + comm.rank());
        std::vector<int64_t> in(out.size(), -1);
        if (comm.rank() != 0) {
            const auto receive = message_task(comm, OpKind::recv, in, before, tag);
            comm.submit(receive);
            finish(comm, *receive);
            last = in[0] != 0;
        }
        out[0] = last ? 1 : 0;
        const auto send = message_task(comm, OpKind::send, out, next, tag);
        comm.submit(send);
        finish(comm, *send);
        if (comm.rank() == 0) {
            const auto receive = message_task(comm, OpKind::recv, in, before, tag);
            comm.submit(receive);
            finish(comm, *receive);
        }
        expect(in[1] == turn * 10 + before, "message ", turn, " holds ", in[1]);
        *passed = turn;
    }
}

}  // namespace

TEST_CASE("barriers and asynchronous messages from several threads") {
    const auto errors = run_ranks(3, quick_env(), [](Communicator& comm) {
        std::atomic<bool> stop{false};
        std::vector<std::thread> threads;
        std::vector<std::string> failures(2);
        std::vector<int64_t> passed(2);
        for (size_t i = 0; i < failures.size(); ++i) {
            threads.emplace_back([&, i] {
                try {
                    pass_messages(comm, static_cast<int>(i), stop, &passed[i]);
                } catch (const std::exception& error) {
                    failures[i] = error.what();
                }
            });
        }
        std::string failure;
        try {
            for (int turn = 0; turn < rounds; ++turn) barrier(comm);
        } catch (const std::exception& error) {
            failure = error.what();
        }
        stop = true;
        for (auto& thread : threads) thread.join();
        expect(failure.empty(), failure);
        for (const std::string& text : failures) expect(text.empty(), text);
        expect(passed[0] > 0 && passed[1] > 0, "no message was passed");
    });
    check_all_well(errors);
}

TEST_CASE("blocking and submitted collectives keep their order") {
    const auto errors = run_ranks(4, quick_env(), [](Communicator& comm) {
        std::minstd_rand random(7);  // the same on all ranks
        for (int turn = 0; turn < rounds / 10; ++turn) {
            const size_t started = random() % 5;
            std::vector<std::vector<int64_t>> data(started + 1);
            std::vector<std::shared_ptr<Task>> tasks;
            for (size_t i = 0; i <= started; ++i) {
                data[i].assign(1 + random() % 3000, turn + comm.rank() * static_cast<int64_t>(i));
                tasks.push_back(all_reduce_task(comm, data[i]));
            }
            for (size_t i = 0; i < started; ++i) comm.submit(tasks[i]);
            comm.run({&tasks[started], 1}, nullptr);
            // In reverse: the later ones are finished when the first is waited for.
            for (size_t i = started; i-- > 0;) finish(comm, *tasks[i]);
            for (size_t i = 0; i <= started; ++i) {
                const int64_t expected = 4 * turn + 6 * static_cast<int64_t>(i);
                expect(data[i].front() == expected && data[i].back() == expected, "turn ", turn,
                       ", operation ", i, ": ", data[i].front(), ", expected ", expected);
            }
        }
    });
    check_all_well(errors);
}

TEST_CASE("sleeping drivers are woken") {
    // Each rank in turn is late by more than the driver spins, so that the others sleep.
    const auto errors = run_ranks(3, quick_env(), [](Communicator& comm) {
        for (int turn = 0; turn < 150; ++turn) {
            if (turn % 3 == comm.rank()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
            const auto start = std::chrono::steady_clock::now();
            std::vector<int64_t> data{turn};
            const auto task = all_reduce_task(comm, data);
            if (turn % 2 == 0) {
                comm.run({&task, 1}, nullptr);
            } else {
                comm.submit(task);
                finish(comm, *task);
            }
            const auto seconds =
                std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
            expect(data[0] == 3 * turn, "wrong sum");
            expect(seconds < 5, "turn ", turn, " took ", seconds, " s");
        }
    });
    check_all_well(errors);
}

TEST_CASE("abort and close end what other threads wait for") {
    for (const bool close : {false, true}) {
        const auto errors = run_ranks(3, quick_env(), [close](Communicator& comm) {
            std::atomic<int> ended{0};
            std::atomic<int> started{0};
            std::vector<std::thread> threads;
            std::vector<std::vector<int64_t>> data(6, std::vector<int64_t>(3));
            for (int i = 0; i < 6; ++i) {
                threads.emplace_back([&, i] {
                    // Nobody sends these; half are driven by their callers.
                    const auto task = message_task(comm, OpKind::recv, data[static_cast<size_t>(i)],
                                                   (comm.rank() + 1) % 3, 100 + i);
                    const auto code = code_of([&] {
                        ++started;
                        if (i % 2 == 0) return comm.run({&task, 1}, nullptr);
                        comm.submit(task);
                        finish(comm, *task);
                    });
                    // A peer may have closed first.
                    if (code == ErrorCode::aborted || (close && code == ErrorCode::peer_lost) ||
                        (close && code == ErrorCode::argument)) {
                        ++ended;
                    }
                });
            }
            while (started < 6) std::this_thread::yield();
            std::this_thread::sleep_for(std::chrono::milliseconds(20));
            if (close) {
                comm.close();
            } else if (comm.rank() == 0) {
                comm.abort("the test wants it");
            }
            for (auto& thread : threads) thread.join();
            expect(ended == 6, ended.load(), " of 6 ended as they should");
            const auto code = code_of([&] { barrier(comm); });
            expect(code == (close ? ErrorCode::argument : ErrorCode::aborted), "afterwards");
        });
        check_all_well(errors);
    }
}

TEST_CASE("abort while operations run") {
    for (int turn = 0; turn < 20; ++turn) {
        std::atomic<int> broken{0};
        const auto errors = run_ranks(4, quick_env(), [&](Communicator& comm) {
            std::thread other([&] {
                std::this_thread::sleep_for(std::chrono::microseconds(100 * turn));
                if (comm.rank() == turn % 4) comm.abort("now");
            });
            std::vector<int64_t> data(20000, comm.rank());
            const auto code = code_of([&] {
                while (true) {
                    const auto task = all_reduce_task(comm, data);
                    comm.run({&task, 1}, nullptr);
                }
            });
            other.join();
            if (code == ErrorCode::aborted) ++broken;
        });
        check_all_well(errors);
        CHECK(broken == 4);
    }
}

TEST_CASE("deadlines, also of operations that are queued") {
    const auto errors = run_ranks(3, quick_env(), [](Communicator& comm) {
        if (comm.rank() == 1) {
            std::this_thread::sleep_for(std::chrono::milliseconds(2500));
            expect(code_of([&] { barrier(comm); }) == ErrorCode::timeout, "the late rank");
            return;
        }
        std::vector<int64_t> first(10);
        std::vector<int64_t> second(10);
        const auto stuck = all_reduce_task(comm, first, 20.0);
        const auto queued = all_reduce_task(comm, second, 1.0);
        const auto start = std::chrono::steady_clock::now();
        comm.submit(stuck);
        comm.submit(queued);
        // The third rank may come a little later.
        const std::vector<int> late{1};
        for (int look = 0; look < 8 && comm.waiting_on(*queued) != late; ++look) {
            expect(!comm.wait(*queued, 0.1, nullptr), "finished too early");
        }
        expect(comm.waiting_on(*queued) == late, "what holds up a queued operation");
        const auto code = code_of([&] { finish(comm, *queued); });
        const auto seconds =
            std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
        expect(code == ErrorCode::timeout, "the queued operation's error");
        expect(seconds > 0.95 && seconds < 2.0, "timed out after ", seconds, " s");
        expect(code_of([&] { finish(comm, *stuck); }) == ErrorCode::timeout,
               "the first one's error");
    });
    check_all_well(errors);
}

TEST_CASE("a hook ends the caller's wait and breaks the communicator") {
    struct Interrupt {};
    const auto errors = run_ranks(2, quick_env(), [](Communicator& comm) {
        if (comm.rank() == 1) {
            expect(code_of([&] {
                       barrier(comm);
                       barrier(comm);
                   }) == ErrorCode::aborted,
                   "the peer");
            return;
        }
        barrier(comm);
        int calls = 0;
        const Engine::InterruptHook hook = [&] {
            if (++calls == 3) throw Interrupt{};
        };
        std::vector<int64_t> data(3);
        const auto task = message_task(comm, OpKind::recv, data, 1, 9);
        bool interrupted = false;
        try {
            comm.run({&task, 1}, hook);
        } catch (const Interrupt&) {
            interrupted = true;
        }
        expect(interrupted && task->finished(), "the interrupt did not arrive");
        expect(code_of([&] { barrier(comm); }) == ErrorCode::aborted, "afterwards");
    });
    check_all_well(errors);
}
