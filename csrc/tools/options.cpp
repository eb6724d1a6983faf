// Words to Options.
#include "tools/options.h"

#include <charconv>
#include <functional>
#include <limits>
#include <map>
#include <string_view>

#include "base/error.h"

namespace pycomm::tools {
namespace {

template <typename T>
T parse_number(const std::string& name, std::string_view text, T least) {
    T value{};
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    PYCOMM_CHECK(error == std::errc() && end == text.data() + text.size() && value >= least,
                 argument, name, ": expected a number of at least ", least, ", got '", text, "'");
    return value;
}

int64_t parse_size(const std::string& name, std::string_view text) {
    constexpr std::string_view units = "KMGT";
    int shift = 0;
    if (!text.empty()) {
        const size_t unit = units.find(static_cast<char>(text.back() & ~0x20));
        if (unit != units.npos) {
            shift = 10 * (static_cast<int>(unit) + 1);
            text.remove_suffix(1);
        }
    }
    const auto value = parse_number<int64_t>(name, text, 1);
    PYCOMM_CHECK(value <= (std::numeric_limits<int64_t>::max() >> shift), argument, name,
                 ": the size is too large");
    return value << shift;
}

std::vector<OpKind> parse_operations(const std::string& text) {
    std::vector<OpKind> kinds;
    if (text == "all") {
        for (const auto& name : operation_names()) kinds.push_back(parse_operation(name));
        return kinds;
    }
    for (size_t at = 0; at <= text.size();) {
        const size_t comma = std::min(text.find(',', at), text.size());
        kinds.push_back(parse_operation(text.substr(at, comma - at)));
        at = comma + 1;
    }
    return kinds;
}

using Value = std::function<void(Options&, const std::string& name, const std::string& text)>;

const std::map<std::string, Value>& value_options() {
    static const std::map<std::string, Value> table{
        {"-b", [](auto& o, auto& n, auto& t) { o.first_bytes = parse_size(n, t); }},
        {"-e", [](auto& o, auto& n, auto& t) { o.last_bytes = parse_size(n, t); }},
        {"-f", [](auto& o, auto& n, auto& t) { o.factor = parse_number<int64_t>(n, t, 2); }},
        {"-n", [](auto& o, auto& n, auto& t) { o.iterations = parse_number<int>(n, t, 1); }},
        {"--dtype", [](auto& o, auto&, auto& t) { o.dtype = parse_dtype(t); }},
        {"--ranks", [](auto& o, auto& n, auto& t) { o.ranks = parse_number<int>(n, t, 1); }},
        {"--blocks", [](auto& o, auto& n, auto& t) { o.blocks = parse_number<int>(n, t, 1); }},
        {"--seconds", [](auto& o, auto& n, auto& t) { o.seconds = parse_number(n, t, 0.0); }},
        {"--timeout", [](auto& o, auto& n, auto& t) { o.timeout = parse_number(n, t, 1.0); }},
        {"--json", [](auto& o, auto&, auto& t) { o.json = t; }},
    };
    return table;
}

const std::map<std::string, std::function<void(Options&)>>& flag_options() {
    static const std::map<std::string, std::function<void(Options&)>> table{
        {"--threads", [](auto& o) { o.threads = true; }},
        {"--symmetric", [](auto& o) { o.symmetric = true; }},
        {"--no-check", [](auto& o) { o.check = false; }},
        {"--no-compare", [](auto& o) { o.compare = false; }},
        {"--no-limit", [](auto& o) { o.limit = false; }},
        {"--separate", [](auto& o) { o.separate = true; }},
        {"--plant-error", [](auto& o) { o.plant_error = true; }},
        {"-h", [](auto& o) { o.help = true; }},
        {"--help", [](auto& o) { o.help = true; }},
    };
    return table;
}

}  // namespace

const char* usage() {
    return R"(usage: pycomm-perf OP[,OP...] [options]              under mpirun
       pycomm-perf OP[,OP...] --ranks N [options]    by itself

Measures operations without Python: all_reduce, reduce_scatter, all_gather, broadcast, reduce,
gather, scatter, all_to_all, barrier, sendrecv (ping-pong of ranks 0 and 1), or all. Under mpirun
the same operation of that MPI, in C, takes turns with pycomm's, block by block, in the same
processes and on the same arrays.

  -b SIZE, -e SIZE, -f F   first (4) and last (64M) size, and the factor between sizes (4). A size
                           is the bytes of the larger buffer; K, M, G are powers of 1024
  --dtype TYPE             element type (float32)
  --ranks N                start N ranks here: processes, or with --threads threads
  --symmetric              pycomm's arrays lie in symmetric memory; MPI's in ordinary memory
  -n N                     calls in a block (as many as take some milliseconds)
  --blocks N               blocks for each library (as many as fit into --seconds, at least 5)
  --seconds S              time for one size, all libraries together (0.5)
  --no-check               leave out the check of the results
  --no-compare             leave MPI out; it only starts the ranks
  --no-limit               leave the machine's limit out
  --separate               operations with a root: a barrier before each call, which is timed alone.
                           Without it a root that only sends runs ahead of the others, and the time
                           of a call is that of the busiest rank, not until the last has its data
  --json FILE              write the results; - for stdout
  --timeout S              give up when one size takes longer (120)
  --plant-error            spoil one element before each check, to see it fail

The time of a block is the longest over ranks, divided by its calls (sendrecv: messages). min and
median are over blocks. busbw is size / median time, times 2(n-1)/n for all_reduce, (n-1)/n for
operations that split the buffer, 1 for others. r.min and r.median are MPI's time divided by
pycomm's.

limit is the median time in which the ranks, all at once and without waiting for each other, move
the bytes that an ideal implementation has to move, with ordinary or streaming stores, whichever is
faster; "% limit" is how near pycomm's median comes to it. Small sizes stay in the caches there, so
that it shows what synchronisation costs.

Exit code: 0; 1 for a wrong result or an error; 2 for wrong arguments; 3 for a timeout.
)";
}

std::vector<int64_t> Options::sizes() const {
    std::vector<int64_t> result{first_bytes};
    while (result.back() <= last_bytes / factor) result.push_back(result.back() * factor);
    return result;
}

Options parse_options(const std::vector<std::string>& words) {
    Options options;
    for (size_t at = 0; at < words.size(); ++at) {
        const std::string& word = words[at];
        const auto flag = flag_options().find(word);
        const auto value = value_options().find(word);
        if (flag != flag_options().end()) {
            flag->second(options);
        } else if (value != value_options().end()) {
            PYCOMM_CHECK(at + 1 < words.size(), argument, word, " needs a value");
            value->second(options, word, words[++at]);
        } else {
            PYCOMM_CHECK(word[0] != '-' && options.operations.empty(), argument,
                         "unknown argument '", word, "'");
            options.operations = parse_operations(word);
        }
    }
    if (options.help) return options;
    PYCOMM_CHECK(!options.operations.empty(), argument, "which operation? See --help");
    PYCOMM_CHECK(options.first_bytes <= options.last_bytes, argument,
                 "the first size is above the last");
    PYCOMM_CHECK(!options.threads || options.ranks > 0, argument, "--threads needs --ranks N");
    return options;
}

}  // namespace pycomm::tools
