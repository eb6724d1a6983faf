// The table of algorithms, the choice among them, and PYCOMM_ALGO.
#include <algorithm>
#include <numeric>
#include <optional>
#include <string_view>

#include "algorithms/algorithms.h"
#include "algorithms/families.h"
#include "algorithms/profile.h"
#include "base/error.h"

namespace pycomm {
namespace {

struct Entry {
    OpKind kind;
    Algorithm algorithm;
    Schedule (*build)(const Problem&);
};

constexpr Entry entries[] = {
    {OpKind::all_reduce, Algorithm::pairwise, pairwise_all_reduce},
    {OpKind::all_reduce, Algorithm::ring, ring_all_reduce},
    {OpKind::all_reduce, Algorithm::recursive_doubling, recursive_doubling_all_reduce},
    {OpKind::all_reduce, Algorithm::recursive_halving, recursive_halving_all_reduce},
    {OpKind::reduce_scatter, Algorithm::pairwise, pairwise_reduce_scatter},
    {OpKind::reduce_scatter, Algorithm::ring, ring_reduce_scatter},
    {OpKind::all_gather, Algorithm::pairwise, pairwise_all_gather},
    {OpKind::all_gather, Algorithm::ring, ring_all_gather},
    {OpKind::all_gather, Algorithm::recursive_doubling, recursive_doubling_all_gather},
    {OpKind::broadcast, Algorithm::tree, tree_broadcast},
    {OpKind::broadcast, Algorithm::linear, linear_broadcast},
    {OpKind::reduce, Algorithm::pairwise, pairwise_reduce},
    {OpKind::reduce, Algorithm::tree, tree_reduce},
    {OpKind::reduce, Algorithm::linear, linear_reduce},
    {OpKind::gather, Algorithm::linear, linear_gather},
    {OpKind::scatter, Algorithm::linear, linear_scatter},
    {OpKind::all_to_all, Algorithm::pairwise, pairwise_all_to_all},
    {OpKind::barrier, Algorithm::dissemination, dissemination_barrier},
};

// The built-in choice. Bytes are those of the whole buffer; kinds without a buffer of one size on
// all ranks have one row.
constexpr int64_t small_all_reduce_bytes = 16 << 10;
constexpr int64_t small_reduce_bytes = 16 << 10;

constexpr Threshold thresholds[] = {
    {OpKind::all_reduce, small_all_reduce_bytes, Algorithm::recursive_doubling},
    {OpKind::all_reduce, any_bytes, Algorithm::pairwise},
    {OpKind::reduce, small_reduce_bytes, Algorithm::tree},
    {OpKind::reduce, any_bytes, Algorithm::pairwise},
    {OpKind::reduce_scatter, any_bytes, Algorithm::pairwise},
    {OpKind::all_gather, any_bytes, Algorithm::pairwise},
    {OpKind::broadcast, any_bytes, Algorithm::tree},
    {OpKind::gather, any_bytes, Algorithm::linear},
    {OpKind::scatter, any_bytes, Algorithm::linear},
    {OpKind::all_to_all, any_bytes, Algorithm::pairwise},
    {OpKind::barrier, any_bytes, Algorithm::dissemination},
};

bool uses_counts(OpKind kind) {
    return kind == OpKind::reduce_scatter || kind == OpKind::all_gather || kind == OpKind::gather ||
           kind == OpKind::scatter;
}

// "pairwise, ring, direct": what may be forced for a kind.
std::string known_names(OpKind kind) {
    std::string names;
    for (const Algorithm algorithm : algorithms_for(kind)) {
        names += concat(algorithm_name(algorithm), ", ");
    }
    return names + "direct, auto";  // on mapped memory, outside of schedules
}

// "broadcast (tree, linear, auto); ...": all that PYCOMM_ALGO may say.
std::string known_choices() {
    std::string text;
    OpKind last = OpKind::none;
    for (const Entry& entry : entries) {
        if (entry.kind == last) continue;
        last = entry.kind;
        text += concat(text.empty() ? "" : "; ", kind_name(last), " (", known_names(last), ")");
    }
    return text;
}

bool exists(OpKind kind, Algorithm algorithm) {
    if (algorithm == Algorithm::automatic || algorithm == Algorithm::direct) return true;
    for (const Entry& entry : entries) {
        if (entry.kind == kind && entry.algorithm == algorithm) return true;
    }
    return false;
}

std::optional<Algorithm> find_algorithm(std::string_view name) {
#define PYCOMM_FIND(algorithm, text) \
    if (name == text) return Algorithm::algorithm;
    PYCOMM_ALGORITHM_LIST(PYCOMM_FIND)
#undef PYCOMM_FIND
    return std::nullopt;
}

std::optional<OpKind> find_kind(std::string_view name) {
    for (const Entry& entry : entries) {
        if (name == kind_name(entry.kind)) return entry.kind;
    }
    return std::nullopt;
}

std::string_view trim(std::string_view text) {
    const size_t begin = text.find_first_not_of(" \t");
    if (begin == std::string_view::npos) return {};
    return text.substr(begin, text.find_last_not_of(" \t") + 1 - begin);
}

// Parses all of `forced`; returns what it says about `kind`, automatic when nothing.
Algorithm parse_forced(const std::string& forced, OpKind kind) {
    Algorithm chosen = Algorithm::automatic;
    if (trim(forced).empty()) return chosen;
    std::vector<OpKind> seen;
    std::string_view rest = forced;
    for (bool more = true; more;) {
        const size_t comma = rest.find(',');
        more = comma != std::string_view::npos;
        const std::string_view item = trim(rest.substr(0, comma));
        if (more) rest.remove_prefix(comma + 1);
        const size_t colon = item.find(':');
        PYCOMM_CHECK(colon != std::string_view::npos, argument, "PYCOMM_ALGO is '", forced,
                     "': expected operation:algorithm, separated by commas, got '", item,
                     "'; known are ", known_choices());
        const std::string_view name = trim(item.substr(0, colon));
        const auto item_kind = find_kind(name);
        PYCOMM_CHECK(item_kind, argument, "PYCOMM_ALGO is '", forced, "': unknown operation '",
                     name, "'; known are ", known_choices());
        const std::string_view algorithm_text = trim(item.substr(colon + 1));
        const auto algorithm = find_algorithm(algorithm_text);
        PYCOMM_CHECK(algorithm && exists(*item_kind, *algorithm), argument, "PYCOMM_ALGO is '",
                     forced, "': ", name, " has no algorithm '", algorithm_text, "'; known are ",
                     known_choices());
        PYCOMM_CHECK(std::find(seen.begin(), seen.end(), *item_kind) == seen.end(), argument,
                     "PYCOMM_ALGO is '", forced, "': names ", name, " twice");
        seen.push_back(*item_kind);
        if (*item_kind == kind) chosen = *algorithm;
    }
    return chosen;
}

// Elements of the whole buffer, equal on all ranks.
int64_t total_count(const Problem& problem) {
    if (!uses_counts(problem.kind)) return problem.count;
    return std::accumulate(problem.counts.begin(), problem.counts.end(), int64_t{0});
}

void check_counts(const char* name, const std::vector<int64_t>& counts, const Problem& problem) {
    PYCOMM_CHECK(counts.size() == static_cast<size_t>(problem.size), argument,
                 kind_name(problem.kind), ": ", name, " has ", counts.size(), " entries for ",
                 problem.size, " ranks");
    for (const int64_t count : counts) {
        PYCOMM_CHECK(count >= 0, argument, kind_name(problem.kind), ": ", name, " holds ", count);
    }
}

void check_problem(const Problem& problem) {
    const char* kind = kind_name(problem.kind);
    PYCOMM_CHECK(problem.size >= 1 && problem.rank >= 0 && problem.rank < problem.size, argument,
                 kind, ": rank ", problem.rank, " of ", problem.size, " ranks");
    PYCOMM_CHECK(problem.root >= 0 && problem.root < problem.size, argument, kind, ": root ",
                 problem.root, " of ", problem.size, " ranks");
    PYCOMM_CHECK(problem.count >= 0, argument, kind, ": count ", problem.count);
    PYCOMM_CHECK(problem.element_size > 0, argument, kind, ": elements of 0 bytes");
    if (uses_counts(problem.kind)) check_counts("counts", problem.counts, problem);
    if (problem.kind == OpKind::all_to_all) {
        check_counts("send_counts", problem.send_counts, problem);
        check_counts("recv_counts", problem.recv_counts, problem);
        const auto own = static_cast<size_t>(problem.rank);
        PYCOMM_CHECK(problem.send_counts[own] == problem.recv_counts[own], argument, kind,
                     ": rank ", problem.rank, " sends itself ", problem.send_counts[own],
                     " elements but receives ", problem.recv_counts[own]);
        PYCOMM_CHECK(!problem.in_place, argument, kind, ": cannot be done in place");
    }
}

}  // namespace

const char* algorithm_name(Algorithm algorithm) {
    switch (algorithm) {
#define PYCOMM_CASE(name, text) \
    case Algorithm::name:       \
        return text;
        PYCOMM_ALGORITHM_LIST(PYCOMM_CASE)
#undef PYCOMM_CASE
    }
    return "unknown";
}

Schedule build_schedule(const Problem& problem, Algorithm algorithm) {
    for (const Entry& entry : entries) {
        if (entry.kind == problem.kind && entry.algorithm == algorithm) {
            check_problem(problem);
            return entry.build(problem);
        }
    }
    std::string names;
    for (const Algorithm known : algorithms_for(problem.kind)) {
        names += concat(names.empty() ? "" : ", ", algorithm_name(known));
    }
    PYCOMM_FAIL(argument, "no schedule of algorithm ", algorithm_name(algorithm), " for ",
                kind_name(problem.kind), "; known are: ", names.empty() ? "none" : names);
}

std::vector<Algorithm> algorithms_for(OpKind kind) {
    std::vector<Algorithm> algorithms;
    for (const Entry& entry : entries) {
        if (entry.kind == kind) algorithms.push_back(entry.algorithm);
    }
    return algorithms;
}

bool keeps_order(OpKind kind, Algorithm algorithm) {
    const bool adds = kind == OpKind::all_reduce || kind == OpKind::reduce_scatter;
    return !adds || algorithm != Algorithm::ring;
}

std::pair<OpKind, Algorithm> parse_choice(std::string_view operation, std::string_view algorithm) {
    const auto kind = find_kind(operation);
    PYCOMM_CHECK(kind, argument, "unknown operation '", operation, "'");
    const auto chosen = find_algorithm(algorithm);
    PYCOMM_CHECK(chosen && exists(*kind, *chosen), argument, operation, " has no algorithm '",
                 algorithm, "'");
    return {*kind, *chosen};
}

Algorithm profile_algorithm(OpKind kind, int64_t bytes, std::span<const Threshold> profile) {
    for (const Threshold& row : profile) {
        if (row.kind == kind && bytes <= row.up_to_bytes) return row.algorithm;
    }
    return Algorithm::automatic;
}

Algorithm select_algorithm(const Problem& problem, const std::string& forced,
                           std::span<const Threshold> profile) {
    const Algorithm algorithm = forced_algorithm(problem.kind, forced);
    if (algorithm != Algorithm::automatic) return algorithm;
    const int64_t count = total_count(problem);
    // What cannot be counted in bytes is more than any limit but the last.
    const auto element = static_cast<int64_t>(problem.element_size);
    const int64_t bytes = count <= any_bytes / element ? count * element : any_bytes;
    const Algorithm measured = profile_algorithm(problem.kind, bytes, profile);
    if (measured != Algorithm::automatic && measured != Algorithm::direct) return measured;
    for (const Threshold& row : thresholds) {
        if (row.kind == problem.kind && bytes <= row.up_to_bytes) return row.algorithm;
    }
    PYCOMM_FAIL(argument, "no algorithm for ", kind_name(problem.kind));
}

Algorithm forced_algorithm(OpKind kind, const std::string& forced) {
    return forced.empty() ? Algorithm::automatic : parse_forced(forced, kind);
}

void check_forced(const std::string& forced) {
    parse_forced(forced, OpKind::none);
}

}  // namespace pycomm
