// Chunk arithmetic and the printer.
#include <doctest/doctest.h>

#include <cstdint>
#include <vector>

#include "schedule/schedule.h"

using namespace pycomm;

TEST_CASE("slices are those of numpy.array_split") {
    const auto counts = [](int64_t count, int parts) {
        std::vector<int64_t> result;
        for (int i = 0; i < parts; i++) result.push_back(slice_count(count, parts, i));
        return result;
    };
    CHECK(counts(10, 4) == std::vector<int64_t>{3, 3, 2, 2});
    CHECK(counts(3, 4) == std::vector<int64_t>{1, 1, 1, 0});
    CHECK(counts(0, 3) == std::vector<int64_t>{0, 0, 0});
    CHECK(counts(8, 4) == std::vector<int64_t>{2, 2, 2, 2});
    CHECK(counts(7, 1) == std::vector<int64_t>{7});
}

TEST_CASE("slices cover 64-bit counts exactly once") {
    const int64_t big = int64_t{1} << 33;
    for (const int64_t count : {big, big - 1, big + 1, big * 8, (int64_t{1} << 62) + 12345}) {
        for (const int parts : {1, 2, 3, 7, 63, 64, 1000, 1024}) {
            CHECK(slice_offset(count, parts, 0) == 0);
            CHECK(slice_offset(count, parts, parts) == count);
            for (int i = 0; i < parts; i++) {
                const int64_t size = slice_count(count, parts, i);
                REQUIRE(size >= count / parts);
                REQUIRE(size <= count / parts + 1);
                REQUIRE((i == 0 || size <= slice_count(count, parts, i - 1)));
            }
        }
    }
}

TEST_CASE("the printer writes one line a step") {
    Schedule schedule;
    schedule.lanes.resize(2);
    schedule.lanes[0].rounds.resize(2);
    schedule.lanes[0].rounds[0].steps = {
        {StepKind::copy, -1, {Space::input, 0, 8}, {Space::output, 8, 8}},
        {StepKind::send, 3, {Space::input, 8, 8}, {}},
        {StepKind::recv, 2, {}, {Space::scratch, 0, 4}},
    };
    schedule.lanes[0].rounds[1].steps = {
        {StepKind::recv_reduce, 1, {Space::output, 0, 512}, {Space::output, 0, 512}},
        {StepKind::recv_reduce, 1, {Space::input, 0, 1}, {Space::scratch, 1, 1}, true},
    };
    schedule.lanes[1].rounds.resize(1);
    schedule.lanes[1].rounds[0].steps = {
        {StepKind::recv_reduce_all, -1, {Space::input, 5, 2}, {Space::output, 0, 2}}};
    CHECK(to_string(schedule) ==
          "lane 0 round 0: copy input[0:8] -> output[8:16]\n"
          "lane 0 round 0: send to 3 input[8:16]\n"
          "lane 0 round 0: recv from 2 -> scratch[0:4]\n"
          "lane 0 round 1: recv_reduce from 1 output[0:512] -> output[0:512]\n"
          "lane 0 round 1: recv_reduce from 1 (first) input[0:1] -> scratch[1:2]\n"
          "lane 1 round 0: recv_reduce_all input[5:7] -> output[0:2]\n");
    CHECK(to_string(Schedule{}) == "");
}
