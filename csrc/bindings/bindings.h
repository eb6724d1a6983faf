// What the files of the extension module share.
#pragma once

#include <cxxabi.h>
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>

#include <exception>
#include <functional>
#include <optional>
#include <type_traits>
#include <utility>

#include "base/buffer.h"
#include "base/interrupt.h"

namespace pycomm::bindings {

namespace py = pybind11;

void bind_errors(py::module_& module);
void bind_bootstrap(py::module_& module);
void bind_communicator(py::module_& module);
void bind_memory_limit(py::module_& module);
void bind_allocator(py::module_& module);
void bind_quick_calls(py::module_& module);

// Sets Python's exception, with the same class and text whichever way the call came in.
void set_error(const std::exception_ptr& error);

// A Buffer over a contiguous array. Throws ArgumentError for other layouts, unknown dtypes, and
// arrays that are read-only although `writable` is asked for. None gives an empty buffer of
// `fallback`.
Buffer buffer_of(const py::object& array, bool writable, DataType fallback, const char* role);

// Ends a wait with Python's exception when a signal handler raised one. Null on threads other than
// the main one, where Python runs no signal handlers.
const std::function<void()>& signal_hook();

// The program is ending: from now on other threads than this one do not come back from without_gil.
// They would print errors about communicators that were closed under them, and Python ends them
// anyway.
void begin_exit();
void hold_at_exit();

// Calls `body` without the GIL, for waits that the engine does, which knows the hook. Python ends a
// thread that asks for the GIL while the interpreter shuts down by unwinding it, which must not
// start in a destructor, as it would with py::gil_scoped_release.
template <typename Body>
auto released(Body&& body) {
    using Result = std::invoke_result_t<Body>;
    using Kept = std::conditional_t<std::is_void_v<Result>, bool, std::optional<Result>>;
    Kept result{};
    std::exception_ptr error;
    PyThreadState* state = PyEval_SaveThread();
    try {
        if constexpr (std::is_void_v<Result>) {
            body();
        } else {
            result.emplace(body());
        }
    } catch (const abi::__forced_unwind&) {
        throw;
    } catch (...) {
        error = std::current_exception();
    }
    hold_at_exit();
    PyEval_RestoreThread(state);
    if (error) std::rethrow_exception(error);
    if constexpr (!std::is_void_v<Result>) return std::move(*result);
}

// The same, and every wait inside can be interrupted.
template <typename Body>
auto without_gil(Body&& body) {
    return released([&] {
        const InterruptScope scope(signal_hook());
        return body();
    });
}

}  // namespace pycomm::bindings
