// What lies where in the memory that the ranks of a node share.
//
//   fault record | one Doorbell per rank | one ProgressLine per rank | two ClaimLines |
//   two BoardSlots per rank | a HandoverLine per pair of ranks | staging memory per rank | rings
//
// For every ordered pair of ranks and every Stream there is one ring: a RingControl followed by
// `ring_bytes` bytes of data. Everything is addressed by offset, since each process maps the region
// elsewhere. All-zero memory is a valid initial state.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "transport/transport.h"

namespace pycomm {

inline constexpr size_t cache_line = 64;

// Written by the rank that breaks the communicator, read by all. `state` goes 0 -> writing ->
// ready.
struct FaultRecord {
    static constexpr uint32_t writing = 1;
    static constexpr uint32_t ready = 2;
    static constexpr int max_ranks = 256;

    std::atomic<uint32_t> state;
    uint8_t code;
    int32_t reporter;
    int32_t rank_count;
    int32_t ranks[max_ranks];
    char text[2048];
};

// Where one rank sleeps. Peers that changed something for it look at `sleeping` and, when set, bump
// `sequence` and wake.
struct alignas(cache_line) Doorbell {
    std::atomic<uint32_t> sequence;
    std::atomic<uint32_t> sleeping;
    std::atomic<uint32_t> closed;  // set when this rank has left the communicator
    // The first 64 ranks this one waits for, as bits, and when it last said so (ns, steady clock).
    std::atomic<uint64_t> waiting_for;
    std::atomic<int64_t> waiting_at;
};

// How far one rank is in operations that work on mapped memory; written by it alone.
struct alignas(cache_line) ProgressLine {
    std::atomic<uint64_t> finished;   // sequence number of the last one it has done its share of
    std::atomic<uint32_t> inside;     // it is touching memory of others
    std::atomic<uint32_t> withdrawn;  // its memory must not be touched any more
    std::atomic<uint64_t> phases[Board::phases];
};

// Pieces of one operation that were taken; rank 0 sets it back.
struct alignas(cache_line) ClaimLine {
    std::atomic<uint64_t> taken;
};

// Byte positions since the beginning; position modulo ring_bytes is the place in the ring. The
// sender owns `head`, the receiver owns `tail`; each has its own cache line.
struct RingControl {
    alignas(cache_line) std::atomic<uint64_t> head;
    alignas(cache_line) std::atomic<uint64_t> tail;
};

class Layout {
  public:
    // At most `buffer_bytes` of staging memory and ring data per rank. A quarter of it is for
    // staging; a ring is the largest power of two that fits, but no more than another quarter.
    // Larger than the second-level cache, with the default: see MappedChannel.
    Layout(int size, int64_t buffer_bytes);

    int size() const { return size_; }
    size_t ring_bytes() const { return ring_bytes_; }
    size_t stage_bytes() const { return stage_bytes_; }
    size_t total_bytes() const { return total_bytes_; }

    FaultRecord& fault(std::byte* base) const { return *reinterpret_cast<FaultRecord*>(base); }
    Doorbell& doorbell(std::byte* base, int rank) const {
        return reinterpret_cast<Doorbell*>(base + doorbells_)[rank];
    }
    ProgressLine& progress_line(std::byte* base, int rank) const {
        return reinterpret_cast<ProgressLine*>(base + progress_)[rank];
    }
    ClaimLine& claim_line(std::byte* base, uint64_t sequence) const {
        return reinterpret_cast<ClaimLine*>(base + claims_)[sequence & 1];
    }
    BoardSlot* board_slots(std::byte* base) const {
        return reinterpret_cast<BoardSlot*>(base + board_);
    }
    HandoverLine& handover(std::byte* base, int from, int to) const {
        return reinterpret_cast<HandoverLine*>(base + handovers_)[from * size_ + to];
    }
    std::byte* stage(std::byte* base, int rank) const {
        return base + stages_ + static_cast<size_t>(rank) * stage_bytes_;
    }
    RingControl& ring(std::byte* base, int from, int to, Stream stream) const;
    std::byte* ring_data(RingControl& control) const {
        return reinterpret_cast<std::byte*>(&control) + sizeof(RingControl);
    }

  private:
    int size_;
    size_t stage_bytes_;
    size_t ring_bytes_;
    size_t doorbells_;
    size_t progress_;
    size_t claims_;
    size_t board_;
    size_t handovers_;
    size_t stages_;
    size_t rings_;
    size_t total_bytes_;
};

}  // namespace pycomm
