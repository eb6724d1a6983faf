// Plain scalar arithmetic that the reduction kernels are compared with, bit by bit.
#pragma once

#include <cmath>
#include <complex>
#include <cstdint>
#include <cstring>
#include <limits>
#include <random>
#include <type_traits>
#include <vector>

#include "base/types.h"

namespace reference {

using pycomm::DataType;
using pycomm::ReduceOp;
using Bytes = std::vector<unsigned char>;

template <class To, class From>
To bits_as(From value) {
    static_assert(sizeof(To) == sizeof(From));
    To result;
    std::memcpy(&result, &value, sizeof result);
    return result;
}

// ---- 16-bit floats: one sign bit, `Exponent` bits, the rest fraction. ----

template <int Exponent>
struct HalfFormat {
    static constexpr int fraction_bits = 15 - Exponent;
    static constexpr int bias = (1 << (Exponent - 1)) - 1;
    static constexpr int top = (1 << Exponent) - 1;

    static float decode(uint16_t half) {
        const int exponent = (half >> fraction_bits) & top;
        const int fraction = half & ((1 << fraction_bits) - 1);
        const float sign = (half & 0x8000) != 0 ? -1.0f : 1.0f;
        if (exponent == top) {
            return fraction != 0 ? std::numeric_limits<float>::quiet_NaN()
                                 : sign * std::numeric_limits<float>::infinity();
        }
        const int significand = exponent == 0 ? fraction : fraction | (1 << fraction_bits);
        const int power = (exponent == 0 ? 1 : exponent) - bias - fraction_bits;
        return sign * static_cast<float>(std::ldexp(significand, power));
    }

    // A NaN becomes the quiet NaN without payload.
    static uint16_t encode(float value) {
        const uint16_t sign = std::signbit(value) ? 0x8000 : 0;
        const auto infinity = static_cast<uint16_t>(top << fraction_bits);
        if (std::isnan(value)) {
            return static_cast<uint16_t>(infinity | (1 << (fraction_bits - 1)));
        }
        if (std::isinf(value)) return static_cast<uint16_t>(sign | infinity);
        if (value == 0) return sign;
        const double magnitude = std::fabs(static_cast<double>(value));
        const int power = std::max(std::ilogb(magnitude), 1 - bias) - fraction_bits;
        // Ties to even. 2 * 2^fraction_bits carries into the exponent by itself.
        const auto steps = static_cast<long>(std::nearbyint(std::ldexp(magnitude, -power)));
        const long exponent = power + fraction_bits + bias;  // 1 also for subnormal numbers
        const long bits = steps + ((exponent - 1) << fraction_bits);
        return static_cast<uint16_t>(sign | (bits < infinity ? bits : infinity));
    }
};
using Float16 = HalfFormat<5>;
using Bfloat16 = HalfFormat<8>;

// ---- One element type: Stored in memory, Value in the tree. ----

struct Bool {
    using Stored = uint8_t;
    using Value = bool;
    static Value load(Stored stored) { return stored != 0; }
    static Stored store(Value value) { return value ? 1 : 0; }
};
template <class T>
struct Same {
    using Stored = T;
    using Value = T;
    static Value load(Stored stored) { return stored; }
    static Stored store(Value value) { return value; }
};
template <class Format>
struct Half {
    using Stored = uint16_t;
    using Value = float;
    static Value load(Stored stored) { return Format::decode(stored); }
    static Stored store(Value value) { return Format::encode(value); }
};

template <class T>
T quiet(T value) {
    return std::isnan(value) ? std::numeric_limits<T>::quiet_NaN() : value;
}

inline bool apply(ReduceOp op, bool a, bool b) {
    if (op == ReduceOp::bxor) return a != b;
    const bool any = op == ReduceOp::sum || op == ReduceOp::max || op == ReduceOp::bor;
    return any ? a || b : a && b;
}

template <class T>
std::enable_if_t<std::is_integral_v<T>, T> apply(ReduceOp op, T a, T b) {
    switch (op) {
        case ReduceOp::sum:
            return static_cast<T>(static_cast<uint64_t>(a) + static_cast<uint64_t>(b));
        case ReduceOp::prod:
            return static_cast<T>(static_cast<uint64_t>(a) * static_cast<uint64_t>(b));
        case ReduceOp::min:
            return std::min(a, b);
        case ReduceOp::max:
            return std::max(a, b);
        case ReduceOp::band:
            return static_cast<T>(a & b);
        case ReduceOp::bor:
            return static_cast<T>(a | b);
        default:
            return static_cast<T>(a ^ b);
    }
}

// The volatile intermediate keeps a compiler from fusing a product into a sum.
template <class T>
std::enable_if_t<std::is_floating_point_v<T>, T> apply(ReduceOp op, T a, T b) {
    volatile T result;
    if (op == ReduceOp::sum || op == ReduceOp::avg) {
        result = a + b;
    } else if (op == ReduceOp::prod) {
        result = a * b;
    } else if (std::isnan(a) || std::isnan(b)) {
        result = std::numeric_limits<T>::quiet_NaN();
    } else if (a == b) {
        const bool first = (op == ReduceOp::min) == std::signbit(a);
        result = first ? a : b;
    } else {
        result = (op == ReduceOp::min) == (a < b) ? a : b;
    }
    return quiet<T>(result);
}

template <class T>
std::complex<T> apply(ReduceOp op, std::complex<T> a, std::complex<T> b) {
    const auto sum = [](T x, T y) { return apply(ReduceOp::sum, x, y); };
    const auto product = [](T x, T y) { return apply(ReduceOp::prod, x, y); };
    if (op != ReduceOp::prod) return {sum(a.real(), b.real()), sum(a.imag(), b.imag())};
    return {sum(product(a.real(), b.real()), -product(a.imag(), b.imag())),
            sum(product(a.real(), b.imag()), product(a.imag(), b.real()))};
}

template <class T>
T divided(T value, int64_t divisor) {
    if constexpr (std::is_floating_point_v<T>) {
        return quiet<T>(value / static_cast<T>(divisor));
    } else {
        (void)divisor;
        return value;
    }
}
template <class T>
std::complex<T> divided(std::complex<T> value, int64_t divisor) {
    return {divided(value.real(), divisor), divided(value.imag(), divisor)};
}

// ((0 op 1) op (2 op 3)) op ...: the left part has the largest power of two below the whole.
template <class Value>
Value tree(ReduceOp op, const Value* values, size_t n) {
    if (n == 1) return values[0];
    size_t left = 1;
    while (2 * left < n) left *= 2;
    return apply(op, tree(op, values, left), tree(op, values + left, n - left));
}

template <class Element>
void reduce_as(void* out, const void* const* inputs, size_t sources, size_t count, ReduceOp op,
               int64_t divisor) {
    using Stored = typename Element::Stored;
    using Value = typename Element::Value;
    const auto stored = [&](size_t k, size_t i) {
        Stored value;
        std::memcpy(&value, static_cast<const unsigned char*>(inputs[k]) + i * sizeof value,
                    sizeof value);
        return value;
    };
    Value values[1024];
    for (size_t i = 0; i < count; ++i) {
        for (size_t k = 0; k < sources; ++k) values[k] = Element::load(stored(k, i));
        Value value = tree(op, values, sources);
        if (op == ReduceOp::avg) value = divided(value, divisor);
        const bool copied = sources == 1 && op != ReduceOp::avg && !std::is_same_v<Element, Bool>;
        const Stored result = copied ? stored(0, i) : Element::store(value);
        std::memcpy(static_cast<unsigned char*>(out) + i * sizeof result, &result, sizeof result);
    }
}

inline void reduce(void* out, const void* const* inputs, size_t sources, size_t count,
                   DataType type, ReduceOp op, int64_t divisor) {
    const auto run = [&](auto element) {
        reduce_as<decltype(element)>(out, inputs, sources, count, op, divisor);
    };
    switch (type) {
        case DataType::boolean:
            return run(Bool{});
        case DataType::int8:
            return run(Same<int8_t>{});
        case DataType::int16:
            return run(Same<int16_t>{});
        case DataType::int32:
            return run(Same<int32_t>{});
        case DataType::int64:
            return run(Same<int64_t>{});
        case DataType::uint8:
            return run(Same<uint8_t>{});
        case DataType::uint16:
            return run(Same<uint16_t>{});
        case DataType::uint32:
            return run(Same<uint32_t>{});
        case DataType::uint64:
            return run(Same<uint64_t>{});
        case DataType::float16:
            return run(Half<Float16>{});
        case DataType::bfloat16:
            return run(Half<Bfloat16>{});
        case DataType::float32:
            return run(Same<float>{});
        case DataType::float64:
            return run(Same<double>{});
        case DataType::complex64:
            return run(Same<std::complex<float>>{});
        case DataType::complex128:
            return run(Same<std::complex<double>>{});
    }
}

// ---- Data: half of it near 1, so that sums and products stay finite, half of it any bits. ----

inline void fill(void* data, size_t count, DataType type, uint32_t seed) {
    std::mt19937 random(seed);
    auto* bytes = static_cast<unsigned char*>(data);
    const size_t size = pycomm::dtype_size(type);
    for (size_t i = 0; i < count * size; ++i) bytes[i] = static_cast<unsigned char>(random());
    std::uniform_real_distribution<double> near_one(-1.5, 1.5);
    const auto each_second = [&](auto convert) {
        using T = decltype(convert(0.0));
        for (size_t i = 0; i < count * size / sizeof(T); ++i) {
            const T value = convert(near_one(random));
            if ((random() & 1) != 0) std::memcpy(bytes + i * sizeof(T), &value, sizeof(T));
        }
    };
    switch (type) {
        case DataType::boolean:
            return each_second([](double value) { return uint8_t{value > 0}; });
        case DataType::float16:
            return each_second([](double value) { return Float16::encode(value); });
        case DataType::bfloat16:
            return each_second([](double value) { return Bfloat16::encode(value); });
        case DataType::float32:
        case DataType::complex64:
            return each_second([](double value) { return static_cast<float>(value); });
        case DataType::float64:
        case DataType::complex128:
            return each_second([](double value) { return value; });
        default:
            return;
    }
}

inline std::vector<DataType> all_types() {
    return {
#define PYCOMM_TYPE(name, text, bytes) DataType::name,
        PYCOMM_DTYPE_LIST(PYCOMM_TYPE)
#undef PYCOMM_TYPE
    };
}

}  // namespace reference
