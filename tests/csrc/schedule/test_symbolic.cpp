// Symbolic expressions and memory: what the simulator's verdict rests on.
#include <doctest/doctest.h>

#include <cstdint>
#include <random>
#include <utility>
#include <vector>

#include "schedule/symbolic.h"

using namespace pycomm;
using Id = Expressions::Id;

TEST_CASE("equal expressions have equal ids, other orders other ids") {
    Expressions e(5);
    const Id ab = e.combine(0, 1);
    CHECK(e.combine(0, 1) == ab);
    CHECK(e.combine(1, 0) != ab);
    CHECK(e.text(e.combine(ab, e.combine(2, 3))) == "((0+1)+(2+3))");
    const std::vector<Id> leaves = {0, 1, 2, 3, 4};
    const Id all = e.balanced(leaves);
    CHECK(e.text(all) == "(((0+1)+(2+3))+4)");
    CHECK(e.complete(all));
    CHECK_FALSE(e.complete(ab));
    CHECK(e.combine(e.combine(e.combine(0, 1), e.combine(2, 3)), 4) == all);
}

TEST_CASE("balanced trees put the largest power of two to the left") {
    Expressions e(8);
    const auto text = [&](int size) {
        std::vector<Id> ids;
        for (int i = 0; i < size; i++) ids.push_back(i);
        return e.text(e.balanced(ids));
    };
    CHECK(text(1) == "0");
    CHECK(text(3) == "((0+1)+2)");
    CHECK(text(6) == "(((0+1)+(2+3))+(4+5))");
    CHECK(text(7) == "(((0+1)+(2+3))+((4+5)+6))");
    CHECK(text(8) == "(((0+1)+(2+3))+((4+5)+(6+7)))");
}

TEST_CASE("no rank contributes twice, beyond 64 ranks too") {
    Expressions e(130);
    const Id ab = e.combine(0, 129);
    CHECK(e.combine(ab, 129) == Expressions::invalid);
    CHECK(e.combine(ab, 65) != Expressions::invalid);
    CHECK(e.combine(65, 1) != Expressions::invalid);
    CHECK(e.combine(e.combine(65, 1), e.combine(1, 2)) == Expressions::invalid);
}

TEST_CASE("memory agrees with an array of elements under random writes") {
    std::mt19937 random(7);
    for (int repeat = 0; repeat < 200; repeat++) {
        constexpr int64_t size = 40;
        std::vector<std::pair<Id, int64_t>> reference(size, {Expressions::invalid, 0});
        SymbolicMemory memory;
        for (int w = 0; w < 60; w++) {
            const auto begin = static_cast<int64_t>(random() % size);
            const int64_t end = begin + 1 + static_cast<int64_t>(random() % 6);
            if (end > size) continue;
            const Id value = static_cast<Id>(random() % 3);
            const auto index = begin + static_cast<int64_t>(random() % 2);
            memory.write({begin, end, value, index});
            for (int64_t i = begin; i < end; i++) {
                reference[static_cast<size_t>(i)] = {value, index + (i - begin)};
            }
            const auto from = static_cast<int64_t>(random() % size);
            std::vector<Run> runs;
            const int64_t until = memory.read(from, size, &runs);
            int64_t position = from;
            for (const Run& run : runs) {
                REQUIRE(run.begin == position);
                for (int64_t i = run.begin; i < run.end; i++) {
                    const auto& wanted = reference[static_cast<size_t>(i)];
                    REQUIRE(wanted == std::pair{run.value, run.index + (i - run.begin)});
                }
                position = run.end;
            }
            REQUIRE(position == until);
            if (until < size) {
                REQUIRE(reference[static_cast<size_t>(until)].first == Expressions::invalid);
            }
            bool any = false;
            for (int64_t i = begin - 1; i < end + 1; i++) {
                any = any || (i >= 0 && i < size &&
                              reference[static_cast<size_t>(i)].first != Expressions::invalid);
            }
            REQUIRE(memory.overlaps(begin - 1, end + 1) == any);
        }
    }
}

TEST_CASE("continuous writes join into one run") {
    SymbolicMemory memory;
    memory.write({10, 20, 3, 110});
    memory.write({30, 40, 3, 130});
    memory.write({20, 30, 3, 120});
    std::vector<Run> runs;
    CHECK(memory.read(10, 40, &runs) == 40);
    REQUIRE(runs.size() == 1);
    CHECK(runs[0].index == 110);
}
