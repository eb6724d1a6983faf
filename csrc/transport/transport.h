// The seam between collectives and the ways bytes travel.
//
// A Transport connects the ranks of one communicator. It makes Channels: one ordered, reliable byte
// stream per peer, direction and Stream. All calls but the constructor's bootstrap are
// non-blocking; the caller makes progress on many channels in turn and, when nothing moves, sleeps
// in Transport::wait. A transport is driven by one thread at a time; only wake(), post_fault() and
// fault() may be called from other threads.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/deadline.h"
#include "base/error.h"
#include "base/free_memory.h"
#include "store/store.h"

namespace pycomm {

// Memory for arrays.
class Heap {
  public:
    virtual ~Heap() = default;
    // 64-byte aligned; null when there is none left, and then `why` says how much was wanted and
    // how much is free. `shared` is what there was before the ranks, which all allocate as much
    // now, began; null when this one allocates by itself. Thread-safe.
    virtual void* allocate(size_t bytes, bool zeroed, const SharedOut* shared,
                           std::string& why) = 0;
    virtual void deallocate(void* memory) = 0;
    virtual bool owns(const void* memory) const = 0;
    // At least what was asked for; 0 where that cannot be found out, in a forked process.
    virtual size_t size_of(void* memory) = 0;
};

// Results of at least so many bytes are written past the caches.
inline constexpr size_t smallest_streamed = 16 << 20;

enum class Stream : uint8_t { collective = 0, point_to_point = 1 };
inline constexpr int stream_count = 2;

// One link to one peer. Messages have no header: both sides know their lengths.
// `last` tells that the message ends with these bytes when all of them are taken, which lets a
// transport align the next message; both sides must say it at the same place.
class Channel {
  public:
    virtual ~Channel() = default;
    // Takes up to `bytes` bytes of `data`; returns how many it took, 0 when there is no room now.
    virtual size_t try_send(const void* data, size_t bytes, bool last) = 0;
    // Where the next `bytes` bytes may be written instead, all of them, before `publish` sends
    // them. Null when there is no such place now, or the transport has none at all; one that has
    // aligns messages to `alignment`.
    static constexpr size_t alignment = 64;
    virtual std::byte* reserve(size_t /*bytes*/) { return nullptr; }
    virtual void publish(size_t /*bytes*/, bool /*last*/) {}
    // The next received bytes, at most `bytes`, contiguous, aligned to 16 at the start of a message
    // and by a multiple of 16 after it as long as the caller consumes multiples of 16. Empty when
    // nothing has arrived. Valid until the next call on this channel's receiving side. The view
    // holds at least min(bytes, min_view) bytes once the peer has sent them and the caller repeats
    // the call.
    virtual std::span<const std::byte> peek(size_t bytes) = 0;
    // Frees the first `bytes` bytes of the view that peek returned.
    virtual void consume(size_t bytes, bool last) = 0;
    // Copies up to `bytes` received bytes to `data` and consumes them; returns how many. `streams`
    // is a hint: the whole is smallest_streamed or more, so that the caches would not keep it.
    virtual size_t try_recv(void* data, size_t bytes, bool last, bool streams) = 0;

    // A view may end early where the transport's memory wraps, but not inside the first min_view
    // bytes.
    static constexpr size_t min_view = 16;
};

// Where the other ranks find what a rank gives to a collective, or may write its result.
enum class Where : uint8_t {
    nowhere,  // it gives nothing, or takes nothing
    line,     // in the parcel of its board line
    beside,   // beside its board line
    staged,   // in its staging memory of the board, at the offset in the parcel
    mapped,   // in memory that all ranks have mapped, at the place in the parcel
    address,  // in memory of its own that the others may read through the operating system, at the
              // address in the parcel
    hidden,   // in memory of its own
};

// What a rank called, compared between ranks before data moves.
struct Call {
    int64_t count = 0;  // elements
    int32_t root = -1;
    uint32_t counts_hash = 0;  // of per-rank counts, 0 when there are none
    uint8_t kind = 0;          // OpKind
    uint8_t dtype = 0;         // DataType
    uint8_t op = 0;            // ReduceOp
    uint8_t algorithm = 0;     // Algorithm
    uint8_t rows = 0;          // what count and counts_hash mean where counts follow from rows
    // Not compared, from here on: ranks keep their arrays where they like.
    Where input_at = Where::nowhere;
    Where output_at = Where::nowhere;
    uint8_t in_place = 0;  // the output is (part of) the input
};
static_assert(sizeof(Call) == 24);

// A call and its number.
struct Envelope : Call {
    uint64_t sequence = 0;  // number of the collective on this communicator, from 1
};
static_assert(sizeof(Envelope) == 32);

// Where peers find memory of a rank: understood by Transport::peer_memory.
struct MappedPlace {
    uint32_t window;
    uint64_t offset;
};

// Where the array of one end of a message lies, for a copy from array to array.
struct ArrayPlace {
    enum class Kind : uint8_t {
        hidden,   // peers cannot reach it
        mapped,   // in memory that they have mapped: MappedPlace
        address,  // at an address of its process, which the operating system lets them read and
                  // write
    };
    uint64_t offset = 0;  // or address
    uint32_t window = 0;
    Kind kind = Kind::hidden;
};

// What the two ends of a message tell each other while it is copied from array to array; one for
// each ordered pair of ranks. The receiver owns it, and gives pieces to the sender.
struct alignas(64) HandoverLine {
    enum Piece : uint32_t { none, given, taken, copied, refused };
    static constexpr int pieces = 2;

    std::atomic<uint64_t> answer;         // number of the message, and how it goes on
    std::atomic<uint32_t> state[pieces];  // Piece
    uint32_t index[pieces];               // which piece of the message
    uint32_t target_window;
    uint32_t target_kind;  // ArrayPlace::Kind
    // Where it goes, in the words of process_vm_writev, which reads them here, when the copy
    // begins: so the receiver can still take a piece back from a sender that was stopped just
    // before.
    struct Target {
        uint64_t base;
        uint64_t bytes;
    } target[pieces];
};
static_assert(sizeof(HandoverLine) == 64);

// Whether ranks may copy between arrays that are not mapped.
struct OneCopy {
    bool addresses = false;  // allowed by the operating system and the settings
    bool always = false;     // even where it was measured to be slower
    std::string refusal;     // why it is not allowed although it was wanted
};

// What travels in the same cache line as the envelope: a short input, or the places of buffers (a
// staged input is at places.input.offset of the staging memory).
union Parcel {
    struct {
        MappedPlace input;
        MappedPlace output;
    } places;
    std::byte bytes[32];
};
static_assert(sizeof(Parcel) == 32);

// One rank's call, its parcel and their arrival flag, which is the number of the operation, in one
// cache line.
struct alignas(64) BoardLine {
    std::atomic<uint64_t> arrived;
    Call call;
    Parcel parcel;
};
static_assert(sizeof(BoardLine) == 64);

// With room for an input whose place peers know before the line says that it is there, so that they
// can fetch both at once.
struct alignas(64) BoardSlot {
    BoardLine line;
    std::byte beside[1024];
};
static_assert(sizeof(BoardSlot) == 1088);

// Mapped memory in which every rank posts its envelope and sees all others', with room for small
// inputs beside it.
//
// Lines are used in turn by odd and even operations. That is safe because no rank starts operation
// s before all have posted s - 1, and a rank that has posted s - 1 has done with s - 2.
class Board {
  public:
    // `slots`: two per rank.
    Board(BoardSlot* slots, int rank) : slots_(slots), rank_(rank) {}
    virtual ~Board() = default;

    // Publishes `envelope`, `parcel` and what was staged. wake_sleepers has to follow, at the
    // latest before this rank returns from the operation or sleeps itself: what comes in between
    // runs while the line is on its way.
    void post(const Envelope& envelope, const Parcel& parcel) {
        BoardLine& mine = line(rank_, envelope.sequence);
        mine.call = envelope;
        mine.parcel = parcel;
        mine.arrived.store(envelope.sequence, std::memory_order_release);
    }
    virtual void wake_sleepers() = 0;
    bool arrived(int peer, uint64_t sequence) const {
        return line(peer, sequence).arrived.load(std::memory_order_acquire) == sequence;
    }
    // Of a rank that has arrived.
    const Call& call(int peer, uint64_t sequence) const { return line(peer, sequence).call; }
    const Parcel& parcel(int peer, uint64_t sequence) const { return line(peer, sequence).parcel; }
    // To be written before post, and read of a rank that has arrived.
    std::byte* beside(int rank, uint64_t sequence) const { return slot(rank, sequence).beside; }

    // Copies `bytes` bytes, at most largest_staged(), to where the others may read them from the
    // next post to the end of that operation; returns their place for `staged`. The bytes of
    // `hole`, which nobody needs, are left out. Memory is used round and round, so that a piece has
    // left the readers' caches before it is written again.
    struct Hole {
        size_t begin = 0;
        size_t end = 0;
    };
    virtual uint64_t stage(const void* data, size_t bytes, Hole hole) = 0;
    uint64_t stage(const void* data, size_t bytes) { return stage(data, bytes, {}); }
    virtual const std::byte* staged(int rank, uint64_t offset) const = 0;
    virtual size_t largest_staged() const = 0;

    // All of the staging memory, for an operation that has it to itself from the time when all have
    // arrived until it has seen all others end. `write` is the copy of stage, to a place of choice.
    virtual size_t area_bytes() const = 0;
    virtual void write(uint64_t offset, const void* data, size_t bytes) = 0;
    // How far a rank is in such an operation: numbers that only grow, also from one operation to
    // the next.
    enum class Phase : uint8_t { staged, reduced, consumed };
    static constexpr int phases = 3;
    virtual void post_progress(Phase phase, uint64_t value) = 0;
    virtual uint64_t progress(int peer, Phase phase) const = 0;
    // The closing of an operation that works on mapped memory: this rank has done its share of
    // `sequence` and will not touch memory of others for it any more.
    virtual void post_finished(uint64_t sequence) = 0;
    virtual bool finished(int peer, uint64_t sequence) const = 0;
    // Counts the pieces of an operation that the ranks take from each other; 0 when it starts.
    virtual std::atomic<uint64_t>& claims(uint64_t sequence) = 0;

    // Between enter and leave this rank may touch memory that peers have offered: briefly. False
    // when one of them takes it back, which it does when its operation fails. withdraw does that,
    // and waits until nobody is inside any more; not for a rank that is stopped or dead, though.
    virtual bool enter() = 0;
    // The same when only the memory of `peer` is touched; others may have left.
    virtual bool enter(int peer) = 0;
    virtual void leave() = 0;
    virtual void withdraw() = 0;

  private:
    BoardSlot& slot(int rank, uint64_t sequence) const {
        return slots_[2 * static_cast<size_t>(rank) + (sequence & 1)];
    }
    BoardLine& line(int rank, uint64_t sequence) const { return slot(rank, sequence).line; }

    BoardSlot* slots_;
    int rank_;
};

// Why a communicator is broken; the first one posted wins and reaches every rank.
struct Fault {
    ErrorCode code = ErrorCode::comm;
    int reporter = -1;
    std::vector<int> ranks;  // missing or lost ranks
    std::string text;
};

class Transport {
  public:
    virtual ~Transport() = default;
    virtual const char* name() const = 0;  // "shm", "inproc", "tcp"
    virtual int rank() const = 0;
    virtual int size() const = 0;
    virtual Channel& channel(int peer, Stream stream) = 0;  // peer != rank()
    // Null when ranks do not share memory.
    virtual Board* board() { return nullptr; }
    // Where peers find [data, data + bytes), when all of it is in memory that they have mapped.
    virtual std::optional<MappedPlace> locate(const void* /*data*/, size_t /*bytes*/) const {
        return std::nullopt;
    }
    // Where this rank has mapped what `peer` has located.
    virtual std::byte* peer_memory(int /*peer*/, const MappedPlace& /*place*/) const {
        return nullptr;
    }
    // Messages in one copy. Null when there are none.
    virtual HandoverLine* handover(int /*from*/, int /*to*/) { return nullptr; }
    virtual OneCopy one_copy() const { return {}; }
    virtual ArrayPlace place_of(const void* /*data*/, size_t /*bytes*/) const { return {}; }
    // Copies `bytes` bytes from `offset` of what lies at `place` of `peer`. False when the
    // operating system refused. The caller is inside (see Board). `streams` as in
    // Channel::try_recv.
    virtual bool read_array(int /*peer*/, const ArrayPlace& /*place*/, size_t /*offset*/,
                            void* /*to*/, size_t /*bytes*/, bool /*streams*/) {
        return false;
    }
    // Copies to where piece `slot` of `line` goes in `peer`'s array.
    virtual bool write_piece(int /*peer*/, const HandoverLine& /*line*/, int /*slot*/,
                             const void* /*from*/, size_t /*bytes*/, bool /*streams*/) {
        return false;
    }
    // Wakes `peer` when it sleeps.
    virtual void notify(int /*peer*/) {}
    // Sets up what `heap` gives. Collective over `bootstrap`. Throws TransportError on every rank
    // when it cannot be had.
    virtual void open_heap(Bootstrap& /*bootstrap*/, const Deadline& /*deadline*/) {}
    // Memory of this rank that peers have mapped (see locate), once it was opened. It may outlive
    // the transport. Null when ranks do not share memory, or share all of it.
    virtual std::shared_ptr<Heap> heap() { return nullptr; }

    // Sleeping without losing a wake-up: prepare_wait(); look once more for progress; then wait()
    // (or cancel_wait() when there was some). wait returns when a peer changed something, when
    // wake() was called after prepare_wait(), or after `at_most`; spurious returns are fine.
    virtual void prepare_wait() = 0;
    virtual void cancel_wait() = 0;
    virtual void wait(std::chrono::nanoseconds at_most) = 0;
    virtual void wake() = 0;

    // Says which ranks this one waits for, and for how long it will not look again; cheap.
    virtual void post_waiting(const std::vector<int>& /*peers*/) {}
    // Follows what the ranks of `waiting` wait for themselves, as far as it is known, to those that
    // do not wait: the ranks that hold up the others.
    virtual std::vector<int> trace(const std::vector<int>& waiting) { return waiting; }

    // False once the peer's process is known to have ended. May cost a system call.
    virtual bool alive(int peer) = 0;
    // Breaks the communicator on every rank, as far as they can be reached; wakes them.
    virtual void post_fault(const Fault& fault) = 0;
    // The first fault posted by any rank, once it is known here; cheap enough for every pass.
    virtual const Fault* fault() = 0;
};

}  // namespace pycomm
