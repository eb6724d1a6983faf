// Every algorithm, simulated for all rank counts from 1 to 64 and awkward counts.
#include <doctest/doctest.h>

#include <bit>
#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "algorithms/problems.h"

using namespace pycomm;
using namespace pycomm::testing;

namespace {

constexpr int max_size = 64;

// The instrumented builds are many times slower and need not see every size.
bool skipped(int size) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    return size > 20 && size != 31 && size != 64;
#else
    static_cast<void>(size);
    return false;
#endif
}

template <typename Visitor>
void for_each_size(Visitor visitor) {
    for (int size = 1; size <= max_size; size++) {
        if (!skipped(size)) visitor(size);
    }
}

// Every algorithm of the kind.
void check(const Collective& collective) {
    for (const Algorithm algorithm : algorithms_for(collective.kind)) {
        REQUIRE(verdict(collective, algorithm) == "");
    }
}

void check_in_and_out_of_place(Collective collective) {
    check(collective);
    collective.in_place = true;
    check(collective);
}

}  // namespace

TEST_CASE("all_reduce") {
    for_each_size([](int size) {
        for (const int64_t count : awkward_counts(size)) {
            check_in_and_out_of_place(all_ranks(OpKind::all_reduce, size, count));
        }
    });
}

TEST_CASE("reduce") {
    for_each_size([](int size) {
        for (const int root : roots(size)) {
            for (const int64_t count : awkward_counts(size)) {
                check_in_and_out_of_place(all_ranks(OpKind::reduce, size, count, root));
            }
        }
    });
}

TEST_CASE("broadcast") {
    for_each_size([](int size) {
        for (const int root : roots(size)) {
            for (const int64_t count : awkward_counts(size)) {
                check(all_ranks(OpKind::broadcast, size, count, root));
            }
        }
    });
}

TEST_CASE("reduce_scatter and all_gather") {
    for_each_size([](int size) {
        for (const auto& counts : awkward_slices(size)) {
            for (const OpKind kind : {OpKind::reduce_scatter, OpKind::all_gather}) {
                Collective collective = all_ranks(kind, size);
                collective.counts = counts;
                check_in_and_out_of_place(collective);
            }
        }
    });
}

TEST_CASE("gather and scatter") {
    for_each_size([](int size) {
        for (const int root : roots(size)) {
            for (const auto& counts : awkward_slices(size)) {
                for (const OpKind kind : {OpKind::gather, OpKind::scatter}) {
                    Collective collective = all_ranks(kind, size, 0, root);
                    collective.counts = counts;
                    check_in_and_out_of_place(collective);
                }
            }
        }
    });
}

TEST_CASE("all_to_all") {
    for_each_size([](int size) {
        for (int pattern = 0; pattern < 4; pattern++) {
            Collective collective = all_ranks(OpKind::all_to_all, size);
            for (int from = 0; from < size; from++) {
                std::vector<int64_t> row;
                for (int to = 0; to < size; to++) {
                    const int64_t counts[] = {1, (from * 3 + to) % 4, from == to ? 5 : 0,
                                              from == size / 2 ? 1000 + to : 0};
                    row.push_back(counts[pattern]);
                }
                collective.send_counts.push_back(row);
            }
            check(collective);
        }
    });
}

TEST_CASE("barrier") {
    for_each_size([](int size) { check(all_ranks(OpKind::barrier, size)); });
    for (const int size : {65, 100, 127, 128, 129, 300}) {
        check(all_ranks(OpKind::barrier, size));
    }
}

TEST_CASE("long buffers, which go in segments") {
    for (const int size : {1, 2, 3, 4, 5, 7, 8, 13}) {
        // Two to four segments of 16-byte elements, cut at places that are no multiples of
        // anything.
        const int64_t slice = 100003;
        for (const bool in_place : {false, true}) {
            for (const OpKind kind : {OpKind::all_reduce, OpKind::reduce, OpKind::broadcast}) {
                for (const int root : {0, size / 2, size - 1}) {
                    Collective collective = all_ranks(kind, size, slice * size + 1, root);
                    collective.in_place = in_place && kind != OpKind::broadcast;
                    for (const Algorithm algorithm : algorithms_for(kind)) {
                        REQUIRE(verdict(collective, algorithm, 16) == "");
                    }
                }
            }
            for (const OpKind kind : {OpKind::reduce_scatter, OpKind::all_gather}) {
                Collective collective = all_ranks(kind, size);
                collective.in_place = in_place;
                for (int i = 0; i < size; i++) {
                    collective.counts.push_back(i % 3 == 1 ? i - 1 : slice + 10 * i);
                }
                for (const Algorithm algorithm : algorithms_for(kind)) {
                    REQUIRE(verdict(collective, algorithm, 16) == "");
                }
            }
        }
    }
}

TEST_CASE("segments of a slice hold 256 to 512 KiB, and are at most 1024") {
    const auto check_segments = [](int64_t count, int64_t least, int64_t most, size_t segments) {
        Collective collective = all_ranks(OpKind::all_reduce, 4, count);
        const Schedule schedule = build_schedule(of_rank(collective, 1, 8), Algorithm::pairwise);
        size_t reductions = 0;
        for (const Round& round : schedule.lanes[0].rounds) {
            for (const Step& step : round.steps) {
                if (step.kind != StepKind::recv_reduce_all) continue;
                reductions++;
                CHECK(step.dst.count * 8 >= least);
                CHECK(step.dst.count * 8 <= most);
            }
        }
        CHECK(reductions == segments);
    };
    check_segments(4 * 65536, 512 << 10, 512 << 10, 1);
    check_segments(4 * 65540, 256 << 10, 512 << 10, 2);
    check_segments(4 * 1000000, 256 << 10, 512 << 10, 16);
    check_segments(int64_t{1} << 33, 16 << 20, 16 << 20, 1024);
}

TEST_CASE("2^33 elements of 8 bytes") {
    const int64_t count = int64_t{1} << 33;
    for (const int size : {1, 2, 3, 4}) {
        for (const OpKind kind : {OpKind::all_reduce, OpKind::reduce, OpKind::broadcast}) {
            for (const Algorithm algorithm : algorithms_for(kind)) {
                CHECK(verdict(all_ranks(kind, size, count + 1), algorithm, 8) == "");
            }
        }
        for (const OpKind kind :
             {OpKind::reduce_scatter, OpKind::all_gather, OpKind::gather, OpKind::scatter}) {
            Collective collective = all_ranks(kind, size);
            for (int i = 0; i < size; i++) collective.counts.push_back(slice_count(count, size, i));
            for (const Algorithm algorithm : algorithms_for(kind)) {
                CHECK(verdict(collective, algorithm, 8) == "");
            }
        }
        Collective collective = all_ranks(OpKind::all_to_all, size);
        collective.send_counts.assign(static_cast<size_t>(size),
                                      std::vector<int64_t>(static_cast<size_t>(size), count));
        CHECK(verdict(collective, Algorithm::pairwise, 8) == "");
    }
}

TEST_CASE("steps per rank are those that the algorithms claim") {
    const auto rounds = [](const Schedule& schedule) { return schedule.lanes[0].rounds.size(); };
    for (const int size : {2, 3, 5, 8, 13, 64}) {
        const auto ranks = static_cast<size_t>(size);
        const size_t levels = std::bit_width(ranks - 1);
        const Collective reduce = all_ranks(OpKind::all_reduce, size, 1000);
        Collective gather = all_ranks(OpKind::all_gather, size);
        gather.counts.assign(ranks, 3);
        for (int rank = 0; rank < size; rank++) {
            const auto all_reduce = [&](Algorithm algorithm) {
                return build_schedule(of_rank(reduce, rank, 4), algorithm);
            };
            CHECK(rounds(all_reduce(Algorithm::pairwise)) == 2);
            CHECK(rounds(all_reduce(Algorithm::ring)) == 2 * (ranks - 1));
            CHECK(rounds(all_reduce(Algorithm::recursive_doubling)) <= levels);
            CHECK(rounds(all_reduce(Algorithm::recursive_halving)) <= 2 * levels);
            CHECK(all_reduce(Algorithm::pairwise).reduces_at_once);
            CHECK_FALSE(all_reduce(Algorithm::ring).reduces_at_once);
            CHECK_FALSE(all_reduce(Algorithm::recursive_doubling).reduces_at_once);
            CHECK(rounds(build_schedule(of_rank(gather, rank, 4), Algorithm::recursive_doubling)) ==
                  levels);
            CHECK(rounds(build_schedule(of_rank(all_ranks(OpKind::barrier, size), rank, 1),
                                        Algorithm::dissemination)) == levels);
        }
    }
}

TEST_CASE("recursive halving sends as little as it claims") {
    for_each_size([](int size) {
        const int64_t count = int64_t{64} * 15;
        for (const Schedule& schedule : build_all(all_ranks(OpKind::all_reduce, size, count),
                                                  Algorithm::recursive_halving, 4)) {
            int64_t sent = 0;
            for (const Lane& lane : schedule.lanes) {
                for (const Round& round : lane.rounds) {
                    for (const Step& step : round.steps) {
                        if (step.kind == StepKind::send) sent += step.src.count;
                    }
                }
            }
            CHECK(sent <= 2 * count);
            if (std::has_single_bit(static_cast<unsigned>(size))) {
                CHECK(sent == 2 * (count - count / size));
            }
        }
    });
}

TEST_CASE("nobody is everybody's first target") {
    constexpr int size = 7;
    std::set<int> first_targets;
    for (const Schedule& schedule :
         build_all(all_ranks(OpKind::all_reduce, size, 70), Algorithm::pairwise, 4)) {
        for (const Step& step : schedule.lanes[0].rounds[0].steps) {
            if (step.kind != StepKind::send) continue;
            first_targets.insert(step.peer);
            break;
        }
    }
    CHECK(first_targets.size() == size);
}

TEST_CASE("a schedule as it is printed") {
    const Collective collective = all_ranks(OpKind::reduce, 5, 6, 3);
    CHECK(to_string(build_schedule(of_rank(collective, 3, 4), Algorithm::tree)) ==
          "lane 0 round 0: recv_reduce from 2 (first) input[0:6] -> output[0:6]\n"
          "lane 0 round 1: recv_reduce from 0 (first) output[0:6] -> output[0:6]\n"
          "lane 0 round 2: recv_reduce from 4 output[0:6] -> output[0:6]\n");
    CHECK(to_string(build_schedule(of_rank(collective, 0, 4), Algorithm::tree)) ==
          "lane 0 round 0: recv_reduce from 1 input[0:6] -> scratch[0:6]\n"
          "lane 0 round 1: send to 3 scratch[0:6]\n");
}

TEST_CASE("recursive halving adds neighbours first, and a small right part hands its sum over") {
    const Collective collective = all_ranks(OpKind::all_reduce, 5, 8);
    CHECK(to_string(build_schedule(of_rank(collective, 1, 4), Algorithm::recursive_halving)) ==
          "lane 0 round 0: send to 0 input[0:4]\n"
          "lane 0 round 0: recv_reduce from 0 (first) input[4:8] -> output[4:8]\n"
          "lane 0 round 1: send to 3 output[6:8]\n"
          "lane 0 round 1: recv_reduce from 3 output[4:6] -> output[4:6]\n"
          "lane 0 round 2: recv_reduce from 4 output[4:6] -> output[4:6]\n"
          "lane 0 round 3: send to 4 output[4:6]\n"
          "lane 0 round 4: send to 3 output[4:6]\n"
          "lane 0 round 4: recv from 3 -> output[6:8]\n"
          "lane 0 round 5: send to 0 output[4:8]\n"
          "lane 0 round 5: recv from 0 -> output[0:4]\n");
    CHECK(to_string(build_schedule(of_rank(collective, 4, 4), Algorithm::recursive_halving)) ==
          "lane 0 round 0: send to 0 input[0:2]\n"
          "lane 0 round 0: send to 1 input[4:6]\n"
          "lane 0 round 0: send to 2 input[2:4]\n"
          "lane 0 round 0: send to 3 input[6:8]\n"
          "lane 0 round 1: recv from 0 -> output[0:2]\n"
          "lane 0 round 1: recv from 1 -> output[4:6]\n"
          "lane 0 round 1: recv from 2 -> output[2:4]\n"
          "lane 0 round 1: recv from 3 -> output[6:8]\n");
}
