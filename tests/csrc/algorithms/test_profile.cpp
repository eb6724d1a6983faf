// Profiles: what they say, and what is refused.
#include <doctest/doctest.h>
#include <sys/stat.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
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
                                          "shm 2 all_reduce any recursive_halving\n"
                                          "shm 2 limit 100 copied\n"
                                          "shm 4 all_reduce any pairwise\n"
                                          "shm 4 limit any copied\n"
                                          "shm 4 limit 0 staged\n"
                                          "shm 4 limit 77 claimed\n"
                                          "tcp 2 broadcast any linear\n");
    CHECK(profile.machine == "Some Processor, 2 processors");
    const Choices choices = profile.of("shm", 2);
    const auto& two = choices.thresholds;
    REQUIRE(two.size() == 2);
    CHECK(two[0].up_to_bytes == 4096);
    CHECK(profile.of("shm", 3).thresholds.empty());
    CHECK(profile.of("tcp", 2).thresholds.size() == 1);
    CHECK(choices.limits.copied == 100);
    CHECK(choices.limits.staged == SizeLimits::automatic);
    CHECK(choices.limits.claimed == SizeLimits().claimed);
    CHECK(profile.of("tcp", 2).limits.copied == SizeLimits().copied);
    const SizeLimits four = profile.of("shm", 4).limits;
    CHECK(four.copied == any_bytes);
    CHECK(four.staged == 0);
    CHECK(four.claimed == 77);

    Problem problem;
    problem.kind = OpKind::all_reduce;
    problem.size = 2;
    problem.count = 1024;
    CHECK(select_algorithm(problem, "", two) == Algorithm::recursive_doubling);
    problem.count = 1025;
    CHECK(select_algorithm(problem, "", two) == Algorithm::recursive_halving);
    CHECK(select_algorithm(problem, "") == Algorithm::recursive_doubling);
    CHECK(select_algorithm(problem, "all_reduce:pairwise", two) == Algorithm::pairwise);
    problem.count = int64_t{1} << 62;  // more bytes than 64 bits can say
    CHECK(select_algorithm(problem, "", two) == Algorithm::recursive_halving);
    problem.kind = OpKind::reduce;  // nothing said about it
    CHECK(select_algorithm(problem, "", two) == Algorithm::pairwise);
    CHECK(profile_algorithm(OpKind::reduce, 1, two) == Algorithm::automatic);
}

TEST_CASE("a profile that is not whole and sensible is refused, and the reason told") {
    CHECK(parse_profile(head).rows.empty());
    CHECK(contains(refusal(""), "empty or cut off"));
    CHECK(contains(refusal(head + "shm 2 all_reduce any pairwise"), "cut off"));
    CHECK(contains(refusal("pycomm-profile 2\nmachine x\n"), "does not begin"));
    CHECK(contains(refusal("pycomm-profile 1\n"), "name the machine"));
    CHECK(contains(refusal(std::string("\x7f\x45\x4c\x46\0\1\n", 7)), "does not begin"));
    CHECK(contains(refusal("pycomm-profile 1\nmachine \x80\xff\n"), "name the machine"));
    CHECK(contains(refusal(head + std::string(2 << 20, 'x') + "\n"), "larger than"));
    const std::string long_line = refusal(head + std::string(1000, 'x') + "\n");
    CHECK(contains(long_line, "no text"));
    CHECK(long_line.size() < 200);
    const std::pair<const char*, const char*> rows[] = {
        {"shm 2 all_reduce any", "line 3"},
        {"shm 2 all_reduce any pairwise more", "line 3"},
        {"\n", "line 3"},
        {"ib 2 all_reduce any pairwise", "transport is 'ib'"},
        {"shm two all_reduce any pairwise", "number of ranks is 'two'"},
        {"shm 0 all_reduce any pairwise", "number of ranks is '0'"},
        {"shm 2 allreduce any ring", "unknown operation 'allreduce'"},
        {"shm 2 all_reduce any star", "no algorithm 'star'"},
        {"shm 2 all_reduce any ring", "adds up in another order"},
        {"shm 2 reduce_scatter any ring", "adds up in another order"},
        {"shm 2 limit 100 lines", "no limit 'lines'"},
        {"shm 2 limit -1 staged", "size is '-1'"},
        {"shm 2 limit 1 staged\nshm 2 limit 2 staged", "do not stand together"},
        {"shm 2 broadcast any ri\x1b[1mng", "line 3 is no text"},
        {"shm 2 broadcast any ring", "no algorithm 'ring'"},
        {"shm 2 all_reduce any auto", "no choice"},
        {"tcp 2 all_reduce any direct", "tcp has no algorithm 'direct'"},
        {"shm 2 all_reduce -1 pairwise\nshm 2 all_reduce any pairwise", "size is '-1'"},
        {"shm 2 all_reduce 1e3 pairwise\nshm 2 all_reduce any pairwise", "size is '1e3'"},
        {"shm 2 all_reduce 99999999999999999999 ring", "size is '9"},
        {"shm 2 all_reduce 100 pairwise", "do not end with 'any'"},
        {"shm 2 all_reduce any pairwise\nshm 2 all_reduce any pairwise", "do not end with 'any'"},
        {"shm 2 all_reduce 100 pairwise\nshm 2 all_reduce 100 pairwise\nshm 2 all_reduce any "
         "pairwise",
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

std::string reading(const std::string& path) {
    try {
        read_profile(path);
    } catch (const Error& error) {
        return error.what();
    }
    return "";
}

TEST_CASE("only a regular file of a sensible size is read, and nothing blocks") {
    char folder[] = "/tmp/pycomm-profile-XXXXXX";
    REQUIRE(mkdtemp(folder) != nullptr);
    const std::string path = std::string(folder) + "/file";
    CHECK(contains(reading(path), "cannot be read: No such file"));
    CHECK(contains(reading(folder), "no regular file"));
    CHECK(contains(reading("/dev/zero"), "no regular file"));
    const std::string pipe = std::string(folder) + "/pipe";
    REQUIRE(mkfifo(pipe.c_str(), 0600) == 0);
    CHECK(contains(reading(pipe), "no regular file"));
    const std::string text("a\0b\n", 4);
    std::ofstream(path, std::ios::binary) << text;
    CHECK(read_profile(path) == text);
    std::ofstream(path, std::ios::binary) << std::string(1 << 20, 'x');
    CHECK(contains(reading(path), "larger than"));
    std::filesystem::remove_all(folder);
}

TEST_CASE("a profile of very many rows is checked quickly") {
    std::string text = head;
    int rows = 0;
    while (text.size() < (250 << 10)) {
        text += "shm " + std::to_string(++rows) + " reduce any tree\n";
    }
    CHECK(parse_profile(text).rows.size() == static_cast<size_t>(rows));
}

TEST_CASE("the machine has a name of one line") {
    CHECK(contains(machine_name(), "processors"));
    CHECK_FALSE(contains(machine_name(), "\n"));
    CHECK(parse_profile("pycomm-profile 1\nmachine " + machine_name() + "\n").machine ==
          machine_name());
}

}  // namespace
}  // namespace pycomm
