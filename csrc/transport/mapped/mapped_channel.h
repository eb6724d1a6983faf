// A Channel over two single-producer, single-consumer rings in shared memory.
//
//   sender                                receiver
//   copy bytes at head                    sees head (acquire), reads bytes at tail in place
//   head = head + n   (release)  ----->   consume: tail = tail + n (release)
//   sees tail: room again        <-----
//
// The receiver publishes its position for each eighth of the ring: a sender that finds no room is
// far enough ahead for the receiver to come to the next one.
//
// A message starts at a multiple of 64, so elements never straddle the end of the ring and the
// receiver can compute on them in place. A fence stands between the store of a position and the
// look at the peer's `sleeping` flag: either the sleeper, who looks once more after it set the
// flag, sees the new position or the writer sees the sleeper.
#pragma once

#include "transport/mapped/layout.h"
#include "transport/mapped/ring_copy.h"

namespace pycomm {

class MappedChannel final : public Channel {
  public:
    MappedChannel(const Layout& layout, std::byte* base, int rank, int peer, Stream stream);

    size_t try_send(const void* data, size_t bytes, bool last) override;
    std::byte* reserve(size_t bytes) override;
    void publish(size_t bytes, bool last) override;
    std::span<const std::byte> peek(size_t bytes) override;
    void consume(size_t bytes, bool last) override;
    size_t try_recv(void* data, size_t bytes, bool last, bool streams) override;

  private:
    uint64_t room() const;
    void see_tail();
    void wake_peer();

    RingControl* out_;
    std::byte* out_data_;
    RingControl* in_;
    const std::byte* in_data_;
    Doorbell* peer_bell_;
    size_t capacity_;
    RingCopy ring_copy_;
    // This side's copies: its own positions, and the last seen positions of the peer.
    uint64_t out_head_ = 0;
    uint64_t out_tail_ = 0;
    uint64_t in_head_ = 0;
    uint64_t in_tail_ = 0;
    uint64_t told_tail_ = 0;  // what the peer knows of in_tail_
};

}  // namespace pycomm
