// Reduction loops for any processor: 16-byte vectors, which x86-64 and 64-bit Arm always have.
#define PYCOMM_ISA plain
#define PYCOMM_VECTOR_BYTES 16
#include "reduce/kernel_loops.h"

namespace pycomm {

constinit const KernelTable kernels_plain = plain::make_table("plain");

}  // namespace pycomm
