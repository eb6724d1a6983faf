// Blocks of calls, system by system in turn, so that a disturbance of the machine meets all alike.
#include "tools/measure.h"

#include <algorithm>
#include <chrono>

namespace pycomm::tools {
namespace {

constexpr int max_iterations = 20000;
constexpr int min_blocks = 5;
constexpr int max_blocks = 200;

double seconds_now() {
    return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch())
        .count();
}

Buffer part_of(const Buffer& memory, int64_t elements, DataType dtype) {
    return {elements > 0 ? memory.data : nullptr, elements, dtype};
}

}  // namespace

struct Stopwatch::Entry {
    System& system;
    Buffers buffers;
    bool is_limit = false;
    std::function<void()> call = nullptr;
    Timing timing = {};
    double call_seconds = 0;  // estimate with all that belongs to a call, longest over ranks
};

double Timing::median() const {
    if (blocks.empty()) return 0;
    const size_t half = blocks.size() / 2;
    return blocks.size() % 2 ? blocks[half] : (blocks[half - 1] + blocks[half]) / 2;
}

Stopwatch::Stopwatch(Communicator& comm, const Options& options)
    : comm_(comm),
      options_(options),
      data_(comm.size(), options.dtype),
      own_(make_pycomm_system(comm)),
      barrier_(
          own_->bind(make_case(OpKind::barrier, options.dtype, 0, comm.rank(), comm.size()), {})),
      // Where ranks share cores, the start of a block waits for the scheduler, for a few
      // milliseconds at times: longer blocks hide that.
      block_seconds_(comm.size() > comm.topology().cores ? 0.02 : 0.002) {}

Row Stopwatch::measure(const Case& c, const std::vector<Contestant>& contestants,
                       const std::vector<System*>& limits) {
    std::vector<Entry> entries;
    for (const auto& [system, memory] : contestants) {
        entries.push_back({system,
                           {part_of(memory.input, input_elements(c), c.dtype),
                            part_of(memory.output, output_elements(c), c.dtype)}});
    }
    for (System* limit : limits) entries.push_back({*limit, {}, true});
    std::vector<Entry*> turn;
    for (Entry& entry : entries) {
        entry.timing.obstacle = entry.system.obstacle(c);
        if (!entry.timing.obstacle.empty()) continue;
        entry.call = entry.system.bind(c, entry.buffers);
        turn.push_back(&entry);
    }
    for (Entry* entry : turn) check(c, *entry);
    for (Entry* entry : turn) warm_up(c, *entry);
    const int blocks = block_count(entries);
    for (int block = 0; block < blocks; ++block) {
        for (Entry* entry : turn) {
            // The limit varies less than what is measured against it: half of the turns will do.
            if (entry->is_limit && block % 2 == 1) continue;
            entry->timing.blocks.push_back(time_block(c, *entry, entry->timing.iterations).call);
        }
        // Each is first as often as last: nobody always runs on the caches that another left.
        std::reverse(turn.begin(), turn.end());
    }
    for (Entry* entry : turn) check(c, *entry);
    return make_row(c, entries);
}

Row Stopwatch::make_row(const Case& c, std::vector<Entry>& entries) {
    Row row{c, {}, {}, {}};
    row.limit.obstacle = "left out";
    for (Entry& entry : entries) {
        finish(entry);
        if (!entry.is_limit) {
            row.timings.push_back(std::move(entry.timing));
        } else if (!row.limit.obstacle.empty() ||
                   (entry.call && entry.timing.median() < row.limit.median())) {
            row.limit = std::move(entry.timing);
            row.limit_name = entry.system.name();
        }
    }
    return row;
}

// Every rank gets the same figures: of each block the longest time.
void Stopwatch::finish(Entry& entry) {
    Timing& timing = entry.timing;
    combine(timing.blocks, ReduceOp::max);
    std::sort(timing.blocks.begin(), timing.blocks.end());
    std::vector<double> wrong{static_cast<double>(timing.wrong)};
    combine(wrong, ReduceOp::sum);
    timing.wrong = static_cast<int64_t>(wrong[0]);
}

// One call on fresh data.
void Stopwatch::check(const Case& c, Entry& entry) {
    if (entry.is_limit) return;
    data_.prepare(c, entry.buffers);
    barrier_();
    entry.call();
    entry.system.settle();
    if (!options_.check) return;
    const Buffer& out = entry.buffers.output;
    if (options_.plant_error && out.count > 0) *out.at(out.count / 2) ^= std::byte{1};
    entry.timing.wrong += data_.count_wrong(c, entry.buffers);
}

// Grows a block until it takes long enough to be timed, which warms up every system for about the
// same time.
void Stopwatch::warm_up(const Case& c, Entry& entry) {
    int iterations = 1;
    time_block(c, entry, iterations);  // touches new memory, and says little
    for (;;) {
        std::vector<double> seconds{time_block(c, entry, iterations).wall};
        combine(seconds, ReduceOp::max);
        entry.call_seconds = std::max(seconds[0] / iterations, 1e-9);
        if (seconds[0] >= block_seconds_ / 2) break;
        if (iterations >= max_iterations) break;
        iterations = std::min(4 * iterations, max_iterations);
    }
    const double wanted = block_seconds_ / entry.call_seconds;
    entry.timing.iterations =
        options_.iterations > 0 ? options_.iterations
                                : static_cast<int>(std::clamp(wanted, 1.0, double{max_iterations}));
}

int Stopwatch::block_count(const std::vector<Entry>& entries) const {
    if (options_.blocks > 0) return options_.blocks;
    double round = 0;
    for (const Entry& entry : entries) {
        round += entry.call_seconds * entry.timing.iterations / (entry.is_limit ? 2 : 1);
    }
    const double wanted = round > 0 ? options_.seconds / round : max_blocks;
    return static_cast<int>(std::clamp(wanted, double{min_blocks}, double{max_blocks}));
}

// Ranks start together.
Stopwatch::Block Stopwatch::time_block(const Case& c, Entry& entry, int iterations) {
    if (options_.separate && rooted(c.kind) && !entry.is_limit) {
        return time_separately(c, entry, iterations);
    }
    // A call that does not count, for what the others have done to the caches; a single call, which
    // is a long one, finds them full of its own data anyway.
    if (iterations > 1) entry.call();
    entry.system.settle();
    barrier_();
    const double start = seconds_now();
    for (int i = 0; i < iterations; ++i) entry.call();
    const double spent = seconds_now() - start;
    entry.system.settle();
    return {c.takes_part() ? spent / iterations / messages(c.kind) : 0, spent};
}

// Ranks start every call together, and nothing of the one before is under way.
Stopwatch::Block Stopwatch::time_separately(const Case& c, Entry& entry, int iterations) {
    const double begin = seconds_now();
    double spent = 0;
    for (int i = 0; i < iterations; ++i) {
        barrier_();
        const double start = seconds_now();
        entry.call();
        spent += seconds_now() - start;
        entry.system.settle();
    }
    return {spent / iterations / messages(c.kind), seconds_now() - begin};
}

// In place, over all ranks.
void Stopwatch::combine(std::vector<double>& values, ReduceOp op) {
    if (values.empty()) return;
    CollectiveRequest request;
    request.kind = OpKind::all_reduce;
    request.op = op;
    request.input = {values.data(), static_cast<int64_t>(values.size()), DataType::float64};
    request.output = request.input;
    comm_.run_now(std::move(request), std::nullopt, nullptr);
}

}  // namespace pycomm::tools
