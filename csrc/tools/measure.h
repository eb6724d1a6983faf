// Times of one Case, with several systems in turn.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "tools/data.h"
#include "tools/options.h"
#include "tools/system.h"

namespace pycomm::tools {

// Of one system. All ranks hold the same.
struct Timing {
    std::string obstacle;        // why it was not measured; empty when it was
    std::vector<double> blocks;  // seconds per call (per message), longest over ranks, sorted
    int iterations = 0;          // calls in a block
    int64_t wrong = 0;           // elements, over all ranks and checks

    double min() const { return blocks.empty() ? 0 : blocks.front(); }
    double median() const;
};

struct Contestant {
    System& system;
    Buffers memory;  // the largest that any case needs, as bytes
};

struct Row {
    Case c;
    std::vector<Timing> timings;  // in the order of the contestants
    Timing limit;
    std::string limit_name;
};

class Stopwatch {
  public:
    Stopwatch(Communicator& comm, const Options& options);

    // `limits`: ways to move the same data; the fastest is taken.
    Row measure(const Case& c, const std::vector<Contestant>& contestants,
                const std::vector<System*>& limits);

  private:
    struct Entry;
    struct Block {
        double call = 0;  // seconds per message on this rank
        double wall = 0;  // seconds of the whole block
    };
    void check(const Case& c, Entry& entry);
    void warm_up(const Case& c, Entry& entry);
    int block_count(const std::vector<Entry>& entries) const;
    Block time_block(const Case& c, Entry& entry, int iterations);
    Block time_separately(const Case& c, Entry& entry, int iterations);
    void finish(Entry& entry);
    Row make_row(const Case& c, std::vector<Entry>& entries);
    void combine(std::vector<double>& values, ReduceOp op);

    Communicator& comm_;
    const Options& options_;
    Data data_;
    std::unique_ptr<System> own_;
    std::function<void()> barrier_;
    const double block_seconds_;
};

}  // namespace pycomm::tools
