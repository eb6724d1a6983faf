// Checks and forms of a collective request.
#include "comm/request.h"

#include <algorithm>
#include <numeric>

#include "algorithms/profile.h"
#include "base/error.h"

namespace pycomm {
namespace {

int64_t total(const std::vector<int64_t>& counts) {
    return std::accumulate(counts.begin(), counts.end(), int64_t{0});
}

// FNV-1a over the counts; never 0, which means "no counts".
uint32_t hash_counts(const std::vector<int64_t>& counts) {
    uint32_t hash = 2166136261u;
    for (const int64_t count : counts) {
        for (int byte = 0; byte < 8; ++byte) {
            hash = (hash ^ static_cast<uint8_t>(static_cast<uint64_t>(count) >> (8 * byte))) *
                   16777619u;
        }
    }
    return hash == 0 ? 1 : hash;
}

bool overlap(const Buffer& a, const Buffer& b) {
    const auto a_begin = reinterpret_cast<uintptr_t>(a.data);
    const auto b_begin = reinterpret_cast<uintptr_t>(b.data);
    return a.count > 0 && b.count > 0 && a_begin < b_begin + b.bytes() &&
           b_begin < a_begin + a.bytes();
}

void check_counts_list(const std::vector<int64_t>& counts, int size, const char* name) {
    PYCOMM_CHECK(counts.size() == static_cast<size_t>(size), argument, name, " has ", counts.size(),
                 " entries, expected one for each of the ", size, " ranks");
    for (const int64_t count : counts) {
        PYCOMM_CHECK(count >= 0, argument, name, " holds the negative count ", count);
    }
}

void check_total(const Buffer& buffer, const char* role, int64_t expected) {
    PYCOMM_CHECK(buffer.count == expected, argument, role, " has ", buffer.count,
                 " elements, expected ", expected);
}

// Of the whole buffer, as far as all ranks know it alike.
int64_t whole_bytes(const CollectiveRequest& request) {
    const auto element = static_cast<int64_t>(dtype_size(request.input.dtype));
    const bool joins = request.kind == OpKind::all_gather || request.kind == OpKind::gather;
    return (joins ? total(request.counts) : request.input.count) * element;
}

}  // namespace

void check_request(const CollectiveRequest& request, int rank, int size) {
    const auto own = static_cast<size_t>(rank);
    const bool rooted = request.kind == OpKind::broadcast || request.kind == OpKind::reduce ||
                        request.kind == OpKind::gather || request.kind == OpKind::scatter;
    PYCOMM_CHECK(!rooted || (request.root >= 0 && request.root < size), argument, "root is ",
                 request.root, ", expected a rank from 0 to ", size - 1);
    check_op(request.op, request.input.dtype);
    const bool is_root = rank == request.root;
    switch (request.kind) {
        case OpKind::all_reduce:
            check_total(request.output, "the output", request.input.count);
            break;
        case OpKind::reduce:
            if (is_root) check_total(request.output, "the output", request.input.count);
            break;
        case OpKind::reduce_scatter:
            check_counts_list(request.counts, size, "counts");
            check_total(request.input, "the input", total(request.counts));
            check_total(request.output, "the output", request.counts[own]);
            break;
        case OpKind::all_gather:
        case OpKind::gather:
            check_counts_list(request.counts, size, "counts");
            check_total(request.input, "the input", request.counts[own]);
            if (is_root || request.kind == OpKind::all_gather) {
                check_total(request.output, "the output", total(request.counts));
            }
            break;
        case OpKind::scatter:
            if (!request.counts.empty()) {
                check_counts_list(request.counts, size, "counts");
                if (is_root) check_total(request.input, "the input", total(request.counts));
                check_total(request.output, "the output", request.counts[own]);
            }
            break;
        case OpKind::all_to_all:
            check_counts_list(request.send_counts, size, "send_counts");
            check_counts_list(request.recv_counts, size, "recv_counts");
            check_total(request.input, "the input", total(request.send_counts));
            check_total(request.output, "the output", total(request.recv_counts));
            PYCOMM_CHECK(request.send_counts[own] == request.recv_counts[own], argument,
                         "send_counts and recv_counts differ for the own rank ", rank, ": ",
                         request.send_counts[own], " and ", request.recv_counts[own]);
            break;
        default:
            break;
    }
}

bool reduces(const CollectiveRequest& request) {
    return request.kind == OpKind::all_reduce || request.kind == OpKind::reduce_scatter ||
           request.kind == OpKind::reduce;
}

bool is_in_place(const CollectiveRequest& request, int rank) {
    const Buffer& in = request.input;
    const Buffer& out = request.output;
    if (out.data == nullptr || in.data == nullptr) return false;
    const auto own = static_cast<size_t>(rank);
    const auto& counts = request.counts;
    switch (request.kind) {
        case OpKind::all_reduce:
        case OpKind::reduce:
            return in.data == out.data;
        case OpKind::broadcast:
            return true;
        case OpKind::all_to_all:
            return false;
        default:
            break;
    }
    if (counts.empty() || counts[own] == 0) return false;
    const int64_t offset = std::accumulate(
        counts.begin(), counts.begin() + static_cast<std::ptrdiff_t>(own), int64_t{0});
    const bool joins = request.kind == OpKind::all_gather || request.kind == OpKind::gather;
    return joins ? out.at(offset) == in.data : in.at(offset) == out.data;
}

bool overlaps(const CollectiveRequest& request, int rank) {
    return overlap(request.input, request.output) && !is_in_place(request, rank);
}

Envelope make_envelope(const CollectiveRequest& request, uint64_t sequence, Algorithm algorithm) {
    Envelope envelope;
    envelope.sequence = sequence;
    envelope.kind =
        static_cast<uint8_t>(request.called == OpKind::none ? request.kind : request.called);
    envelope.dtype = static_cast<uint8_t>(request.input.dtype);
    envelope.op = static_cast<uint8_t>(request.op);
    envelope.root = request.root;
    envelope.algorithm = static_cast<uint8_t>(algorithm);
    envelope.count = request.input.count;
    if (request.explicit_counts) {
        // Per-rank buffers differ; the list says it all. all_to_all compares pair by pair later.
        envelope.count = request.kind == OpKind::all_to_all ? 0 : total(request.counts);
        envelope.counts_hash = hash_counts(request.counts);
    } else if (request.kind == OpKind::scatter) {
        envelope.count = request.rows;
        envelope.counts_hash = static_cast<uint32_t>(request.row_elements);
        envelope.rows = 1;
    } else if (request.row_elements > 0) {
        // The parts follow from rows, so equal counts of unequal rows are different calls.
        envelope.counts_hash = static_cast<uint32_t>(request.row_elements);
        envelope.rows = 2;
    }
    return envelope;
}

Problem make_problem(const CollectiveRequest& request, int rank, int size) {
    Problem problem;
    problem.kind = request.kind;
    problem.rank = rank;
    problem.size = size;
    problem.root = std::max(0, request.root);
    problem.element_size = dtype_size(request.input.dtype);
    problem.count = request.input.count;
    problem.counts = request.counts;
    problem.send_counts = request.send_counts;
    problem.recv_counts = request.recv_counts;
    if (request.kind == OpKind::scatter && problem.counts.empty()) {
        // Away from root only the own part is known, and only it matters.
        problem.counts.assign(static_cast<size_t>(problem.size), 0);
        problem.counts[static_cast<size_t>(problem.rank)] = request.output.count;
    }
    problem.in_place = is_in_place(request, rank);
    return problem;
}

DirectCall make_direct(const CollectiveRequest& request, uint64_t sequence, int rank,
                       std::span<const Threshold> profile, const SizeLimits& limits) {
    DirectCall call;
    call.limits = limits;
    call.kind = request.kind;
    call.op = request.op;
    call.root = std::max(0, request.root);
    call.sequence = sequence;
    call.input = request.kind == OpKind::broadcast ? request.output : request.input;
    call.output = request.output;
    call.in_place = is_in_place(request, rank);
    call.counts = request.counts;
    if (request.kind == OpKind::all_to_all) {
        call.counts = request.send_counts;
        call.recv_counts = request.recv_counts;
        call.tells_counts = request.explicit_counts;
    }
    if (!profile.empty()) {
        const Algorithm measured = profile_algorithm(request.kind, whole_bytes(request), profile);
        call.stages = measured == Algorithm::automatic || measured == Algorithm::direct;
    }
    return call;
}

}  // namespace pycomm
