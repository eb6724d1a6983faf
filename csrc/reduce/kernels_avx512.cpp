// Reduction loops for AVX-512 (F, BW, DQ, VL). Compiled with flags of its own.
#if defined(__x86_64__)

#define PYCOMM_ISA avx512
#define PYCOMM_VECTOR_BYTES 64
#include "reduce/kernel_loops.h"

namespace pycomm {

constinit const KernelTable kernels_avx512 = avx512::make_table("avx512");

}  // namespace pycomm

#endif
