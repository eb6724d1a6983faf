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
    std::function<void()> call;
    Timing timing;
    double call_seconds = 0;  // estimate, longest over ranks
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

std::vector<Timing> Stopwatch::measure(const Case& c, const std::vector<Contestant>& contestants) {
    std::vector<Entry> entries;
    for (const auto& [system, memory] : contestants) {
        Entry entry{.system = system, .buffers = {}, .call = {}, .timing = {}};
        entry.buffers = {part_of(memory.input, input_elements(c), c.dtype),
                         part_of(memory.output, output_elements(c), c.dtype)};
        entry.timing.obstacle = system.obstacle(c);
        if (entry.timing.obstacle.empty()) entry.call = system.bind(c, entry.buffers);
        entries.push_back(std::move(entry));
    }
    std::vector<Entry*> turn;
    for (Entry& entry : entries) {
        if (entry.call) turn.push_back(&entry);
    }
    for (Entry* entry : turn) check(c, *entry);
    for (Entry* entry : turn) warm_up(c, *entry);
    const int blocks = block_count(entries);
    for (int block = 0; block < blocks; ++block) {
        for (Entry* entry : turn) {
            entry->timing.blocks.push_back(time_block(c, *entry, entry->timing.iterations));
        }
        // Each is first as often as last: nobody always runs on the caches that another left.
        std::reverse(turn.begin(), turn.end());
    }
    for (Entry* entry : turn) check(c, *entry);

    std::vector<Timing> timings;
    for (Entry& entry : entries) {
        combine(entry.timing.blocks, ReduceOp::max);
        std::sort(entry.timing.blocks.begin(), entry.timing.blocks.end());
        std::vector<double> wrong{static_cast<double>(entry.timing.wrong)};
        combine(wrong, ReduceOp::sum);
        entry.timing.wrong = static_cast<int64_t>(wrong[0]);
        timings.push_back(std::move(entry.timing));
    }
    return timings;
}

// One call on fresh data.
void Stopwatch::check(const Case& c, Entry& entry) {
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
    for (;;) {
        std::vector<double> seconds{time_block(c, entry, iterations) * messages(c.kind)};
        combine(seconds, ReduceOp::max);
        entry.call_seconds = std::max(seconds[0], 1e-9);
        if (entry.call_seconds * iterations >= block_seconds_ / 2) break;
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
    for (const Entry& entry : entries) round += entry.call_seconds * entry.timing.iterations;
    const double wanted = round > 0 ? options_.seconds / round : max_blocks;
    return static_cast<int>(std::clamp(wanted, double{min_blocks}, double{max_blocks}));
}

// Seconds per message on this rank. Ranks start together.
double Stopwatch::time_block(const Case& c, Entry& entry, int iterations) {
    barrier_();
    const double start = seconds_now();
    for (int i = 0; i < iterations; ++i) entry.call();
    const double spent = seconds_now() - start;
    entry.system.settle();
    return c.takes_part() ? spent / iterations / messages(c.kind) : 0;
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
