// Reading profiles, and the name of the machine.
#include "algorithms/profile.h"

#include <charconv>
#include <fstream>
#include <sstream>
#include <thread>

#include "base/error.h"

namespace pycomm {
namespace {

constexpr size_t largest_profile = 1 << 20;

template <typename Number>
Number parse_number(const std::string& text, Number least, int line, const char* what) {
    Number value = 0;
    const char* end = text.data() + text.size();
    const auto [stop, error] = std::from_chars(text.data(), end, value);
    PYCOMM_CHECK(error == std::errc() && stop == end && value >= least, argument, "line ", line,
                 ": ", what, " is '", text, "'");
    return value;
}

Profile::Row parse_row(const std::string& line, int number) {
    std::istringstream words(line);
    std::string transport, ranks, operation, bytes, algorithm, more;
    words >> transport >> ranks >> operation >> bytes >> algorithm;
    PYCOMM_CHECK(!algorithm.empty() && !(words >> more), argument, "line ", number,
                 ": expected transport, ranks, operation, bytes and algorithm");
    PYCOMM_CHECK(transport == "shm" || transport == "inproc" || transport == "tcp", argument,
                 "line ", number, ": transport is '", transport, "'");
    // Checks operation and algorithm, and that they belong together.
    const auto [kind, chosen] = parse_choice(operation, algorithm);
    PYCOMM_CHECK(chosen != Algorithm::automatic, argument, "line ", number, ": '", algorithm,
                 "' is no choice");
    PYCOMM_CHECK(chosen != Algorithm::direct || transport != "tcp", argument, "line ", number,
                 ": tcp has no algorithm 'direct'");
    const int64_t limit =
        bytes == "any" ? any_bytes : parse_number<int64_t>(bytes, 0, number, "the size");
    return {
        transport, parse_number(ranks, 1, number, "the number of ranks"), {kind, limit, chosen}};
}

bool same_group(const Profile::Row& a, const Profile::Row& b) {
    return a.transport == b.transport && a.ranks == b.ranks && a.threshold.kind == b.threshold.kind;
}

// Rows of a group grow and end with `any`.
void check_groups(const std::vector<Profile::Row>& rows) {
    for (size_t i = 0; i < rows.size(); ++i) {
        const bool last = i + 1 == rows.size() || !same_group(rows[i], rows[i + 1]);
        const int64_t bytes = rows[i].threshold.up_to_bytes;
        PYCOMM_CHECK(last == (bytes == any_bytes), argument, "the rows of ",
                     kind_name(rows[i].threshold.kind), " do not end with 'any'");
        PYCOMM_CHECK(last || bytes < rows[i + 1].threshold.up_to_bytes, argument, "the sizes of ",
                     kind_name(rows[i].threshold.kind), " do not grow");
        for (size_t j = i + 1; last && j < rows.size(); ++j) {
            PYCOMM_CHECK(!same_group(rows[i], rows[j]), argument, "the rows of ",
                         kind_name(rows[i].threshold.kind), " do not stand together");
        }
    }
}

}  // namespace

std::vector<Threshold> Profile::of(const std::string& transport, int ranks) const {
    std::vector<Threshold> thresholds;
    for (const Row& row : rows) {
        if (row.transport == transport && row.ranks == ranks) thresholds.push_back(row.threshold);
    }
    return thresholds;
}

Profile parse_profile(const std::string& text) {
    PYCOMM_CHECK(text.size() <= largest_profile, argument, "it is larger than a profile can be");
    PYCOMM_CHECK(!text.empty() && text.back() == '\n', argument, "it is empty or cut off");
    std::istringstream lines(text);
    std::string line;
    std::getline(lines, line);
    PYCOMM_CHECK(line == "pycomm-profile 1", argument, "it does not begin with 'pycomm-profile 1'");
    Profile profile;
    std::getline(lines, line);
    constexpr std::string_view key = "machine ";
    PYCOMM_CHECK(line.starts_with(key), argument, "line 2 does not name the machine");
    profile.machine = line.substr(key.size());
    for (int number = 3; std::getline(lines, line); ++number) {
        profile.rows.push_back(parse_row(line, number));
    }
    check_groups(profile.rows);
    return profile;
}

std::string machine_name() {
    std::ifstream file("/proc/cpuinfo");
    std::string line;
    std::string model = "unknown processor";
    while (std::getline(file, line)) {
        const size_t colon = line.find(": ");
        if (!line.starts_with("model name") || colon == std::string::npos) continue;
        model = line.substr(colon + 2);
        break;
    }
    return concat(model, ", ", std::thread::hardware_concurrency(), " processors");
}

}  // namespace pycomm
