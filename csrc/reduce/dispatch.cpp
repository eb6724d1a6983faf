// Which instruction sets this processor has, and which table of loops is used.
#include "base/error.h"
#include "reduce/kernels.h"

#if defined(__x86_64__)
#include <cpuid.h>
#endif

namespace pycomm {
namespace {

#if defined(__x86_64__)
// __builtin_cpu_supports also knows whether the system saves the wide registers; older compilers do
// not let it be asked about F16C.
bool has_avx2() {
    unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
    const bool has_f16c = __get_cpuid(1, &eax, &ebx, &ecx, &edx) != 0 && (ecx & bit_F16C) != 0;
    return has_f16c && __builtin_cpu_supports("avx2");
}

bool has_avx512() {
    return has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
}
#endif

}  // namespace

std::vector<const KernelTable*> usable_kernels() {
    std::vector<const KernelTable*> tables{&kernels_plain};
#if defined(__x86_64__)
    if (has_avx2()) tables.push_back(&kernels_avx2);
    if (has_avx512()) tables.push_back(&kernels_avx512);
#endif
    return tables;
}

const KernelTable& select_kernels(const std::string& simd,
                                  const std::vector<const KernelTable*>& usable) {
    if (simd == "auto") return *usable.back();
    std::string names;
    for (const KernelTable* table : usable) {
        if (simd == table->name) return *table;
        names += names.empty() ? table->name : std::string(", ") + table->name;
    }
    PYCOMM_FAIL(argument, "PYCOMM_SIMD=", simd, ": this processor runs only ", names,
                "; choose one of these or auto");
}

}  // namespace pycomm
