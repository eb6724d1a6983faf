// How fast the machine's memory could carry out an operation: what pycomm and others are measured
// against. Nothing else uses it.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "comm/communicator.h"

namespace pycomm {

// Where data goes: past the caches, which is right for what does not fit into them, or not.
enum class Stores : uint8_t { ordinary, streaming };

// An operation as far as its traffic is concerned. `bytes` are those of the larger buffer, for
// operations that split it the total over all ranks.
struct Traffic {
    OpKind kind = OpKind::none;  // `send`: one message between the two ranks of `pair`
    int64_t bytes = 0;
    int root = 0;
    int pair[2] = {0, 1};
};

// Moves the bytes that an ideal implementation has to move, every rank its share and all at once,
// in a plain loop without a word between ranks. Ranks that share memory work on each other's memory
// as the operation would; elsewhere each moves as much within its own. Pieces are rounded up to
// cache lines, so that it says nothing about sizes of a few bytes.
class MemoryLimit {
  public:
    // Collective and blocking. `bytes`: of the largest Traffic. Throws OutOfMemoryError.
    MemoryLimit(Communicator& comm, int64_t bytes, const Engine::InterruptHook& hook);

    // Whether `kind` moves data.
    static bool applies(OpKind kind);
    // One operation's worth of this rank, as a call to time; nothing for a rank outside of `pair`.
    // This object has to live on every rank until all have made their last call.
    std::function<void()> bind(const Traffic& traffic, Stores stores) const;

    // The sum of all sources, as whole numbers of 32 bits, stored in each target.
    struct Move {
        std::vector<const std::byte*> sources;
        std::vector<std::byte*> targets;
        size_t bytes = 0;
    };
    // What this rank's call does.
    std::vector<Move> moves(const Traffic& traffic) const;
    // Whether ranks work on each other's memory.
    bool shared() const { return shared_; }

  private:
    void find_others(Communicator& comm, const Engine::InterruptHook& hook);
    size_t slice_room(int64_t bytes) const;

    int rank_;
    int size_;
    size_t room_;                       // of an input or an output
    std::shared_ptr<std::byte> own_;    // input and output, one after the other
    std::vector<std::byte*> of_ranks_;  // the same of every rank, where this one has mapped it
    bool shared_ = false;
};

}  // namespace pycomm
