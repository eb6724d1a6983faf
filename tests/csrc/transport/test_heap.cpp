// The heap of symmetric memory: pages in and out, and what they hold.
#include <doctest/doctest.h>

#include <cstring>
#include <random>
#include <thread>
#include <vector>

#include "base/error.h"
#include "store/bootstrap.h"
#include "transport/shm/shared_heap.h"

namespace pycomm {
namespace {

TEST_CASE("page list: neighbours join, and the smallest run that fits is cut") {
    PageList list;
    list.insert(10, 5);
    list.insert(30, 8);
    list.insert(20, 2);
    CHECK(list.total() == 15);
    size_t begin = 0;
    REQUIRE(list.take(2, begin));
    CHECK(begin == 20);  // exactly as long as asked for
    REQUIRE(list.take(4, begin));
    CHECK(begin == 10);
    CHECK_FALSE(list.take(9, begin));
    list.insert(10, 4);   // joins 14
    list.insert(15, 15);  // joins both sides
    CHECK(list.total() == 28);
    REQUIRE(list.take(28, begin));
    CHECK(begin == 10);
    CHECK(list.total() == 0);
    CHECK_FALSE(list.take(1, begin));
}

// Two ranks as threads, each with its part of one region.
template <typename Body>
void with_heap(size_t part, Body body) {
    const auto group = InprocGroup::create(2);
    std::vector<std::thread> threads;
    for (size_t rank = 0; rank < 2; ++rank) {
        threads.emplace_back([&, rank] {
            const Deadline limit = Deadline::after(20);
            auto region = make_sparse_region(*group[rank], 2 * part, limit);
            SharedHeap heap(region, rank * part, part);
            body(heap, *region, static_cast<int>(rank));
        });
    }
    for (auto& thread : threads) thread.join();
}

TEST_CASE("heap: blocks do not overlap, keep what they hold, and come back zeroed when asked") {
    with_heap(size_t{64} << 20, [](SharedHeap& heap, SharedRegion& /*region*/, int rank) {
        std::mt19937 random(static_cast<unsigned>(rank) + 1);
        struct Block {
            std::byte* memory;
            size_t bytes;
            std::byte fill;
        };
        std::vector<Block> blocks;
        std::string why;
        const auto intact = [](const Block& block) {
            return block.memory[0] == block.fill && block.memory[block.bytes / 2] == block.fill &&
                   block.memory[block.bytes - 1] == block.fill;
        };
        for (int turn = 0; turn < 3000; ++turn) {
            if (!blocks.empty() && (random() % 2 == 0 || blocks.size() > 40)) {
                const size_t index = random() % blocks.size();
                CHECK(intact(blocks[index]));
                CHECK(heap.size_of(blocks[index].memory) >= blocks[index].bytes);
                heap.deallocate(blocks[index].memory);
                blocks[index] = blocks.back();
                blocks.pop_back();
                continue;
            }
            const size_t bytes = 1 + random() % (turn % 10 == 0 ? 1'000'000 : 20'000);
            const bool zeroed = random() % 2 == 0;
            auto* memory = static_cast<std::byte*>(heap.allocate(bytes, zeroed, nullptr, why));
            REQUIRE(memory != nullptr);
            REQUIRE(reinterpret_cast<uintptr_t>(memory) % 64 == 0);
            CHECK(heap.owns(memory));
            CHECK(heap.owns(memory + bytes - 1));
            if (zeroed) {
                for (size_t i = 0; i < bytes; i += 97) REQUIRE(memory[i] == std::byte{0});
            }
            const Block block{memory, bytes, static_cast<std::byte>(turn % 250 + 1)};
            std::memset(memory, turn % 250 + 1, bytes);
            blocks.push_back(block);
        }
        for (const Block& block : blocks) CHECK(intact(block));
    });
}

TEST_CASE("heap: when it is full, that is said, and what is freed can be had again") {
    with_heap(size_t{1} << 20, [](SharedHeap& heap, SharedRegion& /*region*/, int /*rank*/) {
        std::string why;
        void* most = heap.allocate(1'000'000, false, nullptr, why);
        REQUIRE(most != nullptr);
        CHECK(heap.allocate(200'000, false, nullptr, why) == nullptr);
        CHECK(why.find("wanted") != std::string::npos);
        CHECK(heap.allocate(size_t{1} << 60, false, nullptr, why) == nullptr);
        heap.deallocate(most);
        heap.deallocate(nullptr);
        void* first = heap.allocate(500'000, true, nullptr, why);
        void* second = heap.allocate(500'000, true, nullptr, why);
        REQUIRE(first != nullptr);
        REQUIRE(second != nullptr);
        int other = 0;
        CHECK_FALSE(heap.owns(&other));
        heap.deallocate(first);
        heap.deallocate(second);
        CHECK(heap.allocate(1'000'000, false, nullptr, why) != nullptr);  // joined again
    });
}

TEST_CASE("heap: one rank sees what the other writes") {
    static std::atomic<size_t> place{0};
    place = 0;
    with_heap(size_t{1} << 20, [](SharedHeap& heap, SharedRegion& region, int rank) {
        std::string why;
        if (rank == 0) {
            auto* memory = static_cast<std::byte*>(heap.allocate(5000, true, nullptr, why));
            REQUIRE(memory != nullptr);
            memory[4999] = std::byte{42};
            place.store(static_cast<size_t>(memory - region.data()) + 1);
            while (place.load() != 0) std::this_thread::yield();
        } else {
            while (place.load() == 0) std::this_thread::yield();
            CHECK(region.data()[place.load() - 1 + 4999] == std::byte{42});
            place.store(0);
        }
    });
}

}  // namespace
}  // namespace pycomm
