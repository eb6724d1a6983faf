// Recognising a process made by fork, in which other threads, and the job's trust in this process,
// are missing.
#pragma once

#include <cstdint>
#include <vector>

namespace pycomm {

// Grows in the child of every fork, counted from the first call. Objects compare it with what it
// was when they were made. Costs no system call.
uint64_t fork_generation();

// While it lives, the child of a fork finds /dev/null in place of these descriptors: a connection
// then ends with the process it belongs to, even when a child lives longer.
class ParentOnly {
  public:
    explicit ParentOnly(std::vector<int> descriptors);
    ~ParentOnly();
    ParentOnly(const ParentOnly&) = delete;
    ParentOnly& operator=(const ParentOnly&) = delete;

  private:
    std::vector<int> descriptors_;
};

}  // namespace pycomm
