// A profile: which algorithms are fastest on a machine, as measured by `python -m pycomm.bench
// --tune` and read when PYCOMM_PROFILE names the file.
//
// The file is text, one item a line:
//
//   pycomm-profile 1
//   machine AMD EPYC 9554, 2 processors
//   shm 2 all_reduce 65536 direct          transport, ranks, operation, up to bytes, algorithm
//   shm 2 all_reduce any pairwise
//
// Rows of one transport, number of ranks and operation stand together, in growing order of bytes,
// the last with `any`. Bytes are those of the whole buffer.
#pragma once

#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "algorithms/algorithms.h"

namespace pycomm {

inline constexpr int64_t any_bytes = std::numeric_limits<int64_t>::max();

// The choice by size: the first row of a kind whose limit is not exceeded.
struct Threshold {
    OpKind kind;
    int64_t up_to_bytes;
    Algorithm algorithm;
};

struct Profile {
    struct Row {
        std::string transport;
        int ranks;
        Threshold threshold;
    };
    std::string machine;
    std::vector<Row> rows;

    // What it says about a group of ranks.
    std::vector<Threshold> of(const std::string& transport, int ranks) const;
};

// Throws ArgumentError that says what is wrong, with the number of the line, for anything but a
// whole and sensible profile.
Profile parse_profile(const std::string& text);

// The machine this process runs on, as profiles name it.
std::string machine_name();

}  // namespace pycomm
