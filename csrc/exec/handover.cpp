// Pieces of messages that go from array to array, and the choice between that and the channel.
#include "exec/handover.h"

#include <algorithm>
#include <bit>

namespace pycomm {
namespace {

using Kind = ArrayPlace::Kind;

// Below these a channel is faster: it needs no answer, and no system calls.
constexpr size_t smallest_mapped = 32 << 10;
constexpr size_t smallest_address = 256 << 10;
// Some ten microseconds to copy, so that both sides end together and look around often.
constexpr size_t smallest_piece = 32 << 10;
constexpr size_t largest_piece = 256 << 10;
constexpr size_t page = 4096;
// Both ways are tried in turns at first, later the slower one now and then: it may have become the
// faster one.
constexpr unsigned first_trials = 4;
constexpr unsigned messages_between_trials = 64;

size_t piece_bytes_of(size_t bytes) {
    return std::clamp(bytes / 8, smallest_piece, largest_piece) / page * page;
}

constexpr int answer_bits = 2;

}  // namespace

ArrayPlace offer_payload(Transport& transport, const Buffer& buffer) {
    const size_t bytes = buffer.bytes();
    if (bytes < smallest_mapped) return {};
    const ArrayPlace place = transport.place_of(buffer.data, bytes);
    return place.kind == Kind::address && bytes < smallest_address ? ArrayPlace{} : place;
}

void post_answer(Transport& transport, int sender, uint64_t number, Answer answer) {
    HandoverLine& line = *transport.handover(sender, transport.rank());
    line.answer.store(number << answer_bits | static_cast<uint64_t>(answer),
                      std::memory_order_release);
    transport.notify(sender);
}

Answer read_answer(Transport& transport, int receiver, uint64_t number) {
    const HandoverLine& line = *transport.handover(transport.rank(), receiver);
    const uint64_t word = line.answer.load(std::memory_order_acquire);
    if (word >> answer_bits != number) return Answer::none;
    return static_cast<Answer>(word & ((1 << answer_bits) - 1));
}

bool help_receiver(Transport& transport, int receiver, const Buffer& buffer) {
    HandoverLine& line = *transport.handover(transport.rank(), receiver);
    for (int slot = 0; slot < HandoverLine::pieces; ++slot) {
        auto& state = line.state[slot];
        uint32_t expected = HandoverLine::given;
        if (state.load(std::memory_order_relaxed) != expected) continue;
        if (!state.compare_exchange_strong(expected, HandoverLine::taken)) continue;
        if (!transport.board()->enter(receiver)) return false;  // its operations have failed
        const size_t piece = piece_bytes_of(buffer.bytes());
        const size_t offset = piece * line.index[slot];
        const bool copied = transport.write_piece(
            receiver, line, slot, static_cast<const std::byte*>(buffer.data) + offset,
            std::min(piece, buffer.bytes() - offset), buffer.bytes() >= smallest_streamed);
        transport.board()->leave();
        state.store(copied ? HandoverLine::copied : HandoverLine::refused,
                    std::memory_order_release);
        transport.notify(receiver);
        return true;
    }
    return false;
}

Fetch::Fetch(Transport& transport, int sender, const ArrayPlace& source, const Buffer& target)
    : transport_(transport),
      line_(*transport.handover(sender, transport.rank())),
      sender_(sender),
      source_(source),
      target_place_(transport.place_of(target.data, target.bytes())),
      target_(static_cast<std::byte*>(target.data)),
      bytes_(target.bytes()),
      piece_bytes_(piece_bytes_of(bytes_)),
      streams_(bytes_ >= smallest_streamed),
      helped_(target_place_.kind != Kind::hidden),
      back_(static_cast<uint32_t>((bytes_ + piece_bytes_ - 1) / piece_bytes_)) {
    line_.target_window = target_place_.window;
    line_.target_kind = static_cast<uint32_t>(target_place_.kind);
    give();
}

size_t Fetch::piece_size(uint32_t index) const {
    return std::min(piece_bytes_, bytes_ - index * piece_bytes_);
}

void Fetch::progress() {
    collect();
    if (!refused_) {
        give();
        if (front_ == back_ && returned_.empty()) take_back();
        if (front_ < back_) {
            copy(front_++);
        } else if (!returned_.empty()) {
            const uint32_t index = returned_.back();
            returned_.pop_back();
            copy(index);
        }
    }
    if (refused_) take_back();
    if (given_ > 0) return;
    ended_ = refused_ || (front_ == back_ && returned_.empty() && sender_is_bound());
}

// Whether the sender's operation had not failed by now, after which its array may have changed.
bool Fetch::sender_is_bound() {
    if (!transport_.board()->enter(sender_)) return false;
    transport_.board()->leave();
    return true;
}

// Looks at what has become of the pieces at the sender.
void Fetch::collect() {
    for (int slot = 0; given_ > 0 && slot < HandoverLine::pieces; ++slot) {
        const uint32_t state = line_.state[slot].load(std::memory_order_acquire);
        if (state != HandoverLine::copied && state != HandoverLine::refused) continue;
        if (state == HandoverLine::copied) {
            bytes_done_ += piece_size(line_.index[slot]);
        } else {
            returned_.push_back(line_.index[slot]);
            helped_ = false;
        }
        line_.state[slot].store(HandoverLine::none, std::memory_order_relaxed);
        --given_;
    }
}

void Fetch::give() {
    bool gave = false;
    for (int slot = 0; helped_ && slot < HandoverLine::pieces && back_ - front_ > 1; ++slot) {
        if (line_.state[slot].load(std::memory_order_relaxed) != HandoverLine::none) continue;
        const uint32_t index = --back_;
        line_.index[slot] = index;
        line_.target[slot] = {target_place_.offset + index * piece_bytes_, piece_size(index)};
        line_.state[slot].store(HandoverLine::given, std::memory_order_release);
        ++given_;
        gave = true;
    }
    if (gave) transport_.notify(sender_);
}

// Pieces that the sender has not begun.
void Fetch::take_back() {
    for (int slot = 0; given_ > 0 && slot < HandoverLine::pieces; ++slot) {
        uint32_t expected = HandoverLine::given;
        if (!line_.state[slot].compare_exchange_strong(expected, HandoverLine::none)) continue;
        returned_.push_back(line_.index[slot]);
        --given_;
    }
}

void Fetch::copy(uint32_t index) {
    const size_t offset = index * piece_bytes_;
    const size_t size = piece_size(index);
    if (!transport_.board()->enter(sender_)) {
        returned_.push_back(index);  // never to be copied: the sender's operations have failed
        return;
    }
    refused_ = !transport_.read_array(sender_, source_, offset, target_ + offset, size, streams_);
    transport_.board()->leave();
    if (!refused_) bytes_done_ += size;
}

void Fetch::revoke() {
    for (auto& target : line_.target) {
        // The other side is the kernel, which reads this when a copy begins.
        std::atomic_ref(target.bytes).store(0, std::memory_order_seq_cst);
    }
}

WayChoice::Ways& WayChoice::ways(ArrayPlace::Kind kind, size_t bytes) {
    const size_t first = kind == Kind::mapped ? 0 : classes;
    return table_[first + static_cast<size_t>(std::bit_width(bytes))];
}

bool WayChoice::copies(ArrayPlace::Kind kind, size_t bytes) {
    if (always_) return true;
    Ways& known = ways(kind, bytes);
    const unsigned turn = known.messages++;
    if (turn < first_trials) return turn % 2 == 0;
    const bool better = known.copied.value() <= known.channel.value();
    return turn % messages_between_trials == 0 ? !better : better;
}

void WayChoice::add(ArrayPlace::Kind kind, size_t bytes, bool copied, double nanoseconds) {
    Ways& known = ways(kind, bytes);
    (copied ? known.copied : known.channel).add(nanoseconds * 1024 / static_cast<double>(bytes));
}

}  // namespace pycomm
