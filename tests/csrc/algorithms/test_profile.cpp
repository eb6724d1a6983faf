// Profiles: what they say, and what is refused.
#include <doctest/doctest.h>

#include <string>

#include "algorithms/profile.h"
#include "base/error.h"

namespace pycomm {
namespace {

const std::string head = "pycomm-profile 1\nmachine Some Processor, 2 processors\n";

std::string refusal(const std::string& text) {
    try {
        parse_profile(text);
    } catch (const Error& error) {
        CHECK(error.code() == ErrorCode::argument);
        return error.what();
    }
    return "";
}

bool contains(const std::string& text, const std::string& part) {
    return text.find(part) != std::string::npos;
}

TEST_CASE("a profile gives the rows of a group of ranks, and they are used") {
    const Profile profile = parse_profile(head +
                                          "shm 2 all_reduce 4096 recursive_doubling\n"
                                          "shm 2 all_reduce any ring\n"
                                          "shm 4 all_reduce any pairwise\n"
                                          "tcp 2 broadcast any linear\n");
    CHECK(profile.machine == "Some Processor, 2 processors");
    const auto two = profile.of("shm", 2);
    REQUIRE(two.size() == 2);
    CHECK(two[0].up_to_bytes == 4096);
    CHECK(profile.of("shm", 3).empty());
    CHECK(profile.of("tcp", 2).size() == 1);

    Problem problem;
    problem.kind = OpKind::all_reduce;
    problem.size = 2;
    problem.count = 1024;
    CHECK(select_algorithm(problem, "", two) == Algorithm::recursive_doubling);
    problem.count = 1025;
    CHECK(select_algorithm(problem, "", two) == Algorithm::ring);
    CHECK(select_algorithm(problem, "") == Algorithm::recursive_doubling);
    CHECK(select_algorithm(problem, "all_reduce:pairwise", two) == Algorithm::pairwise);
    problem.count = int64_t{1} << 62;  // more bytes than 64 bits can say
    CHECK(select_algorithm(problem, "", two) == Algorithm::ring);
    problem.kind = OpKind::reduce;  // nothing said about it
    CHECK(select_algorithm(problem, "", two) == Algorithm::pairwise);
    CHECK(profile_algorithm(OpKind::reduce, 1, two) == Algorithm::automatic);
}

TEST_CASE("a profile that is not whole and sensible is refused, and the reason told") {
    CHECK(parse_profile(head).rows.empty());
    CHECK(contains(refusal(""), "empty or cut off"));
    CHECK(contains(refusal(head + "shm 2 all_reduce any ring"), "cut off"));
    CHECK(contains(refusal("pycomm-profile 2\nmachine x\n"), "does not begin"));
    CHECK(contains(refusal("pycomm-profile 1\n"), "name the machine"));
    CHECK(contains(refusal(std::string("\x7f\x45\x4c\x46\0\1\n", 7)), "does not begin"));
    CHECK(contains(refusal(head + std::string(2 << 20, 'x') + "\n"), "larger than"));
    const std::pair<const char*, const char*> rows[] = {
        {"shm 2 all_reduce any", "line 3"},
        {"shm 2 all_reduce any ring more", "line 3"},
        {"\n", "line 3"},
        {"ib 2 all_reduce any ring", "transport is 'ib'"},
        {"shm two all_reduce any ring", "number of ranks is 'two'"},
        {"shm 0 all_reduce any ring", "number of ranks is '0'"},
        {"shm 2 allreduce any ring", "unknown operation 'allreduce'"},
        {"shm 2 all_reduce any star", "no algorithm 'star'"},
        {"shm 2 broadcast any ring", "no algorithm 'ring'"},
        {"shm 2 all_reduce any auto", "no choice"},
        {"tcp 2 all_reduce any direct", "tcp has no algorithm 'direct'"},
        {"shm 2 all_reduce -1 ring\nshm 2 all_reduce any ring", "size is '-1'"},
        {"shm 2 all_reduce 1e3 ring\nshm 2 all_reduce any ring", "size is '1e3'"},
        {"shm 2 all_reduce 99999999999999999999 ring", "size is '9"},
        {"shm 2 all_reduce 100 ring", "do not end with 'any'"},
        {"shm 2 all_reduce any ring\nshm 2 all_reduce any ring", "do not end with 'any'"},
        {"shm 2 all_reduce 100 ring\nshm 2 all_reduce 100 ring\nshm 2 all_reduce any ring",
         "do not grow"},
        {"shm 2 reduce any tree\nshm 2 gather any linear\nshm 2 reduce any tree",
         "do not stand together"},
    };
    for (const auto& [row, reason] : rows) {
        const std::string text = refusal(head + row + "\n");
        CAPTURE(row);
        CAPTURE(text);
        CHECK(contains(text, reason));
    }
}

TEST_CASE("the machine has a name of one line") {
    CHECK(contains(machine_name(), "processors"));
    CHECK_FALSE(contains(machine_name(), "\n"));
    CHECK(parse_profile("pycomm-profile 1\nmachine " + machine_name() + "\n").machine ==
          machine_name());
}

}  // namespace
}  // namespace pycomm
