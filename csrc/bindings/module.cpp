// The extension module pycomm._core.
#include "base/env.h"
#include "bindings/bindings.h"
#include "reduce/reduce.h"

PYBIND11_MODULE(_core, module) {
    namespace bindings = pycomm::bindings;
    module.doc() = "C++ core of pycomm; use the package, not this module.";
    bindings::bind_errors(module);
    bindings::bind_bootstrap(module);
    bindings::bind_communicator(module);
    bindings::bind_memory_limit(module);
    bindings::bind_allocator(module);
    bindings::bind_quick_calls(module);
    module.def("reduce_kernel_name", &pycomm::reduce_kernel_name,
               "The instruction set of the reduction kernels: plain, avx2 or avx512.");
    module.def("begin_exit", &bindings::begin_exit,
               "The program is ending: calls of other threads do not return from now on.");
    module.def(
        "default_timeout", [] { return pycomm::read_env().timeout; },
        "PYCOMM_TIMEOUT in seconds, or the built-in default.");
}
