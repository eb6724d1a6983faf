// The loops of one instruction set and the table of them; see kernel_vectors.h for how it is
// included.
#pragma once

#include "reduce/kernel_vectors.h"
#include "reduce/kernels.h"

namespace pycomm::PYCOMM_ISA {
namespace {

// ---- Ops. Partial is the op of the nodes below the root of a tree. ----

struct Sum {
    using Partial = Sum;
    template <class Format, class V>
    PYCOMM_INLINE V apply(V a, V b) {
        return a + b;
    }
};

// A sum whose root is divided.
struct Mean : Sum {};

struct Product {
    using Partial = Product;
    template <class Format, class V>
    PYCOMM_INLINE V apply(V a, V b) {
        return a * b;
    }
};

struct And {
    using Partial = And;
    template <class Format, class V>
    PYCOMM_INLINE V apply(V a, V b) {
        return a & b;
    }
};

struct Or {
    using Partial = Or;
    template <class Format, class V>
    PYCOMM_INLINE V apply(V a, V b) {
        return a | b;
    }
};

struct Xor {
    using Partial = Xor;
    template <class Format, class V>
    PYCOMM_INLINE V apply(V a, V b) {
        return a ^ b;
    }
};

template <class T>
using BitsOf = Vector<typename FloatTraits<T>::Bits>;

// The OR of the bits settles what is neither less nor greater: of equal numbers it is the number,
// of zeros it is -0 if one is, and of anything with a NaN it is a NaN.
template <class T>
PYCOMM_INLINE Vector<T> lesser(Vector<T> a, Vector<T> b) {
    const auto both = bits_as<Vector<T>>(bits_as<BitsOf<T>>(a) | bits_as<BitsOf<T>>(b));
    const auto not_less = b < a ? b : both;
    return a < b ? a : not_less;
}

template <class T>
PYCOMM_INLINE Vector<T> negated(Vector<T> value) {
    return bits_as<Vector<T>>(bits_as<BitsOf<T>>(value) ^ FloatTraits<T>::sign);
}

struct Min {
    using Partial = Min;
    template <class Format, class V>
    PYCOMM_INLINE V apply(V a, V b) {
        if constexpr (Format::is_float) {
            return lesser<typename Format::Lane>(a, b);
        } else {
            return a < b ? a : b;
        }
    }
};

struct Max {
    using Partial = Max;
    template <class Format, class V>
    PYCOMM_INLINE V apply(V a, V b) {
        if constexpr (Format::is_float) {
            using T = typename Format::Lane;
            return negated<T>(lesser<T>(negated<T>(a), negated<T>(b)));
        } else {
            return a > b ? a : b;
        }
    }
};

template <size_t... I>
struct Indices {};
template <size_t N, size_t... I>
struct IndicesTo : IndicesTo<N - 1, N - 1, I...> {};
template <size_t... I>
struct IndicesTo<0, I...> {
    using type = Indices<I...>;
};

#if defined(__clang__)
#define PYCOMM_SHUFFLE(T, vector, ...) __builtin_shufflevector(vector, vector, __VA_ARGS__)
#else
#define PYCOMM_SHUFFLE(T, vector, ...) __builtin_shuffle(vector, BitsOf<T>{__VA_ARGS__})
#endif

// Lanes alternate real and imaginary parts. (ac - bd) + (ad + bc)i, the plain formula: it gives NaN
// where Annex G of C99 would recover an infinity.
template <class T, size_t... I>
PYCOMM_INLINE Vector<T> complex_product(Vector<T> x, Vector<T> y, Indices<I...>) {
    const Vector<T> real_of_y = PYCOMM_SHUFFLE(T, y, (I & ~size_t{1})...);
    const Vector<T> imaginary_of_y = PYCOMM_SHUFFLE(T, y, (I | 1)...);
    const Vector<T> swapped_x = PYCOMM_SHUFFLE(T, x, (I ^ 1)...);
    const auto minus = BitsOf<T>{(I % 2 == 0 ? FloatTraits<T>::sign : 0)...};
    const Vector<T> crossed = swapped_x * imaginary_of_y;  // bd, ad
    return x * real_of_y + bits_as<Vector<T>>(bits_as<BitsOf<T>>(crossed) ^ minus);
}

struct ComplexProduct {
    using Partial = ComplexProduct;
    template <class Format, class V>
    PYCOMM_INLINE V apply(V x, V y) {
        using T = typename Format::Lane;
        return complex_product<T>(x, y, typename IndicesTo<sizeof(V) / sizeof(T)>::type{});
    }
};

// ---- Loops. ----

// The balanced tree over units [i, i + step) of sources [0, K).
template <class In, class Op, int K>
PYCOMM_INLINE typename In::Value tree(const std::byte* const* source, size_t i) {
    if constexpr (K == 1) {
        return In::load(source[0] + i * In::bytes);
    } else {
        constexpr int kLeft = K > 4 ? 4 : K > 2 ? 2 : 1;
        return Op::template apply<In>(tree<In, Op, kLeft>(source, i),
                                      tree<In, Op, K - kLeft>(source + kLeft, i));
    }
}

// A lone input that nothing is done to is converted only: its NaN stays as it is.
template <class In, class Out, class Op, int K>
void loop(void* out, const void* const* inputs, size_t n, [[maybe_unused]] double divisor) {
    static_assert(K <= kMaxInputs && In::step * Out::bytes <= kMaxStepBytes);
    constexpr bool kDivides = __is_same(Op, Mean);
    const std::byte* source[K];
    for (int k = 0; k < K; ++k) source[k] = static_cast<const std::byte*>(inputs[k]);
    auto* target = static_cast<std::byte*>(out);
    [[maybe_unused]] const auto by = static_cast<typename In::Lane>(divisor);
    for (size_t i = 0; i < n; i += In::step) {
        auto value = tree<In, Op, K>(source, i);
        if constexpr (kDivides) value = value / by;
        if constexpr (K > 1 || kDivides) {
            Out::store_result(target + i * Out::bytes, value);
        } else {
            Out::store(target + i * Out::bytes, value);
        }
    }
}

// ---- The table. ----

template <class Format, class Op>
constexpr OpKernels kernels_of(size_t units) {
    using Accumulator = typename Format::Accumulator;
    using Partial = typename Op::Partial;
    OpKernels kernels;
    kernels.units = static_cast<uint8_t>(units);
    kernels.unit_bytes = static_cast<uint8_t>(Format::bytes);
    kernels.accumulator_bytes = static_cast<uint8_t>(Accumulator::bytes);
    kernels.step = static_cast<uint8_t>(Format::step);
    if constexpr (!Format::copies_alone || __is_same(Op, Mean)) {
        kernels.direct[1] = loop<Format, Format, Op, 1>;
    }
    kernels.direct[2] = loop<Format, Format, Op, 2>;
    kernels.direct[3] = loop<Format, Format, Op, 3>;
    kernels.direct[4] = loop<Format, Format, Op, 4>;
    kernels.direct[5] = loop<Format, Format, Op, 5>;
    kernels.direct[6] = loop<Format, Format, Op, 6>;
    kernels.direct[7] = loop<Format, Format, Op, 7>;
    kernels.direct[8] = loop<Format, Format, Op, 8>;
    if constexpr (!__is_same(Format, Accumulator)) {
        kernels.leaf[1] = loop<Format, Accumulator, Partial, 1>;
    }
    kernels.leaf[2] = loop<Format, Accumulator, Partial, 2>;
    kernels.leaf[3] = loop<Format, Accumulator, Partial, 3>;
    kernels.leaf[4] = loop<Format, Accumulator, Partial, 4>;
    kernels.leaf[5] = loop<Format, Accumulator, Partial, 5>;
    kernels.leaf[6] = loop<Format, Accumulator, Partial, 6>;
    kernels.leaf[7] = loop<Format, Accumulator, Partial, 7>;
    kernels.leaf[8] = loop<Format, Accumulator, Partial, 8>;
    kernels.combine = loop<Accumulator, Accumulator, Partial, 2>;
    kernels.finish = loop<Accumulator, Format, Op, 2>;
    return kernels;
}

constexpr int at(DataType type) {
    return static_cast<int>(type);
}
constexpr int at(ReduceOp op) {
    return static_cast<int>(op);
}

template <class Format>
constexpr void fill_float(OpKernels* ops) {
    ops[at(ReduceOp::sum)] = kernels_of<Format, Sum>(1);
    ops[at(ReduceOp::avg)] = kernels_of<Format, Mean>(1);
    ops[at(ReduceOp::prod)] = kernels_of<Format, Product>(1);
    ops[at(ReduceOp::min)] = kernels_of<Format, Min>(1);
    ops[at(ReduceOp::max)] = kernels_of<Format, Max>(1);
}

template <class T>
constexpr void fill_complex(OpKernels* ops) {
    ops[at(ReduceOp::sum)] = kernels_of<Real<T>, Sum>(2);
    ops[at(ReduceOp::avg)] = kernels_of<Real<T>, Mean>(2);
    ops[at(ReduceOp::prod)] = kernels_of<Real<T>, ComplexProduct>(2);
}

// Signed integers are added and multiplied as unsigned ones, which wrap.
template <class T, class Unsigned>
constexpr void fill_integer(OpKernels* ops) {
    ops[at(ReduceOp::sum)] = kernels_of<Integer<Unsigned>, Sum>(1);
    ops[at(ReduceOp::prod)] = kernels_of<Integer<Unsigned>, Product>(1);
    ops[at(ReduceOp::min)] = kernels_of<Integer<T>, Min>(1);
    ops[at(ReduceOp::max)] = kernels_of<Integer<T>, Max>(1);
    ops[at(ReduceOp::band)] = kernels_of<Integer<uint8_t>, And>(sizeof(T));
    ops[at(ReduceOp::bor)] = kernels_of<Integer<uint8_t>, Or>(sizeof(T));
    ops[at(ReduceOp::bxor)] = kernels_of<Integer<uint8_t>, Xor>(sizeof(T));
}

constexpr void fill_boolean(OpKernels* ops) {
    ops[at(ReduceOp::sum)] = kernels_of<Boolean, Or>(1);
    ops[at(ReduceOp::prod)] = kernels_of<Boolean, And>(1);
    ops[at(ReduceOp::min)] = kernels_of<Boolean, And>(1);
    ops[at(ReduceOp::max)] = kernels_of<Boolean, Or>(1);
    ops[at(ReduceOp::band)] = kernels_of<Boolean, And>(1);
    ops[at(ReduceOp::bor)] = kernels_of<Boolean, Or>(1);
    ops[at(ReduceOp::bxor)] = kernels_of<Boolean, Xor>(1);
}

constexpr KernelTable make_table(const char* name) {
    KernelTable table{};
    table.name = name;
    fill_boolean(table.ops[at(DataType::boolean)]);
    fill_integer<int8_t, uint8_t>(table.ops[at(DataType::int8)]);
    fill_integer<int16_t, uint16_t>(table.ops[at(DataType::int16)]);
    fill_integer<int32_t, uint32_t>(table.ops[at(DataType::int32)]);
    fill_integer<int64_t, uint64_t>(table.ops[at(DataType::int64)]);
    fill_integer<uint8_t, uint8_t>(table.ops[at(DataType::uint8)]);
    fill_integer<uint16_t, uint16_t>(table.ops[at(DataType::uint16)]);
    fill_integer<uint32_t, uint32_t>(table.ops[at(DataType::uint32)]);
    fill_integer<uint64_t, uint64_t>(table.ops[at(DataType::uint64)]);
    fill_float<Float16>(table.ops[at(DataType::float16)]);
    fill_float<Bfloat16>(table.ops[at(DataType::bfloat16)]);
    fill_float<Real<float>>(table.ops[at(DataType::float32)]);
    fill_float<Real<double>>(table.ops[at(DataType::float64)]);
    fill_complex<float>(table.ops[at(DataType::complex64)]);
    fill_complex<double>(table.ops[at(DataType::complex128)]);
    table.widen[0] = loop<Float16, Real<float>, Sum, 1>;
    table.widen[1] = loop<Bfloat16, Real<float>, Sum, 1>;
    table.narrow[0] = loop<Real<float>, Float16, Sum, 1>;
    table.narrow[1] = loop<Real<float>, Bfloat16, Sum, 1>;
    table.half_step = Float16::step;
    return table;
}

}  // namespace
}  // namespace pycomm::PYCOMM_ISA
