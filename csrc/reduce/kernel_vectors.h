// Vectors of one instruction set, and the formats in which elements lie in memory.
//
// Included by one kernels_<isa>.cpp per instruction set, after PYCOMM_ISA (a namespace) and
// PYCOMM_VECTOR_BYTES are defined. Everything here has internal linkage and calls no inline
// function of another header: the linker keeps one copy of such a function, and the copy compiled
// for AVX-512 would then run on processors without it.
//
// The operators of compiler vectors are used rather than loops left to the auto-vectoriser, so that
// the code is fast for any out/in aliasing; intrinsics appear only where no operator exists.
#pragma once

#include <cstddef>
#include <cstdint>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#define PYCOMM_INLINE [[gnu::always_inline]] static inline

namespace pycomm::PYCOMM_ISA {
namespace {

constexpr size_t kVectorBytes = PYCOMM_VECTOR_BYTES;

template <class T, size_t Bytes = kVectorBytes>
struct VectorOf {
    typedef T type __attribute__((vector_size(Bytes)));
};
template <class T, size_t Bytes = kVectorBytes>
using Vector = typename VectorOf<T, Bytes>::type;

using Floats = Vector<float>;
using Words = Vector<uint32_t>;  // the bits of Floats
using SignedWords = Vector<int32_t>;
using Halves = Vector<uint16_t, kVectorBytes / 2>;  // as many 16-bit floats as Floats has lanes

template <class V>
PYCOMM_INLINE V load_vector(const void* from) {
    V value;
    __builtin_memcpy(&value, from, sizeof value);
    return value;
}

template <class V>
PYCOMM_INLINE void store_vector(void* to, V value) {
    __builtin_memcpy(to, &value, sizeof value);
}

// The same bits as another type of vector.
template <class To, class From>
PYCOMM_INLINE To bits_as(From value) {
    static_assert(sizeof(To) == sizeof(From));
    return (To)value;
}

template <class T>
struct FloatTraits;
template <>
struct FloatTraits<float> {
    using Bits = uint32_t;
    static constexpr Bits sign = 0x80000000u;
    static constexpr Bits quiet_nan = 0x7fc00000u;
};
template <>
struct FloatTraits<double> {
    using Bits = uint64_t;
    static constexpr Bits sign = 0x8000000000000000u;
    static constexpr Bits quiet_nan = 0x7ff8000000000000u;
};

template <class V, class T>
PYCOMM_INLINE V filled(T value) {
    return V{} + value;
}

// The sign and payload that a NaN gets from an addition depend on the order of the operands, which
// a compiler may swap. One NaN for all makes results equal whatever the kernel.
template <class T>
PYCOMM_INLINE Vector<T> one_nan(Vector<T> value) {
    using Bits = Vector<typename FloatTraits<T>::Bits>;
    const auto nan = bits_as<Vector<T>>(filled<Bits>(FloatTraits<T>::quiet_nan));
    return value == value ? value : nan;
}

// ---- Formats: how a unit lies in memory (load, store) and what the arithmetic sees (Value). ----
// `store` keeps what it is given; `store_result` also settles the NaN of a computed value.

template <class T>
struct Integer {
    using Lane = T;
    using Value = Vector<T>;
    using Accumulator = Integer<T>;
    static constexpr size_t bytes = sizeof(T);
    static constexpr size_t step = kVectorBytes / sizeof(T);
    static constexpr bool is_float = false;
    static constexpr bool copies_alone = true;
    PYCOMM_INLINE Value load(const std::byte* from) { return load_vector<Value>(from); }
    PYCOMM_INLINE void store(std::byte* to, Value value) { store_vector(to, value); }
    PYCOMM_INLINE void store_result(std::byte* to, Value value) { store(to, value); }
};

// A bool is seen as a mask, 0 or ~0, and stored as 0 or 1; any other byte read is true.
struct Boolean {
    using Lane = uint8_t;
    using Value = Vector<uint8_t>;
    using Accumulator = Boolean;
    static constexpr size_t bytes = 1;
    static constexpr size_t step = kVectorBytes;
    static constexpr bool is_float = false;
    static constexpr bool copies_alone = false;
    PYCOMM_INLINE Value load(const std::byte* from) {
        return bits_as<Value>(load_vector<Value>(from) != Value{});
    }
    PYCOMM_INLINE void store(std::byte* to, Value value) { store_vector(to, value & uint8_t{1}); }
    PYCOMM_INLINE void store_result(std::byte* to, Value value) { store(to, value); }
};

template <class T>
struct Real {
    using Lane = T;
    using Value = Vector<T>;
    using Accumulator = Real<T>;
    static constexpr size_t bytes = sizeof(T);
    static constexpr size_t step = kVectorBytes / sizeof(T);
    static constexpr bool is_float = true;
    static constexpr bool copies_alone = true;
    PYCOMM_INLINE Value load(const std::byte* from) { return load_vector<Value>(from); }
    PYCOMM_INLINE void store(std::byte* to, Value value) { store_vector(to, value); }
    PYCOMM_INLINE void store_result(std::byte* to, Value value) { store(to, one_nan<T>(value)); }
};

// Between 16 and 32 bits a lane; the high half of a lane to shorten must be 0. (The unmasked forms
// of AVX-512 intrinsics make g++ 12 warn of an uninitialised variable in its own header.)
#if defined(__AVX512F__)
constexpr __mmask16 kAllLanes = 0xffff;
PYCOMM_INLINE Words extend(Halves value) {
    return bits_as<Words>(_mm512_maskz_cvtepu16_epi32(kAllLanes, bits_as<__m256i>(value)));
}
PYCOMM_INLINE Halves shorten(Words value) {
    return bits_as<Halves>(_mm512_maskz_cvtepi32_epi16(kAllLanes, bits_as<__m512i>(value)));
}
#elif defined(__AVX2__)
PYCOMM_INLINE Words extend(Halves value) {
    return bits_as<Words>(_mm256_cvtepu16_epi32(bits_as<__m128i>(value)));
}
PYCOMM_INLINE Halves shorten(Words value) {
    const auto wide = bits_as<__m256i>(value);
    return bits_as<Halves>(
        _mm_packus_epi32(_mm256_castsi256_si128(wide), _mm256_extracti128_si256(wide, 1)));
}
#elif defined(__SSE2__)
PYCOMM_INLINE Words extend(Halves value) {
    const __m128i low = _mm_cvtsi64_si128(bits_as<int64_t>(value));
    return bits_as<Words>(_mm_unpacklo_epi16(low, _mm_setzero_si128()));
}
// SSE2 packs with signed saturation: the sign is spread first, so that nothing saturates.
PYCOMM_INLINE Halves shorten(Words value) {
    const __m128i spread = _mm_srai_epi32(_mm_slli_epi32(bits_as<__m128i>(value), 16), 16);
    return bits_as<Halves>(_mm_cvtsi128_si64(_mm_packs_epi32(spread, spread)));
}
#else
PYCOMM_INLINE Words extend(Halves value) {
    return __builtin_convertvector(value, Words);
}
PYCOMM_INLINE Halves shorten(Words value) {
    return __builtin_convertvector(value, Halves);
}
#endif

struct Bfloat16 {
    using Lane = float;
    using Value = Floats;
    using Accumulator = Real<float>;
    static constexpr size_t bytes = 2;
    static constexpr size_t step = kVectorBytes / 4;
    static constexpr bool is_float = true;
    static constexpr bool copies_alone = true;
    PYCOMM_INLINE Value load(const std::byte* from) {
        return bits_as<Floats>(extend(load_vector<Halves>(from)) << 16);
    }
    PYCOMM_INLINE void store(std::byte* to, Value value) {
        store_bits(to, value, bits_as<Words>(value) | 0x400000u);
    }
    PYCOMM_INLINE void store_result(std::byte* to, Value value) {
        store_bits(to, value, filled<Words>(FloatTraits<float>::quiet_nan));
    }

  private:
    PYCOMM_INLINE void store_bits(std::byte* to, Value value, Words nan) {
        const Words bits = bits_as<Words>(value);
        const Words rounded = bits + 0x7fffu + ((bits >> 16) & 1u);
        store_vector(to, shorten((value == value ? rounded : nan) >> 16));
    }
};

struct Float16 {
    using Lane = float;
    using Value = Floats;
    using Accumulator = Real<float>;
    static constexpr size_t bytes = 2;
    static constexpr size_t step = kVectorBytes / 4;
    static constexpr bool is_float = true;
    static constexpr bool copies_alone = true;

#if defined(__AVX512F__)
    PYCOMM_INLINE Value load(const std::byte* from) {
        return bits_as<Value>(_mm512_maskz_cvtph_ps(kAllLanes, load_vector<__m256i>(from)));
    }
    PYCOMM_INLINE void store(std::byte* to, Value value) {
        store_vector(to, _mm512_maskz_cvtps_ph(kAllLanes, bits_as<__m512>(value),
                                               _MM_FROUND_TO_NEAREST_INT));
    }
#elif defined(__F16C__)
    PYCOMM_INLINE Value load(const std::byte* from) {
        return bits_as<Value>(_mm256_cvtph_ps(load_vector<__m128i>(from)));
    }
    PYCOMM_INLINE void store(std::byte* to, Value value) {
        store_vector(to, _mm256_cvtps_ph(bits_as<__m256>(value), _MM_FROUND_TO_NEAREST_INT));
    }
#else
    // The exponent moves from bias 15 to 127. A subnormal gets its exponent from a subtraction that
    // is exact: (2^-14 + fraction) - 2^-14. Signed comparisons, because SSE2 has no others.
    PYCOMM_INLINE Value load(const std::byte* from) {
        const Words half = extend(load_vector<Halves>(from));
        const Words magnitude = (half & 0x7fffu) << 13;
        const Words least = filled<Words>(113u << 23);
        const Words subnormal =
            bits_as<Words>(bits_as<Floats>(magnitude + least) - bits_as<Floats>(least));
        const Words quiet = bits_as<Words>(bits_as<SignedWords>(magnitude) > 31 << 23) & 0x400000u;
        const auto exponent = bits_as<SignedWords>(magnitude);
        Words bits = magnitude + (112u << 23);
        bits = exponent >= 31 << 23 ? (magnitude + (224u << 23)) | quiet : bits;
        bits = exponent < 1 << 23 ? subnormal : bits;
        return bits_as<Floats>(bits | (half & 0x8000u) << 16);
    }
    // Adding 0.5 rounds to the spacing of subnormals, 2^-24.
    PYCOMM_INLINE void store(std::byte* to, Value value) {
        const Words bits = bits_as<Words>(value);
        const Words magnitude = bits & 0x7fffffffu;
        const auto ordered = bits_as<SignedWords>(magnitude);
        const Words odd = (magnitude >> 13) & 1u;
        const Words subnormal = bits_as<Words>(bits_as<Floats>(magnitude) + 0.5f) - 0x3f000000u;
        Words half = (magnitude + 0xfffu + odd - (112u << 23)) >> 13;
        half = ordered < 113 << 23 ? subnormal : half;
        half = ordered >= 143 << 23 ? filled<Words>(0x7c00u) : half;
        half = ordered > 255 << 23 ? ((magnitude >> 13) & 0x3ffu) | 0x7e00u : half;
        store_vector(to, shorten(half | ((bits >> 16) & 0x8000u)));
    }
#endif
    PYCOMM_INLINE void store_result(std::byte* to, Value value) {
        store(to, one_nan<float>(value));
    }
};

}  // namespace
}  // namespace pycomm::PYCOMM_ISA
