// The choice between ordinary and streaming stores.
#include "transport/mapped/ring_copy.h"

#include <cstring>

#include "transport/mapped/stream_copy.h"

namespace pycomm {
namespace {

using Clock = std::chrono::steady_clock;

// Shorter copies are left alone: a clock costs as much as they do.
constexpr size_t shortest_measured = 2048;
constexpr unsigned copies_between_samples = 8;
constexpr unsigned samples_between_trials = 16;
// The reader fetches streamed data from memory, which its side of the bill does not show here.
constexpr double streaming_handicap = 2.5;

void copy_by(bool streaming, std::byte* target, const std::byte* source, size_t bytes) {
    if (streaming) {
        stream_copy(target, source, bytes);
    } else {
        std::memcpy(target, source, bytes);
    }
}

}  // namespace

bool RingCopy::choose_streaming() const {
    if (plain_.value() == 0 || streaming_.value() == 0) return plain_.value() != 0;
    return plain_.value() > streaming_handicap * streaming_.value();
}

void RingCopy::copy(std::byte* target, const std::byte* source, size_t bytes) {
    bool streaming = choose_streaming();
    if (bytes < shortest_measured) return copy_by(streaming, target, source, bytes);
    const unsigned turn = copies_++ % (copies_between_samples * samples_between_trials);
    const bool sampled = turn % copies_between_samples == 0 || copies_ <= 4;
    if (turn == 0) streaming = !streaming;  // the other way may have become the better one
    if (!sampled) return copy_by(streaming, target, source, bytes);
    const auto start = Clock::now();
    copy_by(streaming, target, source, bytes);
    const std::chrono::duration<double, std::nano> took = Clock::now() - start;
    (streaming ? streaming_ : plain_).add(took.count() * 1024 / static_cast<double>(bytes));
}

}  // namespace pycomm
