// The traffic that stands for the machine's limit: as much as the table says, each byte written
// once.
#include <algorithm>
#include <cstring>

#include "comm/memory_limit.h"
#include "comm/rank_threads.h"

using namespace pycomm;
using namespace pycomm::testing;

namespace {

struct Volume {
    size_t read = 0;
    size_t written = 0;
};

// Of all ranks together, for S bytes over n ranks.
Volume least(OpKind kind, size_t bytes, size_t ranks) {
    switch (kind) {
        case OpKind::all_reduce:
            return {ranks * bytes, ranks * bytes};
        case OpKind::reduce_scatter:
        case OpKind::reduce:
            return {ranks * bytes, bytes};
        case OpKind::all_gather:
            return {bytes, ranks * bytes};
        case OpKind::all_to_all:
            return {ranks * bytes, ranks * bytes};
        case OpKind::broadcast:
            return {ranks > 1 ? bytes : 0, (ranks - 1) * bytes};
        default:
            return {bytes, bytes};
    }
}

using Moves = std::vector<MemoryLimit::Move>;

void fill(const std::byte* memory, size_t bytes, uint32_t seed) {
    auto* words = reinterpret_cast<uint32_t*>(const_cast<std::byte*>(memory));
    for (size_t i = 0; i < bytes / 4; ++i) {
        words[i] = seed * 2654435761u + static_cast<uint32_t>(i) * 40503u;
    }
}

// Fills the sources, which nobody else reads, carries the moves out and compares.
void check_result(const Moves& moves, const std::function<void()>& call, uint32_t rank) {
    uint32_t seed = 100 * rank;
    for (const auto& move : moves) {
        for (const std::byte* source : move.sources) fill(source, move.bytes, ++seed);
        for (std::byte* target : move.targets) std::memset(target, 0xA5, move.bytes);
    }
    call();
    for (const auto& move : moves) {
        std::vector<uint32_t> want(move.bytes / 4);
        for (const std::byte* source : move.sources) {
            for (size_t i = 0; i < want.size(); ++i) {
                uint32_t word = 0;
                std::memcpy(&word, source + 4 * i, 4);
                want[i] += word;
            }
        }
        for (const std::byte* target : move.targets) {
            expect(std::memcmp(target, want.data(), move.bytes) == 0, "sum of the sources");
        }
    }
}

void check_traffic(const std::vector<Moves>& by_rank, const Volume& want) {
    Volume found;
    std::vector<std::pair<std::byte*, size_t>> targets;
    for (const Moves& moves : by_rank) {
        for (const auto& move : moves) {
            found.read += move.bytes * move.sources.size();
            found.written += move.bytes * move.targets.size();
            for (std::byte* target : move.targets) targets.emplace_back(target, move.bytes);
        }
    }
    CHECK(found.read == want.read);
    CHECK(found.written == want.written);
    std::sort(targets.begin(), targets.end());
    for (size_t i = 1; i < targets.size(); ++i) {
        CHECK(targets[i - 1].first + targets[i - 1].second <= targets[i].first);
    }
}

}  // namespace

TEST_CASE("an ideal operation's traffic") {
    for (const int ranks : {1, 2, 3, 5}) {
        const auto slices = static_cast<size_t>(ranks);
        const size_t bytes = 64 * 2 * slices * 7;
        for (int index = 0; index <= static_cast<int>(OpKind::send); ++index) {
            const auto kind = static_cast<OpKind>(index);
            if (!MemoryLimit::applies(kind) || (kind == OpKind::send && ranks < 2)) continue;
            CAPTURE(ranks);
            CAPTURE(std::string(kind_name(kind)));
            const Traffic traffic{kind, static_cast<int64_t>(bytes), ranks - 1, {ranks - 1, 0}};
            std::vector<Moves> by_rank(slices);
            const auto errors = run_ranks(ranks, quick_env(), [&](Communicator& comm) {
                const MemoryLimit limit(comm, traffic.bytes, nullptr);
                expect(limit.shared(), "threads share memory");
                auto& moves = by_rank[static_cast<size_t>(comm.rank())];
                moves = limit.moves(traffic);
                for (const Stores stores : {Stores::ordinary, Stores::streaming}) {
                    check_result(moves, limit.bind(traffic, stores),
                                 static_cast<uint32_t>(comm.rank()));
                }
                barrier(comm);
            });
            check_all_well(errors);
            check_traffic(by_rank, least(kind, bytes, slices));
        }
    }
}

TEST_CASE("sizes that do not divide stay within the memory") {
    const auto errors = run_ranks(3, quick_env(), [](Communicator& comm) {
        for (const int64_t bytes : {1, 65, 192, 4099}) {
            const MemoryLimit limit(comm, bytes, nullptr);
            const Traffic whole{OpKind::all_to_all, bytes, 0, {0, 0}};
            // Inputs come first, so the last output ends last.
            const auto moves = limit.moves(whole);
            size_t total = 0;
            for (const auto& move : moves) total += move.bytes;
            expect(
                total >= static_cast<size_t>(bytes) && total < static_cast<size_t>(bytes) + 3 * 64,
                "bytes ", total);
            const auto message = limit.moves({OpKind::send, bytes, 0, {0, 2}});
            expect(message.size() == (comm.rank() == 1 ? 0u : 1u), "two ranks take part");
            limit.bind({OpKind::send, bytes, 0, {0, 2}}, Stores::streaming)();
            barrier(comm);
        }
    });
    check_all_well(errors);
}

TEST_CASE("without shared memory every rank moves as much within its own") {
    Env env = quick_env();
    env.transport = "tcp";
    const auto errors = run_ranks(2, env, [](Communicator& comm) {
        const MemoryLimit limit(comm, 4096, nullptr);
        expect(!limit.shared(), "no mapped memory");
        const Traffic traffic{OpKind::all_reduce, 4096, 0, {0, 1}};
        const auto moves = limit.moves(traffic);
        expect(moves.size() == 1 && moves[0].bytes == 2048, "a slice");
        expect(moves[0].sources.size() == 2 && moves[0].sources[0] != moves[0].sources[1],
               "two sources");
        expect(moves[0].targets.size() == 2 && moves[0].targets[0] != moves[0].targets[1],
               "two targets");
        check_result(moves, limit.bind(traffic, Stores::ordinary),
                     static_cast<uint32_t>(comm.rank()));
        barrier(comm);
    });
    check_all_well(errors);
}
