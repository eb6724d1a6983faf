// The tables of reduction loops, one table per instruction set, and the choice among them.
//
// A table holds bare loops over whole vectors; the driver in reduce.cpp adds tails, blocks and the
// tree over many inputs. Loops of different instruction sets give bitwise the same results.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "base/types.h"

namespace pycomm {

constexpr int kDtypes = static_cast<int>(DataType::complex128) + 1;
constexpr int kOps = static_cast<int>(ReduceOp::none);

constexpr int kMaxInputs = 8;  // of one loop
// No loop reads or writes more than this many bytes of one buffer in one iteration.
constexpr size_t kMaxStepBytes = 64;

// Combines n elements (a multiple of the step) of each input. `out` may be one of the inputs.
using KernelLoop = void (*)(void* out, const void* const* inputs, size_t n, double divisor);

// One op on one dtype. Loops count units, so that dtypes can share them: a complex number is two
// units, the elements of a bitwise operation are as many units as they have bytes.
struct OpKernels {
    uint8_t units = 0;              // per element of the dtype; 0 when the op is not defined
    uint8_t unit_bytes = 0;         // of a unit in the buffers of the caller
    uint8_t accumulator_bytes = 0;  // of a unit between the nodes of a tree (4 for 16-bit floats)
    uint8_t step = 0;               // units per iteration of each of these loops
    KernelLoop direct[kMaxInputs + 1] =
        {};  // [k]: k inputs to output; [1] is null when that is a copy
    KernelLoop leaf[kMaxInputs + 1] = {};  // [k]: k inputs to accumulators; [1] is null as well
    KernelLoop combine = nullptr;          // 2 rows of accumulators to accumulators
    KernelLoop finish = nullptr;           // 2 rows of accumulators to output
};

struct KernelTable {
    const char* name;
    OpKernels ops[kDtypes][kOps];
    KernelLoop widen[2];   // float16, bfloat16 to float32, in steps of half_step elements
    KernelLoop narrow[2];  // float32 to float16, bfloat16
    size_t half_step;
};

extern const KernelTable kernels_plain;
#if defined(__x86_64__)
extern const KernelTable kernels_avx2;
extern const KernelTable kernels_avx512;
#endif

// The tables this processor can run, slowest first; "plain" is always there.
std::vector<const KernelTable*> usable_kernels();

// The table that `simd` ("auto" or a name) asks for. Throws ArgumentError that lists the usable
// ones when it is not among them.
const KernelTable& select_kernels(const std::string& simd,
                                  const std::vector<const KernelTable*>& usable);

// reduce() of reduce.h with a given table.
void reduce_with(const KernelTable& table, void* out, const void* const* inputs, int sources,
                 size_t count, DataType type, ReduceOp op, int64_t divisor);
void divide_with(const KernelTable& table, void* data, size_t count, DataType type,
                 int64_t divisor);
void widen_with(const KernelTable& table, float* out, const void* in, size_t count,
                DataType half_type);
void narrow_with(const KernelTable& table, void* out, const float* in, size_t count,
                 DataType half_type);

}  // namespace pycomm
