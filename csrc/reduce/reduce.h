// Element-wise reduction of buffers: the arithmetic of every reducing operation.
//
// Rules (docs/architecture.md): 16-bit floats accumulate in float32 and round once; integers wrap;
// bool sum is OR and bool prod is AND, bool results are 0 or 1, any byte but 0 is read as true; NaN
// propagates through min and max, and -0 is less than +0; a complex product is the plain formula
// (ac - bd) + (ad + bc)i. A NaN that is computed is the positive quiet one without payload, so that
// results are bitwise the same on every instruction set; a single input is copied as it is.
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
// All pointers are aligned to the element size. Allocates nothing; up to 8 inputs are one pass,
// more take rows of 4 KiB on the stack, one per doubling. Throws ArgumentError for an op that is
// not defined on `type`, no inputs, or an avg over less than 1.
void reduce(void* out, const void* const* inputs, int sources, size_t count, DataType type,
            ReduceOp op, int64_t divisor);

// data[i] /= divisor, in place, for floating-point and complex types; ArgumentError for others.
void divide(void* data, size_t count, DataType type, int64_t divisor);

// Conversion between float32 and float16 or bfloat16, round to nearest even, NaN stays NaN
// with its sign and what fits of its payload. ArgumentError for other types.
void widen(float* out, const void* in, size_t count, DataType half_type);
void narrow(void* out, const float* in, size_t count, DataType half_type);

// The instruction set chosen at the first use: "plain", "avx2" or "avx512". PYCOMM_SIMD forces one;
// every function here throws ArgumentError when this processor lacks it.
const char* reduce_kernel_name();

}  // namespace pycomm
