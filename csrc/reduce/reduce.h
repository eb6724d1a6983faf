// Element-wise reduction of buffers: the arithmetic of every reducing operation.
//
// Rules (docs/architecture.md): 16-bit floats accumulate in float32 and round once; integers wrap;
// bool sum is OR and bool prod is AND, bool results are 0 or 1; NaN propagates through min and max.
// k inputs are combined as a balanced binary tree over their order, left part the largest power of
// two: ((0+1)+(2+3))+4 for five.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/types.h"

namespace pycomm {

// out[i] = inputs[0][i] op ... op inputs[sources-1][i] for i < count, sources >= 1.
// `out` may be one of the inputs; otherwise it overlaps none. For avg the result is divided by
// `divisor` (the number of ranks); for every other op `divisor` is ignored.
// All pointers are aligned to the element size.
void reduce(void* out, const void* const* inputs, int sources, size_t count, DataType type,
            ReduceOp op, int64_t divisor);

// data[i] /= divisor, in place, for floating-point and complex types.
void divide(void* data, size_t count, DataType type, int64_t divisor);

// Conversion between float32 and float16 or bfloat16, round to nearest even, NaN stays NaN.
void widen(float* out, const void* in, size_t count, DataType half_type);
void narrow(void* out, const float* in, size_t count, DataType half_type);

// The instruction set chosen at run time: "plain", "avx2" or "avx512" (PYCOMM_SIMD forces one).
const char* reduce_kernel_name();

}  // namespace pycomm
