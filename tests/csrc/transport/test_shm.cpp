// The shared-memory transport against the contract, and what only it does: limits and layout.
#include <sys/resource.h>

#include "base/free_memory.h"
#include "transport/mapped/layout.h"
#include "transport/shm/shared_region.h"
#include "transport/shm/shm_transport.h"
#include "transport/transport_contract.h"

namespace pycomm {

contract::Kind contract::contract_kind() {
    contract::Kind kind;
    kind.make = [](Bootstrap& bootstrap) {
        return make_shm_transport(bootstrap, 8 << 20, "auto", Deadline::after(30));
    };
    kind.max_in_flight = 8 << 20;
    return kind;
}

namespace {

// The largest part of the region that one rank's rings take.
size_t ring_bytes_per_rank(int size, int64_t buffer_bytes) {
    const Layout layout(size, buffer_bytes);
    return layout.ring_bytes() * static_cast<size_t>(size - 1) * stream_count;
}

TEST_CASE("a rank's rings stay within its buffer bytes") {
    for (const int64_t budget : {int64_t{1} << 20, int64_t{8} << 20, int64_t{64} << 20}) {
        for (int size = 2; size <= 64; ++size) {
            CHECK(ring_bytes_per_rank(size, budget) + Layout(size, budget).stage_bytes() <=
                  static_cast<size_t>(budget));
            CHECK(Layout(size, budget).ring_bytes() >= 4096);
        }
    }
}

TEST_CASE("rings, board lines and doorbells do not overlap") {
    const Layout layout(3, 1 << 20);
    std::vector<std::byte> memory(layout.total_bytes() + cache_line);
    auto* base = memory.data();
    base += (cache_line - reinterpret_cast<uintptr_t>(base) % cache_line) % cache_line;
    std::vector<std::pair<std::byte*, size_t>> parts;
    parts.emplace_back(base, sizeof(FaultRecord));
    for (const uint64_t sequence : {0, 1}) {
        parts.emplace_back(reinterpret_cast<std::byte*>(&layout.claim_line(base, sequence)),
                           sizeof(ClaimLine));
    }
    for (int rank = 0; rank < 3; ++rank) {
        parts.emplace_back(reinterpret_cast<std::byte*>(&layout.doorbell(base, rank)),
                           sizeof(Doorbell));
        parts.emplace_back(reinterpret_cast<std::byte*>(layout.board_slots(base) + 2 * rank),
                           2 * sizeof(BoardSlot));
        parts.emplace_back(layout.stage(base, rank), layout.stage_bytes());
        parts.emplace_back(reinterpret_cast<std::byte*>(&layout.progress_line(base, rank)),
                           sizeof(ProgressLine));
        for (int peer = 0; peer < 3; ++peer) {
            parts.emplace_back(reinterpret_cast<std::byte*>(&layout.handover(base, rank, peer)),
                               sizeof(HandoverLine));
            if (peer == rank) continue;
            for (const Stream stream : contract::both_streams) {
                parts.emplace_back(
                    reinterpret_cast<std::byte*>(&layout.ring(base, rank, peer, stream)),
                    sizeof(RingControl) + layout.ring_bytes());
            }
        }
    }
    std::sort(parts.begin(), parts.end());
    for (size_t i = 1; i < parts.size(); ++i) {
        CHECK(parts[i - 1].first + parts[i - 1].second <= parts[i].first);
    }
    CHECK(parts.back().first + parts.back().second <= base + layout.total_bytes());
}

TEST_CASE("more memory than there is: an error on all ranks that says so") {
    const FreeMemory free = free_memory();
    CHECK(free.bytes > 0);
    const auto group = InprocGroup::create(2);
    std::vector<std::string> texts(2);
    std::vector<std::thread> threads;
    for (size_t rank = 0; rank < 2; ++rank) {
        threads.emplace_back([&, rank] {
            try {
                make_shared_region(*group[rank], free.bytes * 2, Deadline::after(30));
            } catch (const Error& error) {
                texts[rank] = concat(error_name(error.code()), ": ", error.what());
            }
        });
    }
    for (auto& thread : threads) thread.join();
    for (const std::string& text : texts) {
        INFO(text);
        CHECK(text.starts_with("TransportError: rank 0: wanted "));
        CHECK(text.find("free are ") != std::string::npos);
    }
}

TEST_CASE("a file size limit: an error instead of a signal") {
    rlimit before{};
    REQUIRE(getrlimit(RLIMIT_FSIZE, &before) == 0);
    rlimit small = before;
    small.rlim_cur = 1 << 20;
    REQUIRE(setrlimit(RLIMIT_FSIZE, &small) == 0);
    const auto group = InprocGroup::create(1);
    std::string text;
    try {
        make_shared_region(*group[0], 4 << 20, Deadline::after(30));
    } catch (const Error& error) {
        text = error.what();
    }
    REQUIRE(setrlimit(RLIMIT_FSIZE, &before) == 0);
    CHECK(text == "rank 0: wanted 4 MiB of shared memory, free are 1 MiB (RLIMIT_FSIZE)");
}

TEST_CASE("a region is zeroed and the same memory on all ranks") {
    const auto group = InprocGroup::create(3);
    std::vector<int> seen(3, -1);
    std::vector<std::thread> threads;
    for (size_t rank = 0; rank < 3; ++rank) {
        threads.emplace_back([&, rank] {
            const auto region = make_shared_region(*group[rank], 10000, Deadline::after(30));
            int sum = 0;
            for (size_t i = 0; i < region->bytes(); ++i) sum += static_cast<int>(region->data()[i]);
            group[rank]->all_gather("", Deadline::after(30));
            region->data()[rank] = static_cast<std::byte>(rank + 1);
            group[rank]->all_gather("", Deadline::after(30));
            for (size_t i = 0; i < 3; ++i) sum += static_cast<int>(region->data()[i]);
            seen[rank] = sum;
            group[rank]->all_gather("", Deadline::after(30));
        });
    }
    for (auto& thread : threads) thread.join();
    CHECK(seen == std::vector<int>{6, 6, 6});
}

}  // namespace
}  // namespace pycomm
