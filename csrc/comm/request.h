// What one rank asks of a collective, and the forms in which others need to know it: the envelope
// that ranks compare, the problem that algorithms solve, the call on mapped memory.
#pragma once

#include <cstdint>
#include <vector>

#include "algorithms/algorithms.h"
#include "base/buffer.h"
#include "direct/direct.h"
#include "transport/transport.h"

namespace pycomm {

// Buffers follow the conventions of algorithms.h; both are contiguous.
struct CollectiveRequest {
    OpKind kind = OpKind::none;
    // What the caller called, when that is not `kind`: split, empty. Ranks compare it.
    OpKind called = OpKind::none;
    Buffer input;
    Buffer output;
    ReduceOp op = ReduceOp::none;
    int root = -1;
    // Elements per rank, for reduce_scatter, all_gather, gather and scatter. For all_to_all see
    // below.
    std::vector<int64_t> counts;
    // The counts were given by the caller on every rank (and are compared), not derived from one
    // buffer.
    bool explicit_counts = false;
    std::vector<int64_t> send_counts;
    std::vector<int64_t> recv_counts;
    // Without explicit counts, where counts follow from rows (reduce_scatter, scatter, all_to_all):
    // rows of the own buffer (of a scatter's root: of the whole), and elements per row.
    int64_t rows = 0;
    int64_t row_elements = 0;
};

// Throws ArgumentError when the request cannot be right on any rank: bad root, op that the dtype
// does not have, counts that do not add up to the buffers. `rank` and `size` are the
// communicator's.
void check_request(const CollectiveRequest& request, int rank, int size);

// What a rank says about itself in the roll call.
Envelope make_envelope(const CollectiveRequest& request, uint64_t sequence, Algorithm algorithm);
Problem make_problem(const CollectiveRequest& request, int rank, int size);
// `request` must outlive the call.
DirectCall make_direct(const CollectiveRequest& request, uint64_t sequence, int rank,
                       std::span<const Threshold> profile, const SizeLimits& limits);

// The input and the output are the same memory, or one is this rank's part of the other.
bool is_in_place(const CollectiveRequest& request, int rank);
// They share memory in any other way.
bool overlaps(const CollectiveRequest& request, int rank);

bool reduces(const CollectiveRequest& request);

}  // namespace pycomm
