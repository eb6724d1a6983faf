// What the files of the extension module share.
#pragma once

#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>

#include "base/buffer.h"

namespace pycomm::bindings {

namespace py = pybind11;

void bind_errors(py::module_& module);
void bind_bootstrap(py::module_& module);
void bind_communicator(py::module_& module);

// A Buffer over a contiguous array. Throws ArgumentError for other layouts, unknown dtypes, and
// arrays that are read-only although `writable` is asked for. None gives an empty buffer of
// `fallback`.
Buffer buffer_of(const py::object& array, bool writable, DataType fallback, const char* role);

// Ends a wait on this thread with Python's exception when a signal handler raised one.
void check_signals();

}  // namespace pycomm::bindings
