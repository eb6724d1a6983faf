// One operation of one size as one rank sees it, whichever library carries it out.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/buffer.h"

namespace pycomm::tools {

// Sizes are those of nccl-tests: the bytes of the larger buffer. Operations that split it among the
// ranks round it up to the same whole number of elements for each.
struct Case {
    OpKind kind = OpKind::none;  // `send` stands for the ping-pong between ranks 0 and 1
    int rank = 0;
    int ranks = 1;
    int root = 0;
    DataType dtype = DataType::float32;
    int64_t elements = 0;  // of the larger buffer

    int64_t slice() const { return elements / ranks; }
    int64_t bytes() const { return elements * static_cast<int64_t>(dtype_size(dtype)); }
    bool is_root() const { return rank == root; }
    // Whether this rank does anything.
    bool takes_part() const { return kind != OpKind::send || rank < 2; }
};

struct Buffers {
    Buffer input;
    Buffer output;
};

// A run of the output and what it must hold: the data of rank `source` from element `start` on, or
// the sum over all ranks.
struct Block {
    static constexpr int sum = -1;
    int source = sum;
    int64_t start = 0;
    int64_t count = 0;
};

// The operations of the command line, in the order of "all".
const std::vector<std::string>& operation_names();
// Throws ArgumentError that lists the known ones.
OpKind parse_operation(const std::string& name);
const char* operation_name(OpKind kind);

bool splits(OpKind kind);   // the larger buffer is split among the ranks
bool reduces(OpKind kind);  // combines elements, so the type matters
bool rooted(OpKind kind);
// busbw / algbw, as nccl-tests defines them.
double bus_factor(OpKind kind, int ranks);
// Messages one after another in one call; a time is divided by it.
int messages(OpKind kind);

Case make_case(OpKind kind, DataType dtype, int64_t bytes, int rank, int ranks);
// Elements of this rank's buffers; 0 for one it does not have.
int64_t input_elements(const Case& c);
int64_t output_elements(const Case& c);
// What this rank's output must hold, from its first element on.
std::vector<Block> expected(const Case& c);

}  // namespace pycomm::tools
