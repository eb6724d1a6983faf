// Copies into memory that others read: every byte, and none beside, whatever the size and place.
#include <doctest/doctest.h>

#include <algorithm>
#include <vector>

#include "transport/mapped/ring_copy.h"
#include "transport/mapped/stream_copy.h"

namespace pycomm {
namespace {

constexpr auto sentinel = std::byte{0xA5};

std::vector<std::byte> numbered(size_t bytes) {
    std::vector<std::byte> data(bytes);
    for (size_t i = 0; i < bytes; ++i) data[i] = static_cast<std::byte>((i * 7 + i / 251) % 255);
    return data;
}

// Copies `bytes` bytes between places that are `to` and `from` past a line.
template <typename Copy>
bool right(Copy copy, size_t bytes, size_t to, size_t from) {
    const auto source = numbered(bytes + from + 64);
    std::vector<std::byte> target(bytes + to + 192, sentinel);
    auto* base = target.data() + (64 - reinterpret_cast<uintptr_t>(target.data()) % 64);
    copy(base + to, source.data() + from, bytes);
    stream_fence();
    return std::equal(base + to, base + to + bytes, source.data() + from) &&
           std::all_of(target.data(), base + to, [](std::byte b) { return b == sentinel; }) &&
           std::all_of(base + to + bytes, target.data() + target.size(),
                       [](std::byte b) { return b == sentinel; });
}

TEST_CASE("copies of all sizes and alignments") {
    RingCopy ring;
    const auto streamed = [](auto* t, auto* s, size_t n) { stream_copy(t, s, n); };
    const auto in_parts = [](auto* t, auto* s, size_t n) { stream_part(t, s, n); };
    const auto in_ring = [&](auto* t, auto* s, size_t n) { ring.copy(t, s, n); };
    for (const size_t bytes : {0, 1, 15, 63, 64, 65, 511, 2047, 2048, 2049, 5000, 16384, 100'003}) {
        for (const size_t to : {0, 1, 8, 16, 48}) {
            for (const size_t from : {0, 3, 16}) {
                CAPTURE(bytes);
                CAPTURE(to);
                CAPTURE(from);
                CHECK(right(streamed, bytes, to, from));
                CHECK(right(in_parts, bytes, to, from));
                CHECK(right(in_ring, bytes, to, from));
            }
        }
    }
}

TEST_CASE("a ring's copies stay right while it tries both ways") {
    RingCopy ring;
    for (int i = 0; i < 1000; ++i) {
        const size_t bytes = 2048 + static_cast<size_t>(i) * 13;
        CHECK(right([&](auto* t, auto* s, size_t n) { ring.copy(t, s, n); }, bytes, 0, 0));
    }
}

}  // namespace
}  // namespace pycomm
