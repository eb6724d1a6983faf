// C++ Error -> the Python class of the same name in pycomm.errors.
#include <pybind11/stl.h>

#include "base/error.h"
#include "bindings/bindings.h"

namespace pycomm::bindings {

void bind_errors(py::module_& /*module*/) {
    py::register_local_exception_translator([](std::exception_ptr pointer) {
        try {
            if (pointer) std::rethrow_exception(pointer);
        } catch (const Error& error) {
            const py::object type =
                py::module_::import("pycomm.errors").attr(error_name(error.code()));
            const py::object instance = type(error.what(), py::cast(error.ranks()));
            PyErr_SetObject(type.ptr(), instance.ptr());
        }
    });
}

void check_signals() {
    const py::gil_scoped_acquire gil;
    if (PyErr_CheckSignals() != 0) throw py::error_already_set();
}

}  // namespace pycomm::bindings
