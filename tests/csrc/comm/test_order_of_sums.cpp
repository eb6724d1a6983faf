// The order of a sum in the bits of its result: the same tree whichever algorithm is forced.
#include <doctest/doctest.h>

#include <bit>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "comm/rank_threads.h"

using namespace pycomm;
using namespace pycomm::testing;

namespace {

// What `rank` contributes. Near 1e8 float32 knows multiples of 8 only, so what is added there early
// is rounded away and what is added late is not. The places within a pair change from element to
// element, since no single arrangement tells all orders apart. The sum of the first four is 520 to
// 1016, where float32 knows multiples of 2^-14: there each of the last two is rounded away, and
// both together are not.
float contribution(int rank, int64_t element) {
    const auto varied = static_cast<float>(5 + 8 * (64 + element % 63));
    float of_ranks[] = {1e8F, 1, -1e8F, varied, 2, 0x1.4p-16F, 0x1.4p-16F};
    if (element % 2 == 1) std::swap(of_ranks[2], of_ranks[3]);
    if (element / 2 % 2 == 1) std::swap(of_ranks[0], of_ranks[1]);
    return of_ranks[rank];
}

// The tree of each size, written out.
float sum_by_tree(int size, int64_t element) {
    const auto x = [&](int rank) { return contribution(rank, element); };
    switch (size) {
        case 4:
            return (x(0) + x(1)) + (x(2) + x(3));
        case 5:
            return ((x(0) + x(1)) + (x(2) + x(3))) + x(4);
        default:
            return ((x(0) + x(1)) + (x(2) + x(3))) + ((x(4) + x(5)) + x(6));
    }
}

bool has_result(const Communicator& comm, OpKind kind) {
    return kind == OpKind::all_reduce || comm.rank() == comm.size() - 1;
}

std::shared_ptr<Task> sum_task(Communicator& comm, OpKind kind, std::vector<float>& input,
                               std::vector<float>& output) {
    CollectiveRequest request;
    request.kind = kind;
    request.op = ReduceOp::sum;
    const auto count = static_cast<int64_t>(input.size());
    request.input = {input.data(), count, DataType::float32};
    if (kind == OpKind::reduce) request.root = comm.size() - 1;
    if (has_result(comm, kind)) request.output = {output.data(), count, DataType::float32};
    return comm.collective(std::move(request), std::nullopt);
}

void check_sum(Communicator& comm, OpKind kind, int64_t count, bool in_place) {
    std::vector<float> input, sentinel(static_cast<size_t>(count), -77);
    for (int64_t i = 0; i < count; i++) input.push_back(contribution(comm.rank(), i));
    std::vector<float>& output = in_place ? input : sentinel;
    const auto task = sum_task(comm, kind, input, output);
    comm.run({&task, 1}, nullptr);
    if (!has_result(comm, kind)) return;
    for (int64_t i = 0; i < count; i++) {
        const float got = output[static_cast<size_t>(i)], right = sum_by_tree(comm.size(), i);
        expect(std::bit_cast<uint32_t>(got) == std::bit_cast<uint32_t>(right), kind_name(kind), " ",
               count, in_place ? " in place" : "", ", element ", i, ": ", got, " is not ", right);
    }
}

void check_algorithm(OpKind kind, const std::string& algorithm) {
    CAPTURE(algorithm);
    Env env = quick_env();
    env.algorithm = concat(kind_name(kind), ":", algorithm);
    for (const int size : {4, 5, 7}) {
        CAPTURE(size);
        check_all_well(run_ranks(size, env, [&](Communicator& comm) {
            // Fewer elements than ranks, slices of unequal size, and more than one segment.
            for (const int64_t count : {1, 3, 6, 1001, 600011}) {
                for (const bool in_place : {false, true}) check_sum(comm, kind, count, in_place);
            }
        }));
    }
}

}  // namespace

TEST_CASE("other orders give other bits") {
    // Of `order`, a sum of x(0), x(1), ...: whether it shows in two elements that follow each
    // other.
    const auto shows = [](int size, auto order) {
        for (const int64_t element : {0, 1, 2, 3}) {
            const auto x = [&](int rank) { return contribution(rank, element); };
            if (order(x) != sum_by_tree(size, element)) return true;
        }
        return false;
    };
    CHECK(shows(4, [](auto x) { return ((x(0) + x(1)) + x(2)) + x(3); }));
    CHECK(shows(4, [](auto x) { return x(0) + (x(1) + (x(2) + x(3))); }));
    CHECK(shows(4, [](auto x) { return (x(0) + x(2)) + (x(1) + x(3)); }));
    CHECK(shows(4, [](auto x) { return (x(0) + x(3)) + (x(1) + x(2)); }));
    CHECK(shows(5, [](auto x) { return (((x(0) + x(1)) + x(2)) + x(3)) + x(4); }));
    CHECK(shows(5, [](auto x) { return (((x(0) + x(4)) + x(1)) + (x(2) + x(3))); }));
    CHECK(shows(5, [](auto x) { return (x(0) + x(1)) + (x(2) + (x(3) + x(4))); }));
    CHECK(
        shows(7, [](auto x) { return ((((x(0) + x(1)) + (x(2) + x(3))) + x(4)) + x(5)) + x(6); }));
    CHECK(
        shows(7, [](auto x) { return (((x(0) + x(1)) + (x(2) + x(3))) + (x(4) + x(5))) + x(6); }));
    for (const int64_t element : {0, 1, 62}) {
        CHECK(sum_by_tree(4, element) == static_cast<float>(8 * (65 + element)));
        CHECK(sum_by_tree(5, element) == static_cast<float>(8 * (65 + element) + 2));
    }
}

TEST_CASE("all_reduce adds in the order of the tree") {
    for (const char* algorithm :
         {"direct", "recursive_doubling", "recursive_halving", "pairwise"}) {
        check_algorithm(OpKind::all_reduce, algorithm);
    }
}

TEST_CASE("reduce adds in the order of the tree") {
    for (const char* algorithm : {"direct", "tree", "pairwise", "linear"}) {
        check_algorithm(OpKind::reduce, algorithm);
    }
}
