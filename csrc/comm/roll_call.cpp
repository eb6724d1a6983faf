// Exchange and comparison of envelopes.
#include "comm/roll_call.h"

#include <algorithm>
#include <cstddef>
#include <cstring>

#include "algorithms/algorithms.h"
#include "schedule/schedule.h"

namespace pycomm {
namespace {

bool reduces(OpKind kind) {
    return kind == OpKind::all_reduce || kind == OpKind::reduce_scatter || kind == OpKind::reduce;
}

// A scatter without counts: `count` is rows and counts_hash elements per row; see Communicator.
bool is_plain_scatter(const Call& call) {
    return static_cast<OpKind>(call.kind) == OpKind::scatter && call.rows == 1;
}

// Counts are derived from rows: `count` is elements and counts_hash elements per row.
bool tells_row_elements(const Call& call) {
    return call.rows == 2;
}

}  // namespace

std::string to_string(const Call& call, uint64_t sequence) {
    const auto kind = static_cast<OpKind>(call.kind);
    std::string text = kind_name(kind);
    if (sequence > 0) text += concat(" #", sequence);  // else not started yet
    if (kind == OpKind::barrier || kind == OpKind::split) return text;
    if (kind == OpKind::empty) return text + concat(" (", call.count, " bytes)");
    text += concat(" (", dtype_name(static_cast<DataType>(call.dtype)), ", ");
    if (kind == OpKind::all_to_all && call.counts_hash != 0 && call.rows == 0) {
        return text + "counts for each rank)";  // compared pair by pair after the roll call
    }
    text += concat(call.count, is_plain_scatter(call) ? " row" : " element",
                   call.count == 1 ? "" : "s");
    if (reduces(kind)) text += concat(", ", op_name(static_cast<ReduceOp>(call.op)));
    if (call.root >= 0) text += concat(", root ", call.root);
    if (tells_row_elements(call) || is_plain_scatter(call)) {
        text += concat(", rows of ", call.counts_hash);
    } else if (call.counts_hash != 0) {
        text += concat(", counts with checksum ", std::hex, call.counts_hash);
    }
    return text + ")";
}

bool same_call(const Call& mine, const Call& theirs) {
    if (std::memcmp(&mine, &theirs, offsetof(Call, input_at)) == 0) return true;
    return is_plain_scatter(mine) && is_plain_scatter(theirs) && mine.dtype == theirs.dtype &&
           mine.root == theirs.root && mine.counts_hash == theirs.counts_hash;
}

RollCall::RollCall(Transport& transport, const Envelope& mine, const Parcel& parcel, bool posted)
    : transport_(transport), mine_(mine) {
    const int size = transport.size();
    absent_.reserve(static_cast<size_t>(size));
    for (int rank = 0; rank < size; ++rank) {
        if (rank != transport.rank()) absent_.push_back(rank);
    }
    if (is_plain_scatter(mine)) scatter_parts_.resize(static_cast<size_t>(size));
    if (Board* board = transport.board()) {
        if (!posted) board->post(mine_, parcel);
        board->wake_sleepers();
    } else {
        wires_.resize(static_cast<size_t>(size));
    }
}

bool RollCall::send_some() {
    bool moved = false;
    for (int step = 1; step < transport_.size(); ++step) {
        const int peer = (transport_.rank() + step) % transport_.size();
        Wire& wire = wires_[static_cast<size_t>(peer)];
        if (wire.sent == sizeof(Envelope)) continue;
        const size_t taken = transport_.channel(peer, Stream::collective)
                                 .try_send(reinterpret_cast<const std::byte*>(&mine_) + wire.sent,
                                           sizeof(Envelope) - wire.sent, true);
        wire.sent += taken;
        moved |= taken > 0;
    }
    return moved;
}

const Call* RollCall::arrival(int peer) {
    if (Board* board = transport_.board()) {
        return board->arrived(peer, mine_.sequence) ? &board->call(peer, mine_.sequence) : nullptr;
    }
    Wire& wire = wires_[static_cast<size_t>(peer)];
    wire.received += transport_.channel(peer, Stream::collective)
                         .try_recv(reinterpret_cast<std::byte*>(&wire.theirs) + wire.received,
                                   sizeof(Envelope) - wire.received, true, false);
    // Counted as here only when our own is on its way to it, so that done() covers both directions.
    if (wire.received < sizeof(Envelope) || wire.sent < sizeof(Envelope)) return nullptr;
    return &wire.theirs;
}

bool RollCall::progress() {
    bool moved = !wires_.empty() && send_some();
    for (size_t i = 0; i < absent_.size();) {
        const int peer = absent_[i];
        const Call* theirs = arrival(peer);
        if (theirs == nullptr) {
            ++i;
            continue;
        }
        absent_.erase(absent_.begin() + static_cast<std::ptrdiff_t>(i));
        compare(peer, *theirs);
        moved = true;
    }
    return moved;
}

void RollCall::fail(int rank, const Call& mine, int peer, const Call& theirs,
                    const std::string& detail) const {
    const std::string text =
        concat("rank ", rank, " called ", to_string(mine, mine_.sequence), " but rank ", peer,
               " called ", to_string(theirs, sequence_of(peer)), detail,
               "; every rank must make the same calls in the same order with matching arguments");
    throw Error(ErrorCode::mismatch, text, {peer});
}

void RollCall::compare(int peer, const Call& theirs) {
    if (!same_call(mine_, theirs) || sequence_of(peer) != mine_.sequence) {
        std::string detail;
        if (mine_.algorithm != theirs.algorithm) {
            detail = concat(", with the algorithms ",
                            algorithm_name(static_cast<Algorithm>(mine_.algorithm)), " and ",
                            algorithm_name(static_cast<Algorithm>(theirs.algorithm)));
        }
        fail(transport_.rank(), mine_, peer, theirs, detail);
    }
    if (is_plain_scatter(mine_)) compare_scatter(peer, theirs);
}

void RollCall::compare_scatter(int peer, const Call& theirs) {
    scatter_parts_[static_cast<size_t>(peer)] = theirs;
    scatter_parts_[static_cast<size_t>(transport_.rank())] = mine_;
    const auto& root = scatter_parts_[static_cast<size_t>(mine_.root)];
    for (int rank = 0; root && rank < transport_.size(); ++rank) {
        const auto& part = scatter_parts_[static_cast<size_t>(rank)];
        if (!part || rank == mine_.root) continue;
        const int64_t rows = slice_count(root->count, transport_.size(), rank);
        if (part->count != rows) {
            fail(mine_.root, *root, rank, *part,
                 concat(", and the part of rank ", rank, " is ", rows, " rows"));
        }
    }
}

// Over wires the numbers are compared, too; on the board only lines of this number are looked at.
uint64_t RollCall::sequence_of(int peer) const {
    if (wires_.empty() || peer == transport_.rank()) return mine_.sequence;
    return wires_[static_cast<size_t>(peer)].theirs.sequence;
}

}  // namespace pycomm
