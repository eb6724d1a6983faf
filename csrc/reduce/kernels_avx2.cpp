// Reduction loops for AVX2 and F16C. Compiled with flags of its own.
#if defined(__x86_64__)

#define PYCOMM_ISA avx2
#define PYCOMM_VECTOR_BYTES 32
#include "reduce/kernel_loops.h"

namespace pycomm {

constinit const KernelTable kernels_avx2 = avx2::make_table("avx2");

}  // namespace pycomm

#endif
