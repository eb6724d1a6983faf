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

class Stopwatch {
  public:
    Stopwatch(Communicator& comm, const Options& options);

    std::vector<Timing> measure(const Case& c, const std::vector<Contestant>& contestants);

  private:
    struct Entry;
    void check(const Case& c, Entry& entry);
    void warm_up(const Case& c, Entry& entry);
    int block_count(const std::vector<Entry>& entries) const;
    double time_block(const Case& c, Entry& entry, int iterations);
    void combine(std::vector<double>& values, ReduceOp op);

    Communicator& comm_;
    const Options& options_;
    Data data_;
    std::unique_ptr<System> own_;
    std::function<void()> barrier_;
    const double block_seconds_;
};

}  // namespace pycomm::tools
