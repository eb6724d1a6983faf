// Ring arithmetic of the mapped channel.
#include "transport/mapped/mapped_channel.h"

#include <algorithm>
#include <cstring>

#include "base/futex.h"
#include "transport/mapped/stream_copy.h"

namespace pycomm {
namespace {

// A long copy is published piece by piece, so that the receiver starts before it is complete.
constexpr size_t publish_bytes = 16384;
constexpr size_t shortest_tail = 2048;

uint64_t align_up(uint64_t position) {
    return (position + cache_line - 1) & ~(cache_line - 1);
}
uint64_t align_down(uint64_t position) {
    return position & ~(cache_line - 1);
}

}  // namespace

MappedChannel::MappedChannel(const Layout& layout, std::byte* base, int rank, int peer,
                             Stream stream)
    : out_(&layout.ring(base, rank, peer, stream)),
      out_data_(layout.ring_data(*out_)),
      in_(&layout.ring(base, peer, rank, stream)),
      in_data_(layout.ring_data(*in_)),
      peer_bell_(&layout.doorbell(base, peer)),
      capacity_(layout.ring_bytes()) {}

void MappedChannel::wake_peer() {
    store_load_fence();
    if (peer_bell_->sleeping.load(std::memory_order_relaxed) == 0) return;
    peer_bell_->sequence.fetch_add(1, std::memory_order_seq_cst);
    futex_wake_all(peer_bell_->sequence);
}

// The tail is rounded down so that the padding after a message always finds room.
uint64_t MappedChannel::room() const {
    return align_down(out_tail_) + capacity_ - out_head_;
}

void MappedChannel::see_tail() {
    out_tail_ = out_->tail.load(std::memory_order_seq_cst);
}

size_t MappedChannel::try_send(const void* data, size_t bytes, bool last) {
    const std::byte* source = static_cast<const std::byte*>(data);
    size_t taken = 0;
    while (taken < bytes) {
        if (room() < std::min(bytes - taken, publish_bytes)) see_tail();
        if (room() == 0) break;
        const size_t place = out_head_ & (capacity_ - 1);
        const size_t left = bytes - taken;
        const size_t wanted =
            last ? std::clamp(left / 2, shortest_tail, publish_bytes) : publish_bytes;
        const size_t piece = std::min({left, room(), capacity_ - place, wanted});
        ring_copy_.copy(out_data_ + place, source + taken, piece);
        taken += piece;
        publish(piece, last && taken == bytes);
    }
    return taken;
}

std::byte* MappedChannel::reserve(size_t bytes) {
    if (room() < bytes) see_tail();
    const size_t place = out_head_ & (capacity_ - 1);
    return room() < bytes || capacity_ - place < bytes ? nullptr : out_data_ + place;
}

void MappedChannel::publish(size_t bytes, bool last) {
    out_head_ += bytes;
    if (last) out_head_ = align_up(out_head_);
    out_->head.store(out_head_, std::memory_order_release);
    wake_peer();
}

std::span<const std::byte> MappedChannel::peek(size_t bytes) {
    const size_t place = in_tail_ & (capacity_ - 1);
    if (in_head_ - in_tail_ < bytes) {
        __builtin_prefetch(in_data_ + place);
        in_head_ = in_->head.load(std::memory_order_seq_cst);
    }
    const size_t ready = std::min(static_cast<size_t>(in_head_ - in_tail_), capacity_ - place);
    return {in_data_ + place, std::min(bytes, ready)};
}

void MappedChannel::consume(size_t bytes, bool last) {
    in_tail_ += bytes;
    if (last) in_tail_ = align_up(in_tail_);
    if (in_tail_ - told_tail_ < capacity_ / 8) return;
    told_tail_ = in_tail_;
    in_->tail.store(in_tail_, std::memory_order_release);
    wake_peer();
}

size_t MappedChannel::try_recv(void* data, size_t bytes, bool last, bool streams) {
    std::byte* target = static_cast<std::byte*>(data);
    size_t taken = 0;
    while (taken < bytes) {
        const auto view = peek(std::min(bytes - taken, publish_bytes));
        if (view.empty()) break;
        if (streams) {
            stream_copy(target + taken, view.data(), view.size());
        } else {
            std::memcpy(target + taken, view.data(), view.size());
        }
        taken += view.size();
        consume(view.size(), last && taken == bytes);
    }
    return taken;
}

}  // namespace pycomm
