// A profile: which algorithms are fastest on a machine, as measured by `python -m pycomm.bench
// --tune` and read when PYCOMM_PROFILE names the file.
//
// The file is text, one item a line:
//
//   pycomm-profile 1
//   machine AMD EPYC 9554, 2 processors
//   shm 2 all_reduce 65536 direct          transport, ranks, operation, up to bytes, algorithm
//   shm 2 all_reduce any pairwise
//   shm 2 limit 16384 copied               see base/size_limits.h
//
// Rows of one transport, number of ranks and operation stand together, in growing order of bytes,
// the last with `any`. Bytes are those of the whole buffer. A profile changes no results: what adds
// up in another order is refused. The number in the first line grows when files or algorithms
// change so much that what was measured before says nothing any more.
#pragma once

#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "algorithms/algorithms.h"
#include "base/size_limits.h"

namespace pycomm {

inline constexpr int64_t any_bytes = std::numeric_limits<int64_t>::max();

// The choice by size: the first row of a kind whose limit is not exceeded.
struct Threshold {
    OpKind kind;
    int64_t up_to_bytes;
    Algorithm algorithm;
};

// What was measured about a group of ranks.
struct Choices {
    std::vector<Threshold> thresholds;
    SizeLimits limits;
};

struct Profile {
    struct Row {
        std::string transport;
        int ranks = 0;
        std::string limit;  // its name; empty in a row about an algorithm, whose kind is else none
        Threshold threshold{};
    };
    std::string machine;
    std::vector<Row> rows;

    Choices of(const std::string& transport, int ranks) const;
};

// The file's text. Throws ArgumentError when there is none, or it is no regular file or too large
// for a profile; does not block.
std::string read_profile(const std::string& path);

// Throws ArgumentError that says what is wrong, with the number of the line, for anything but a
// whole and sensible profile.
Profile parse_profile(const std::string& text);

// The machine this process runs on, as profiles name it.
std::string machine_name();

}  // namespace pycomm
