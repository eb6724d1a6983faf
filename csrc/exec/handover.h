// Large messages from array to array, in one copy.
//
//   sender     header, which says where its array lies
//   receiver   matches it, and answers: copying, or through the channel after all
//              copies pieces from the front, and gives pieces at the back to the sender
//   sender     copies the pieces it is given into the receiver's array
//   receiver   when all pieces are there: finished, and the sender's array is free again
//
// Each side works with its own core. A piece that the sender has not begun is taken back when the
// receiver has nothing else to do. Which array can be reached how is up to the Transport; when the
// operating system refuses, the message goes through the channel.
//
// When an operation fails, its caller gets the array back, and nobody may touch it any more: both
// sides touch the other's memory between Board::enter and leave only, and a receiver makes the
// pieces it has given empty. The receiver's array is complete only if the sender had not failed
// before the last piece was read.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "base/buffer.h"
#include "base/cost.h"
#include "base/deadline.h"
#include "transport/transport.h"

namespace pycomm {

enum class Answer : uint8_t { none, channel, copying, finished };

// Where the payload of a message to `peer` lies, if it is to be offered.
ArrayPlace offer_payload(Transport& transport, const Buffer& buffer);

// Of message `number`, counted for the pair from 1.
void post_answer(Transport& transport, int sender, uint64_t number, Answer answer);
Answer read_answer(Transport& transport, int receiver, uint64_t number);

// The sender's part: copies a piece that the receiver has given, if there is one. Returns whether
// there was.
bool help_receiver(Transport& transport, int receiver, const Buffer& buffer);

// The receiver's part.
class Fetch {
  public:
    Fetch(Transport& transport, int sender, const ArrayPlace& source, const Buffer& target);

    // Copies at most one piece.
    void progress();
    // Nothing is under way any more: all bytes are here, or it was refused.
    bool ended() const { return ended_; }
    bool refused() const { return refused_; }
    size_t bytes_done() const { return bytes_done_; }
    // The sender shall not write the target any more.
    void revoke();

  private:
    size_t piece_size(uint32_t index) const;
    void collect();
    void give();
    void take_back();
    void copy(uint32_t index);
    bool sender_is_bound();

    Transport& transport_;
    HandoverLine& line_;
    int sender_;
    ArrayPlace source_;
    ArrayPlace target_place_;
    std::byte* target_;
    size_t bytes_;
    size_t piece_bytes_;
    bool streams_;
    bool helped_;         // the sender can write the target
    uint32_t front_ = 0;  // pieces [front_, back_) are neither copied nor given
    uint32_t back_;       //
    int given_ = 0;       // pieces at the sender
    std::vector<uint32_t> returned_;
    size_t bytes_done_ = 0;
    bool refused_ = false;
    bool ended_ = false;
};

// Which way is the faster one for messages of about a size, found by measuring both.
class WayChoice {
  public:
    explicit WayChoice(bool always) : always_(always) {}
    // Whether the next message is copied from array to array.
    bool copies(ArrayPlace::Kind kind, size_t bytes);
    void add(ArrayPlace::Kind kind, size_t bytes, bool copied, double nanoseconds);

  private:
    struct Ways {
        unsigned messages = 0;
        Cost copied;
        Cost channel;
    };
    static constexpr size_t classes = 65;  // by the logarithm of the size

    Ways& ways(ArrayPlace::Kind kind, size_t bytes);

    bool always_;
    std::array<Ways, 2 * classes> table_;
};

}  // namespace pycomm
