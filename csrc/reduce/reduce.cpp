// Reduction of buffers: drives the bare loops of a kernel table over tails, blocks and trees.
#include "reduce/reduce.h"

#include <bit>
#include <cstring>

#include "base/env.h"
#include "base/error.h"
#include "reduce/kernels.h"

namespace pycomm {
namespace {

// One row of accumulators. The rows of a tree and the parts of the inputs that go into
// them share the first-level cache.
constexpr size_t kRowBytes = 4096;

// A loop with the sizes of its units; runs over any number of units.
struct Pass {
    KernelLoop loop;
    int inputs;
    size_t in_bytes;
    size_t out_bytes;
    size_t step;
    double divisor;

    void run(void* out, const void* const* in, size_t n) const {
        const size_t rest = n & (step - 1);  // a step is a power of two
        if (n != rest) loop(out, in, n - rest, divisor);
        if (rest != 0) run_rest(out, in, n - rest, rest);
    }

  private:
    // The last units, less than a step, go through the same loop in padded copies.
    void run_rest(void* out, const void* const* in, size_t first, size_t rest) const {
        alignas(kMaxStepBytes) std::byte padded_in[kMaxInputs][kMaxStepBytes];
        alignas(kMaxStepBytes) std::byte padded_out[kMaxStepBytes];
        const void* padded[kMaxInputs];
        for (int k = 0; k < inputs; ++k) {
            std::memset(padded_in[k], 0, kMaxStepBytes);
            copy_rest(padded_in[k], static_cast<const std::byte*>(in[k]) + first * in_bytes,
                      rest * in_bytes);
            padded[k] = padded_in[k];
        }
        loop(padded_out, padded, step, divisor);
        copy_rest(static_cast<std::byte*>(out) + first * out_bytes, padded_out, rest * out_bytes);
    }

    // Fewer than kMaxStepBytes, in pieces whose sizes the compiler knows: small messages feel a
    // call of memcpy.
    static void copy_rest(std::byte* to, const std::byte* from, size_t bytes) {
        copy_piece<32>(to, from, bytes);
        copy_piece<16>(to, from, bytes);
        copy_piece<8>(to, from, bytes);
        copy_piece<4>(to, from, bytes);
        copy_piece<2>(to, from, bytes);
        copy_piece<1>(to, from, bytes);
    }
    template <size_t Size>
    static void copy_piece(std::byte*& to, const std::byte*& from, size_t bytes) {
        static_assert(2 * Size <= kMaxStepBytes);
        if ((bytes & Size) == 0) return;
        std::memcpy(to, from, Size);
        to += Size;
        from += Size;
    }
};

// Evaluates the balanced tree over more inputs than one loop takes, one row of units at a time.
class Tree {
  public:
    Tree(const OpKernels& kernels, const void* const* inputs, double divisor)
        : kernels_(kernels), inputs_(inputs), divisor_(divisor) {}

    void run(std::byte* out, int sources, size_t n) const {
        const size_t row = kRowBytes / kernels_.accumulator_bytes;
        const int left = left_part(sources);
        const Pass finish = accumulator_pass(kernels_.finish, kernels_.unit_bytes);
        alignas(64) std::byte left_row[kRowBytes];
        alignas(64) std::byte right_row[kRowBytes];
        for (size_t first = 0; first < n; first += row) {
            const size_t length = n - first < row ? n - first : row;
            const void* const parts[] = {partial(0, left, first, length, left_row),
                                         partial(left, sources - left, first, length, right_row)};
            finish.run(out + first * kernels_.unit_bytes, parts, length);
        }
    }

  private:
    static int left_part(int sources) {
        return static_cast<int>(std::bit_floor(static_cast<unsigned>(sources - 1)));
    }

    Pass accumulator_pass(KernelLoop loop, size_t out_bytes) const {
        return {loop, 2, kernels_.accumulator_bytes, out_bytes, kernels_.step, divisor_};
    }

    // The accumulators of inputs [begin, begin + sources): in `row`, or the input itself when it is
    // alone and needs no conversion.
    const void* partial(int begin, int sources, size_t first, size_t n, std::byte* row) const {
        if (sources <= kMaxInputs) return leaf(begin, sources, first, n, row);
        alignas(64) std::byte right_row[kRowBytes];
        const int left = left_part(sources);
        const void* const parts[] = {partial(begin, left, first, n, row),
                                     partial(begin + left, sources - left, first, n, right_row)};
        accumulator_pass(kernels_.combine, kernels_.accumulator_bytes).run(row, parts, n);
        return row;
    }

    const void* leaf(int begin, int sources, size_t first, size_t n, std::byte* row) const {
        const void* in[kMaxInputs];
        for (int k = 0; k < sources; ++k) {
            in[k] = static_cast<const std::byte*>(inputs_[begin + k]) + first * kernels_.unit_bytes;
        }
        const KernelLoop loop = kernels_.leaf[sources];
        if (loop == nullptr) return in[0];
        const Pass pass{loop,          sources, kernels_.unit_bytes, kernels_.accumulator_bytes,
                        kernels_.step, divisor_};
        pass.run(row, in, n);
        return row;
    }

    const OpKernels& kernels_;
    const void* const* inputs_;
    double divisor_;
};

const OpKernels& kernels_for(const KernelTable& table, DataType type, ReduceOp op) {
    check_op(op, type);
    PYCOMM_CHECK(op != ReduceOp::none, argument, "a reduction needs an op, this one has none");
    return table.ops[static_cast<int>(type)][static_cast<int>(op)];
}

int half_index(DataType type) {
    PYCOMM_CHECK(is_half(type), argument, "expected float16 or bfloat16, not ", dtype_name(type));
    return type == DataType::float16 ? 0 : 1;
}

const KernelTable& chosen_kernels() {
    static const KernelTable& table = select_kernels(read_env().simd, usable_kernels());
    return table;
}

}  // namespace

void reduce_with(const KernelTable& table, void* out, const void* const* inputs, int sources,
                 size_t count, DataType type, ReduceOp op, int64_t divisor) {
    const OpKernels& kernels = kernels_for(table, type, op);
    PYCOMM_CHECK(sources >= 1, argument, "a reduction needs inputs, this one has ", sources);
    PYCOMM_CHECK(op != ReduceOp::avg || divisor >= 1, argument, "avg divides by ", divisor,
                 "; expected 1 or more");
    if (count == 0) return;
    const size_t n = count * kernels.units;
    const auto by = static_cast<double>(divisor);
    if (sources > kMaxInputs) {
        Tree(kernels, inputs, by).run(static_cast<std::byte*>(out), sources, n);
    } else if (kernels.direct[sources] == nullptr) {
        if (out != inputs[0]) std::memcpy(out, inputs[0], n * kernels.unit_bytes);
    } else {
        const Pass pass{kernels.direct[sources], sources,      kernels.unit_bytes,
                        kernels.unit_bytes,      kernels.step, by};
        pass.run(out, inputs, n);
    }
}

void divide_with(const KernelTable& table, void* data, size_t count, DataType type,
                 int64_t divisor) {
    const void* const inputs[] = {data};
    reduce_with(table, data, inputs, 1, count, type, ReduceOp::avg, divisor);
}

void widen_with(const KernelTable& table, float* out, const void* in, size_t count,
                DataType half_type) {
    const void* const inputs[] = {in};
    const Pass pass{table.widen[half_index(half_type)], 1, 2, 4, table.half_step, 1};
    pass.run(out, inputs, count);
}

void narrow_with(const KernelTable& table, void* out, const float* in, size_t count,
                 DataType half_type) {
    const void* const inputs[] = {in};
    const Pass pass{table.narrow[half_index(half_type)], 1, 4, 2, table.half_step, 1};
    pass.run(out, inputs, count);
}

void reduce(void* out, const void* const* inputs, int sources, size_t count, DataType type,
            ReduceOp op, int64_t divisor) {
    reduce_with(chosen_kernels(), out, inputs, sources, count, type, op, divisor);
}

void divide(void* data, size_t count, DataType type, int64_t divisor) {
    divide_with(chosen_kernels(), data, count, type, divisor);
}

void widen(float* out, const void* in, size_t count, DataType half_type) {
    widen_with(chosen_kernels(), out, in, count, half_type);
}

void narrow(void* out, const float* in, size_t count, DataType half_type) {
    narrow_with(chosen_kernels(), out, in, count, half_type);
}

const char* reduce_kernel_name() {
    return chosen_kernels().name;
}

}  // namespace pycomm
