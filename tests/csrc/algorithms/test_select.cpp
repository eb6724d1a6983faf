// The choice of algorithms, PYCOMM_ALGO, and what build_schedule refuses.
#include <doctest/doctest.h>

#include <cstdint>
#include <string>
#include <vector>

#include "algorithms/problems.h"

using namespace pycomm;
using namespace pycomm::testing;

namespace {

constexpr OpKind kinds[] = {OpKind::all_reduce, OpKind::reduce_scatter, OpKind::all_gather,
                            OpKind::broadcast,  OpKind::reduce,         OpKind::gather,
                            OpKind::scatter,    OpKind::all_to_all,     OpKind::barrier};

Problem problem(OpKind kind, int64_t count = 0, size_t element_size = 4) {
    Problem p;
    p.kind = kind;
    p.size = 3;
    p.count = count;
    p.element_size = element_size;
    p.counts = p.send_counts = p.recv_counts = {count, count, count};
    return p;
}

Algorithm chosen(OpKind kind, int64_t count, size_t element_size = 4,
                 const std::string& forced = "") {
    return select_algorithm(problem(kind, count, element_size), forced);
}

// The text of the ArgumentError that `call` throws; "" when it throws none.
template <typename Call>
std::string argument_error(Call call) {
    try {
        call();
    } catch (const Error& error) {
        CHECK(error.code() == ErrorCode::argument);
        return error.what();
    }
    return "";
}

bool contains(const std::string& text, const std::string& part) {
    return text.find(part) != std::string::npos;
}

}  // namespace

TEST_CASE("defaults") {
    CHECK(chosen(OpKind::all_reduce, 0) == Algorithm::recursive_doubling);
    CHECK(chosen(OpKind::all_reduce, 4096) == Algorithm::recursive_doubling);
    CHECK(chosen(OpKind::all_reduce, 4097) == Algorithm::pairwise);
    CHECK(chosen(OpKind::all_reduce, 2048, 8) == Algorithm::recursive_doubling);
    CHECK(chosen(OpKind::all_reduce, 2049, 8) == Algorithm::pairwise);
    CHECK(chosen(OpKind::all_reduce, int64_t{1} << 62, 16) == Algorithm::pairwise);
    CHECK(chosen(OpKind::reduce, 4096) == Algorithm::tree);
    CHECK(chosen(OpKind::reduce, 4097) == Algorithm::pairwise);
    CHECK(chosen(OpKind::broadcast, 10) == Algorithm::tree);
    CHECK(chosen(OpKind::reduce_scatter, 10) == Algorithm::pairwise);
    CHECK(chosen(OpKind::all_gather, 10) == Algorithm::pairwise);
    CHECK(chosen(OpKind::all_to_all, 10) == Algorithm::pairwise);
    CHECK(chosen(OpKind::gather, 10) == Algorithm::linear);
    CHECK(chosen(OpKind::scatter, 10) == Algorithm::linear);
    CHECK(chosen(OpKind::barrier, 0) == Algorithm::dissemination);
    CHECK(contains(argument_error([] { chosen(OpKind::send, 1); }), "send"));
}

TEST_CASE("the choice exists, and is the same on every rank") {
    for (const OpKind kind : kinds) {
        for (const int64_t count : {0, 1, 5000, 1000000}) {
            Problem p = problem(kind, count);
            p.counts = {0, count, 7};
            const Algorithm first = select_algorithm(p, "");
            for (p.rank = 0; p.rank < p.size; p.rank++) CHECK(select_algorithm(p, "") == first);
            p.rank = 0;
            CHECK_NOTHROW(build_schedule(p, first));
        }
    }
}

TEST_CASE("forced choices") {
    const std::string forced = "all_reduce:ring,broadcast:linear, reduce : auto ,barrier:direct";
    check_forced(forced);
    CHECK(chosen(OpKind::all_reduce, 1, 4, forced) == Algorithm::ring);
    CHECK(chosen(OpKind::broadcast, 1, 4, forced) == Algorithm::linear);
    CHECK(chosen(OpKind::reduce, 1, 4, forced) == Algorithm::tree);
    CHECK(chosen(OpKind::barrier, 0, 4, forced) == Algorithm::direct);
    CHECK(chosen(OpKind::all_gather, 1, 4, forced) == Algorithm::pairwise);
    CHECK(forced_algorithm(OpKind::all_reduce, forced) == Algorithm::ring);
    CHECK(forced_algorithm(OpKind::gather, forced) == Algorithm::automatic);
    CHECK(forced_algorithm(OpKind::gather, "") == Algorithm::automatic);
    // Every algorithm of the table can be named, and the way over mapped memory.
    for (const OpKind kind : kinds) {
        const std::string text = concat(kind_name(kind), ":direct");
        CHECK(forced_algorithm(kind, text) == Algorithm::direct);
    }
    for (const OpKind kind : kinds) {
        for (const Algorithm algorithm : algorithms_for(kind)) {
            const std::string text = concat(kind_name(kind), ":", algorithm_name(algorithm));
            CHECK(chosen(kind, 1, 4, text) == algorithm);
        }
    }
    CHECK_NOTHROW(check_forced(""));
    CHECK_NOTHROW(check_forced("  "));
}

TEST_CASE("forced choices that are refused") {
    const auto error = [](const std::string& forced) {
        const std::string text = argument_error([&] { check_forced(forced); });
        // The same text from both functions, whatever the operation; it lists what is known.
        CHECK(text == argument_error([&] { chosen(OpKind::barrier, 0, 4, forced); }));
        CHECK(contains(text, "PYCOMM_ALGO is '" + forced + "'"));
        return text;
    };
    const std::string known =
        "all_reduce (pairwise, ring, recursive_doubling, recursive_halving, direct, auto)";
    for (const char* forced :
         {"ring", "allreduce:ring", "all_reduce:rng", "all_reduce:tree", ",", "all_reduce:ring,",
          "all_reduce:", ":ring", "all_reduce:ring:ring", "send:linear", "all_reduce:RING"}) {
        const std::string text = error(forced);
        CHECK(contains(text, known));
        CHECK(contains(text, "barrier (dissemination, direct, auto)"));
    }
    CHECK(contains(error("allreduce:ring"), "unknown operation 'allreduce'"));
    CHECK(contains(error("broadcast:ring"), "broadcast has no algorithm 'ring'"));
    CHECK(contains(error("all_reduce:ring,all_reduce:pairwise"), "all_reduce twice"));
}

TEST_CASE("schedules that are refused") {
    const auto error = [](const Problem& p, Algorithm algorithm) {
        return argument_error([&] { build_schedule(p, algorithm); });
    };
    const Problem good = problem(OpKind::all_reduce, 5);
    CHECK(contains(error(good, Algorithm::direct),
                   "direct for all_reduce; known are: pairwise, ring"));
    CHECK(contains(error(good, Algorithm::automatic), "auto for all_reduce"));
    CHECK(contains(error(good, Algorithm::tree), "tree for all_reduce"));
    CHECK(contains(error(problem(OpKind::close), Algorithm::ring), "known are: none"));
    const auto spoilt = [&](OpKind kind, Algorithm algorithm, auto spoil) {
        Problem p = problem(kind, 5);
        spoil(p);
        return error(p, algorithm);
    };
    CHECK(contains(spoilt(OpKind::reduce, Algorithm::tree, [](Problem& p) { p.root = 3; }),
                   "root 3 of 3 ranks"));
    CHECK(contains(spoilt(OpKind::reduce, Algorithm::tree, [](Problem& p) { p.rank = -1; }),
                   "rank -1 of 3 ranks"));
    CHECK(contains(spoilt(OpKind::reduce, Algorithm::tree, [](Problem& p) { p.count = -1; }),
                   "count -1"));
    CHECK(contains(spoilt(OpKind::gather, Algorithm::linear, [](Problem& p) { p.counts = {1, 2}; }),
                   "counts has 2 entries for 3 ranks"));
    CHECK(contains(spoilt(OpKind::scatter, Algorithm::linear, [](Problem& p) { p.counts[1] = -4; }),
                   "counts holds -4"));
    CHECK(contains(
        spoilt(OpKind::all_to_all, Algorithm::pairwise, [](Problem& p) { p.recv_counts[0] = 6; }),
        "sends itself 5 elements but receives 6"));
    CHECK(contains(
        spoilt(OpKind::all_to_all, Algorithm::pairwise, [](Problem& p) { p.in_place = true; }),
        "in place"));
}
