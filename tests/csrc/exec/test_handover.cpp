// Messages from array to array, with both ends in one thread so that every order of steps can be
// tried: threads of one process reach all memory, shared memory goes through the system.
#include <array>
#include <functional>
#include <thread>

#include "comm/rank_threads.h"
#include "exec/handover.h"
#include "store/bootstrap.h"
#include "transport/inproc/inproc_transport.h"
#include "transport/shm/shm_transport.h"

using namespace pycomm;
using namespace pycomm::testing;

namespace {

constexpr int sender = 0;
constexpr int receiver = 1;

struct Pair {
    std::array<std::unique_ptr<Transport>, 2> ends;

    explicit Pair(bool shm) {
        const auto group = InprocGroup::create(2);
        std::array<std::thread, 2> threads;
        for (size_t rank = 0; rank < 2; ++rank) {
            threads[rank] = std::thread([&, rank] {
                const auto limit = Deadline::after(30);
                ends[rank] = shm ? make_shm_transport(*group[rank], 1 << 20, "always", limit)
                                 : make_inproc_transport(*group[rank], 1 << 20, limit);
            });
        }
        for (auto& thread : threads) thread.join();
    }
    Transport& operator[](size_t rank) { return *ends[rank]; }
};

struct Arrays {
    static constexpr size_t margin = 64;
    static constexpr std::byte untouched{0xA5};
    std::vector<std::byte> source;
    std::vector<std::byte> target;

    explicit Arrays(size_t bytes) : source(bytes), target(bytes + 2 * margin, untouched) {
        for (size_t i = 0; i < bytes; ++i) source[i] = static_cast<std::byte>(i * 37 + i / 251 + 1);
    }
    Buffer from() { return {source.data(), static_cast<int64_t>(source.size()), DataType::uint8}; }
    Buffer to() {
        return {target.data() + margin, static_cast<int64_t>(source.size()), DataType::uint8};
    }
    bool complete() const {
        const auto first = target.begin() + margin;
        const auto is_untouched = [](std::byte value) { return value == untouched; };
        return std::equal(source.begin(), source.end(), first) &&
               std::all_of(target.begin(), first, is_untouched) &&
               std::all_of(target.end() - margin, target.end(), is_untouched);
    }
};

void everywhere(const std::function<void(Pair&)>& body) {
    for (const bool shm : {false, true}) {
        CAPTURE(shm);
        Pair pair(shm);
        REQUIRE(pair[sender].one_copy().addresses == shm);
        body(pair);
    }
}

}  // namespace

TEST_CASE("what is offered") {
    Pair pair(true);
    Arrays arrays(256 << 10);
    CHECK(offer_payload(pair[sender], arrays.from()).kind == ArrayPlace::Kind::address);
    Buffer shorter = arrays.from();
    shorter.count -= 1;
    CHECK(offer_payload(pair[sender], shorter).kind == ArrayPlace::Kind::hidden);
    Pair threads(false);
    CHECK(offer_payload(threads[sender], shorter).kind == ArrayPlace::Kind::mapped);
    shorter.count = (32 << 10) - 1;
    CHECK(offer_payload(threads[sender], shorter).kind == ArrayPlace::Kind::hidden);
}

TEST_CASE("a receiver does it alone when its sender is busy") {
    for (const size_t bytes : {size_t{256} << 10, (size_t{3} << 20) + 1, size_t{17} << 20}) {
        everywhere([bytes](Pair& pair) {
            Arrays arrays(bytes);
            Fetch fetch(pair[receiver], sender, offer_payload(pair[sender], arrays.from()),
                        arrays.to());
            for (int turn = 0; turn < 1000 && !fetch.ended(); ++turn) fetch.progress();
            CHECK(fetch.ended());
            CHECK(!fetch.refused());
            CHECK(fetch.bytes_done() == bytes);
            CHECK(arrays.complete());
            CHECK(!help_receiver(pair[sender], receiver, arrays.from()));
        });
    }
}

TEST_CASE("both sides work, in any proportion, message after message") {
    everywhere([](Pair& pair) {
        for (int helps = 1; helps <= 4; ++helps) {
            Arrays arrays((2 << 20) + 5 * static_cast<size_t>(helps));
            Fetch fetch(pair[receiver], sender, offer_payload(pair[sender], arrays.from()),
                        arrays.to());
            int helped = 0;
            for (int turn = 0; turn < 1000 && !fetch.ended(); ++turn) {
                for (int i = 0; i < helps; ++i) {
                    helped += help_receiver(pair[sender], receiver, arrays.from());
                }
                fetch.progress();
            }
            CHECK(fetch.ended());
            CHECK(fetch.bytes_done() == arrays.source.size());
            CHECK(arrays.complete());
            CHECK(helped >= 3);
        }
    });
}

TEST_CASE("a source that cannot be read: the message is refused, nothing is under way") {
    everywhere([](Pair& pair) {
        Arrays arrays(1 << 20);
        Fetch fetch(pair[receiver], sender, ArrayPlace{}, arrays.to());
        CHECK(help_receiver(pair[sender], receiver, arrays.from()));
        for (int turn = 0; turn < 10 && !fetch.ended(); ++turn) fetch.progress();
        CHECK(fetch.ended());
        CHECK(fetch.refused());
        CHECK(!help_receiver(pair[sender], receiver, arrays.from()));
    });
}

TEST_CASE("a piece that was taken back cannot be written") {
    Pair pair(true);
    Arrays arrays(1 << 20);
    Fetch fetch(pair[receiver], sender, offer_payload(pair[sender], arrays.from()), arrays.to());
    fetch.revoke();
    // As by a sender that was stopped before its call: it finds the piece empty.
    CHECK(help_receiver(pair[sender], receiver, arrays.from()));
    CHECK(std::all_of(arrays.target.begin(), arrays.target.end(),
                      [](std::byte value) { return value == Arrays::untouched; }));
}

TEST_CASE("nobody touches memory of a rank whose operations have failed") {
    everywhere([](Pair& pair) {
        Arrays arrays(1 << 20);
        Fetch fetch(pair[receiver], sender, offer_payload(pair[sender], arrays.from()),
                    arrays.to());
        pair[receiver].board()->withdraw();
        CHECK(!help_receiver(pair[sender], receiver, arrays.from()));
        CHECK(std::all_of(arrays.target.begin(), arrays.target.end(),
                          [](std::byte value) { return value == Arrays::untouched; }));
    });
    everywhere([](Pair& pair) {
        // Not even when all bytes are there: the sender's owner may have changed the last ones.
        Arrays arrays(100 << 10);
        Fetch fetch(pair[receiver], sender, offer_payload(pair[sender], arrays.from()),
                    arrays.to());
        while (help_receiver(pair[sender], receiver, arrays.from())) {
        }
        pair[sender].board()->withdraw();
        for (int turn = 0; turn < 20; ++turn) fetch.progress();
        CHECK(!fetch.ended());
    });
}

TEST_CASE("answers belong to one message") {
    Pair pair(false);
    Transport& waiting = pair[sender];
    CHECK(read_answer(waiting, receiver, 1) == Answer::none);
    post_answer(pair[receiver], sender, 1, Answer::copying);
    CHECK(read_answer(waiting, receiver, 1) == Answer::copying);
    post_answer(pair[receiver], sender, 1, Answer::finished);
    CHECK(read_answer(waiting, receiver, 1) == Answer::finished);
    CHECK(read_answer(waiting, receiver, 2) == Answer::none);
    post_answer(pair[receiver], sender, 2, Answer::channel);
    CHECK(read_answer(waiting, receiver, 2) == Answer::channel);
    CHECK(read_answer(pair[receiver], sender, 1) == Answer::none);  // the other direction
}

TEST_CASE("the faster way wins, for each size and kind, and the other one is tried again") {
    constexpr auto kind = ArrayPlace::Kind::address;
    WayChoice choice(false);
    const auto copies_of = [&](size_t bytes, double copied, double channel, int messages) {
        int count = 0;
        for (int i = 0; i < messages; ++i) {
            const bool copies = choice.copies(kind, bytes);
            choice.add(kind, bytes, copies, copies ? copied : channel);
            count += copies;
        }
        return count;
    };
    CHECK(copies_of(1 << 20, 100, 200, 1000) > 950);
    CHECK(copies_of(1 << 22, 300, 200, 1000) < 50);
    CHECK(copies_of(1 << 22, 300, 200, 1000) > 5);
    CHECK(copies_of(1 << 20, 100, 200, 1000) > 950);
    copies_of(1 << 22, 100, 200, 1000);
    CHECK(copies_of(1 << 22, 100, 200, 1000) > 950);  // it has become the faster one
    WayChoice always(true);
    always.add(kind, 1 << 20, true, 1e9);
    always.add(kind, 1 << 20, false, 1);
    CHECK(always.copies(kind, 1 << 20));
}

TEST_CASE("large messages around a ring of threads, both directions at once, and an abort") {
    for (const char* transport : {"auto", "shm"}) {
        CAPTURE(transport);
        Env env = quick_env();
        env.transport = transport;
        env.cma = "always";
        const auto errors = run_ranks(3, env, [](Communicator& comm) {
            const int next = (comm.rank() + 1) % 3;
            const int before = (comm.rank() + 2) % 3;
            const auto exchange = [&](int64_t turn) {
                std::vector<int64_t> out(static_cast<size_t>(40'000 + turn * 977));
                for (size_t i = 0; i < out.size(); ++i) {
                    out[i] = comm.rank() + turn * 10 + static_cast<int64_t>(i) * 100;
                }
                std::vector<int64_t> right(out.size(), -1);
                std::vector<int64_t> left(out.size(), -1);
                const std::array tasks{message_task(comm, OpKind::recv, right, before, 1),
                                       message_task(comm, OpKind::send, out, next, 1),
                                       message_task(comm, OpKind::send, out, before, 2),
                                       message_task(comm, OpKind::recv, left, next, 2)};
                comm.submit(tasks[3]);
                comm.run({tasks.data(), 3}, nullptr);
                finish(comm, *tasks[3]);
                for (size_t i = 0; i < out.size(); ++i) {
                    expect(right[i] == out[i] - comm.rank() + before, "right, element ", i);
                    expect(left[i] == out[i] - comm.rank() + next, "left, element ", i);
                }
            };
            for (int64_t turn = 0; turn < 40; ++turn) exchange(turn);
            std::thread other([&] {
                std::this_thread::sleep_for(std::chrono::milliseconds(5));
                if (comm.rank() == 1) comm.abort("now");
            });
            const auto code = code_of([&] {
                while (true) exchange(7);
            });
            other.join();
            expect(code == ErrorCode::aborted, "after the abort");
        });
        check_all_well(errors);
    }
}
