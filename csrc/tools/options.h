// The command line of pycomm-perf.
#pragma once

#include <string>
#include <vector>

#include "tools/case.h"

namespace pycomm::tools {

struct Options {
    std::vector<OpKind> operations;
    int64_t first_bytes = 4;
    int64_t last_bytes = 64 << 20;
    int64_t factor = 4;
    DataType dtype = DataType::float32;
    int ranks = 0;         // 0: those that mpirun started
    bool threads = false;  // ranks are threads instead of processes
    bool symmetric = false;
    bool check = true;
    bool compare = true;     // with MPI, where it is there
    bool limit = true;       // measure the machine's, too
    bool separate = false;   // calls of operations with a root start together, one by one
    int iterations = 0;      // calls in a block; 0: as many as take `block_seconds`
    int blocks = 0;          // 0: as many as fit into `seconds`
    double seconds = 0.5;    // for one size
    double timeout = 120.0;  // of each size
    std::string json;        // file, "-" for stdout; empty: none
    bool plant_error = false;
    bool help = false;

    std::vector<int64_t> sizes() const;
};

const char* usage();
// Throws ArgumentError that names the word.
Options parse_options(const std::vector<std::string>& words);

}  // namespace pycomm::tools
