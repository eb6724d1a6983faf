// Reading profiles, and the name of the machine.
#include "algorithms/profile.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <fstream>
#include <set>
#include <sstream>
#include <thread>
#include <tuple>

#include "base/error.h"

namespace pycomm {
namespace {

constexpr size_t largest_profile = 1 << 18;
constexpr size_t longest_line = 160;

// Lines are quoted in messages, so they must be short and plain.
bool is_plain(const std::string& line) {
    return line.size() <= longest_line && std::all_of(line.begin(), line.end(), [](char character) {
               return character >= ' ' && character <= '~';
           });
}

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
    PYCOMM_CHECK(is_plain(line), argument, "line ", number, " is no text");
    std::istringstream words(line);
    Profile::Row row;
    std::string ranks, what, bytes, name, more;
    words >> row.transport >> ranks >> what >> bytes >> name;
    PYCOMM_CHECK(!name.empty() && !(words >> more), argument, "line ", number,
                 ": expected transport, ranks, operation, bytes and algorithm");
    PYCOMM_CHECK(row.transport == "shm" || row.transport == "inproc" || row.transport == "tcp",
                 argument, "line ", number, ": transport is '", row.transport, "'");
    row.ranks = parse_number(ranks, 1, number, "the number of ranks");
    Threshold& threshold = row.threshold;
    threshold.up_to_bytes =
        bytes == "any" ? any_bytes : parse_number<int64_t>(bytes, 0, number, "the size");
    if (what == "limit") {
        PYCOMM_CHECK(SizeLimits().find(name) != nullptr, argument, "line ", number,
                     ": there is no limit '", name, "'");
        row.limit = name;
        return row;
    }
    // Checks operation and algorithm, and that they belong together.
    std::tie(threshold.kind, threshold.algorithm) = parse_choice(what, name);
    PYCOMM_CHECK(threshold.algorithm != Algorithm::automatic, argument, "line ", number, ": '",
                 name, "' is no choice");
    PYCOMM_CHECK(threshold.algorithm != Algorithm::direct || row.transport != "tcp", argument,
                 "line ", number, ": tcp has no algorithm 'direct'");
    PYCOMM_CHECK(keeps_order(threshold.kind, threshold.algorithm), argument, "line ", number, ": ",
                 name, " adds up in another order, so only PYCOMM_ALGO may choose it");
    return row;
}

bool same_group(const Profile::Row& a, const Profile::Row& b) {
    return a.transport == b.transport && a.ranks == b.ranks &&
           a.threshold.kind == b.threshold.kind && a.limit == b.limit;
}

// Rows of a group stand together, grow and end with `any`; a limit has one row.
void check_groups(const std::vector<Profile::Row>& rows) {
    std::set<std::tuple<std::string, int, OpKind, std::string>> seen;
    for (size_t i = 0; i < rows.size(); ++i) {
        const auto& [transport, ranks, limit, threshold] = rows[i];
        const char* what = limit.empty() ? kind_name(threshold.kind) : limit.c_str();
        if (i == 0 || !limit.empty() || !same_group(rows[i - 1], rows[i])) {
            PYCOMM_CHECK(seen.emplace(transport, ranks, threshold.kind, limit).second, argument,
                         "the rows of ", what, " do not stand together");
        }
        if (!limit.empty()) continue;
        const bool last = i + 1 == rows.size() || !same_group(rows[i], rows[i + 1]);
        const int64_t bytes = threshold.up_to_bytes;
        PYCOMM_CHECK(last == (bytes == any_bytes), argument, "the rows of ", what,
                     " do not end with 'any'");
        PYCOMM_CHECK(last || bytes < rows[i + 1].threshold.up_to_bytes, argument, "the sizes of ",
                     what, " do not grow");
    }
}

}  // namespace

Choices Profile::of(const std::string& wanted, int size) const {
    Choices choices;
    for (const auto& [transport, ranks, limit, threshold] : rows) {
        if (transport != wanted || ranks != size) continue;
        if (limit.empty()) {
            choices.thresholds.push_back(threshold);
        } else {
            *choices.limits.find(limit) = threshold.up_to_bytes;
        }
    }
    return choices;
}

std::string read_profile(const std::string& path) {
    // Non-blocking, so that a pipe without a writer holds up nobody.
    const int file = ::open(path.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC);
    PYCOMM_CHECK(file >= 0, argument, "it cannot be read: ", std::strerror(errno));
    struct stat status{};
    const bool regular = ::fstat(file, &status) == 0 && S_ISREG(status.st_mode);
    std::string text(largest_profile + 1, '\0');
    size_t length = 0;
    ssize_t got = regular ? 1 : 0;
    while (got > 0 && length < text.size()) {
        got = ::read(file, text.data() + length, text.size() - length);
        if (got > 0) length += static_cast<size_t>(got);
    }
    const int error = errno;
    ::close(file);
    PYCOMM_CHECK(regular, argument, "it is no regular file");
    PYCOMM_CHECK(got >= 0, argument, "it cannot be read: ", std::strerror(error));
    PYCOMM_CHECK(length <= largest_profile, argument, "it is larger than a profile can be");
    text.resize(length);
    return text;
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
    PYCOMM_CHECK(line.starts_with(key) && is_plain(line), argument,
                 "line 2 does not name the machine");
    profile.machine = line.substr(key.size());
    for (int number = 3; std::getline(lines, line); ++number) {
        profile.rows.push_back(parse_row(line, number));
    }
    check_groups(profile.rows);
    return profile;
}

std::string machine_name() {
    std::ifstream file("/proc/cpuinfo");
    std::string model;
    // Processors of Arm have numbers instead of a name.
    std::string numbers;
    for (std::string line; model.empty() && std::getline(file, line);) {
        const size_t colon = line.find(": ");
        if (colon == std::string::npos) continue;
        const std::string value = line.substr(colon + 2);
        if (line.starts_with("model name")) model = value;
        const bool known = line.starts_with("CPU implementer") || line.starts_with("CPU part");
        if (known && numbers.find(value) == std::string::npos) numbers += ' ' + value;
    }
    if (model.empty()) model = concat("processor", numbers.empty() ? " unknown" : numbers);
    model.resize(std::min(model.size(), longest_line / 2));
    std::replace_if(model.begin(), model.end(), [](char c) { return c < ' ' || c > '~'; }, '?');
    return concat(model, ", ", std::thread::hardware_concurrency(), " processors");
}

}  // namespace pycomm
