// All-gather of blobs over a store and among threads.
#include "store/bootstrap.h"
#include "store/memory_store.h"
#include "store/store_contract.h"

namespace pycomm {
namespace {

using namespace store_test;

using Group = std::vector<std::shared_ptr<Bootstrap>>;

Group store_group(int size, const std::string& prefix = "world",
                  const std::shared_ptr<Store>& store = std::make_shared<MemoryStore>()) {
    Group group;
    for (int rank = 0; rank < size; ++rank) {
        group.push_back(std::make_shared<StoreBootstrap>(store, rank, size, prefix));
    }
    return group;
}

std::string blob_of(int rank, int round) {
    return std::string(static_cast<size_t>(rank * 100), '\0') + concat(rank, ':', round);
}

// Rounds of all-gather by all ranks at once; returns how many blobs were wrong.
int wrong_blobs(const Group& group, int rounds) {
    std::atomic<int> wrong{0};
    std::vector<std::thread> threads;
    for (const auto& bootstrap : group) {
        threads.emplace_back([&wrong, rounds, bootstrap] {
            for (int round = 0; round < rounds; ++round) {
                const auto blobs =
                    bootstrap->all_gather(blob_of(bootstrap->rank(), round), Deadline::after(20));
                wrong += blobs.size() != static_cast<size_t>(bootstrap->size());
                for (int i = 0; i < static_cast<int>(blobs.size()); ++i) {
                    wrong += blobs[static_cast<size_t>(i)] != blob_of(i, round);
                }
            }
        });
    }
    for (std::thread& thread : threads) thread.join();
    return wrong;
}

// Ranks 0 and 2 of 5 arrive; both must be told of 1, 3 and 4.
void check_missing(const Group& group) {
    const auto call = [&](size_t rank) {
        return error_of([&] { group[rank]->all_gather("x", Deadline::after(0.3)); });
    };
    Error other(ErrorCode::comm, "");
    std::thread thread([&] { other = call(2); });
    const Error own = call(0);
    thread.join();
    for (const Error& error : {own, other}) {
        CHECK(error.code() == ErrorCode::timeout);
        CHECK(error.ranks() == std::vector<int>{1, 3, 4});
        CHECK(holds(error.what(), "1, 3, 4"));
        CHECK(holds(error.what(), "0.3 s"));
    }
}

}  // namespace

TEST_CASE("all_gather gives every blob to every rank, call after call") {
    for (const int size : {1, 2, 3, 8}) {
        CAPTURE(size);
        CHECK(wrong_blobs(store_group(size), 30) == 0);
        CHECK(wrong_blobs(InprocGroup::create(size), 300) == 0);
    }
}

TEST_CASE("missing ranks are named") {
    SUBCASE("store") {
        check_missing(store_group(5));
    }
    SUBCASE("threads") {
        check_missing(InprocGroup::create(5));
    }
}

TEST_CASE("a late rank among threads still gets all blobs") {
    const Group group = InprocGroup::create(2);
    CHECK(error_of([&] { group[0]->all_gather("early", Deadline::after(0.05)); }).ranks() ==
          std::vector<int>{1});
    const auto blobs = group[1]->all_gather("late", Deadline::after(5));
    CHECK(blobs == std::vector<std::string>{"early", "late"});
}

TEST_CASE("over a store, a rank that comes after others have given up is told so at once") {
    const Group group = store_group(3);
    CHECK(error_of([&] { group[0]->all_gather("early", Deadline::after(0.05)); }).ranks() ==
          std::vector<int>{1, 2});
    Error error(ErrorCode::comm, "");
    const double waited = seconds_of(
        [&] { error = error_of([&] { group[2]->all_gather("late", Deadline::after(20)); }); });
    CHECK(waited < 2);
    CHECK(error.code() == ErrorCode::timeout);
    CHECK(error.ranks() == std::vector<int>{1, 2});
    CHECK(holds(error.what(), "rank 2 of 3 came after another rank had given up"));
    CHECK(holds(error.what(), "waited 0.05 s for rank 1, 2"));
}

TEST_CASE("groups with other prefixes share a store") {
    const auto store = std::make_shared<MemoryStore>();
    const Group first = store_group(2, "first", store);
    const Group second = store_group(3, "second", store);
    std::thread thread([&] { CHECK(wrong_blobs(first, 20) == 0); });
    CHECK(wrong_blobs(second, 20) == 0);
    thread.join();
}

TEST_CASE("two processes with the same rank are told of each other") {
    const auto store = std::make_shared<MemoryStore>();
    store->set("world/claim/1", "2 process 4711 on elsewhere");
    const Group group = store_group(2, "world", store);
    const Error error = error_of([&] { group[1]->all_gather("x", Deadline::after(20)); });
    CHECK(error.code() == ErrorCode::argument);
    CHECK(holds(error.what(), "process 4711 on elsewhere both say that they are rank 1"));
}

TEST_CASE("ranks that disagree on their number are told at once") {
    const auto store = std::make_shared<MemoryStore>();
    StoreBootstrap first(store, 0, 3, "world"), second(store, 1, 4, "world");
    std::thread thread([&] { error_of([&] { first.all_gather("x", Deadline::after(0.5)); }); });
    Error error(ErrorCode::comm, "");
    const double waited =
        seconds_of([&] { error = error_of([&] { second.all_gather("x", Deadline::after(20)); }); });
    thread.join();
    CHECK(waited < 2);
    CHECK(error.code() == ErrorCode::argument);
    CHECK(holds(error.what(), "there are 3 ranks, rank 1 that there are 4"));
}

TEST_CASE("ranks and sizes are checked") {
    const auto store = std::make_shared<MemoryStore>();
    for (const auto& [rank, size] : std::vector<std::pair<int, int>>{{0, 0}, {-1, 2}, {2, 2}}) {
        const Error error = error_of(
            [&, rank = rank, size = size] { StoreBootstrap bootstrap(store, rank, size, "p"); });
        CHECK(error.code() == ErrorCode::argument);
    }
    CHECK(error_of([] { InprocGroup::create(0); }).code() == ErrorCode::argument);
    CHECK(error_of([] { StoreBootstrap(nullptr, 0, 1, "p"); }).code() == ErrorCode::argument);
}

}  // namespace pycomm
