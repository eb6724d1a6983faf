// Streaming stores with SSE2, which every x86-64 processor has; memcpy elsewhere.
#include "transport/mapped/stream_copy.h"

#include <cstdint>
#include <cstring>

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

namespace pycomm {
namespace {

// Below this the latency of streaming stores costs more than the lines' change of owner.
constexpr size_t shortest_stream = 2048;
[[maybe_unused]] constexpr size_t line = 64;

}  // namespace

void stream_part(std::byte* target, const std::byte* source, size_t bytes) {
#if defined(__SSE2__)
    if (reinterpret_cast<uintptr_t>(target) % sizeof(__m128i) == 0) {
        for (; bytes >= line; bytes -= line, target += line, source += line) {
            const auto* from = reinterpret_cast<const __m128i*>(source);
            auto* to = reinterpret_cast<__m128i*>(target);
            const __m128i first = _mm_loadu_si128(from);
            const __m128i second = _mm_loadu_si128(from + 1);
            const __m128i third = _mm_loadu_si128(from + 2);
            const __m128i fourth = _mm_loadu_si128(from + 3);
            _mm_stream_si128(to, first);
            _mm_stream_si128(to + 1, second);
            _mm_stream_si128(to + 2, third);
            _mm_stream_si128(to + 3, fourth);
        }
    }
#endif
    if (bytes > 0) std::memcpy(target, source, bytes);
}

void stream_fence() {
#if defined(__SSE2__)
    _mm_sfence();
#endif
}

void stream_copy(std::byte* target, const std::byte* source, size_t bytes) {
    if (bytes < shortest_stream) {
        std::memcpy(target, source, bytes);
        return;
    }
    stream_part(target, source, bytes);
    stream_fence();
}

}  // namespace pycomm
