// C++ Error -> the Python class of the same name in pycomm.errors.
#include <pybind11/stl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>

#include "base/error.h"
#include "bindings/bindings.h"

namespace pycomm::bindings {

namespace {

void set_pycomm_error(const Error& error) {
    try {
        const py::object type = py::module_::import("pycomm.errors").attr(error_name(error.code()));
        const py::object instance = type(error.what(), py::cast(error.ranks()));
        PyErr_SetObject(type.ptr(), instance.ptr());
    } catch (py::error_already_set& other) {
        other.restore();  // for example Ctrl-C meanwhile
    }
}

}  // namespace

void bind_errors(py::module_& /*module*/) {
    py::register_local_exception_translator([](std::exception_ptr pointer) {
        try {
            if (pointer) std::rethrow_exception(pointer);
        } catch (const Error& error) {
            set_pycomm_error(error);
        }
    });
}

void set_error(const std::exception_ptr& error) {
    try {
        std::rethrow_exception(error);
    } catch (const Error& known) {
        set_pycomm_error(known);
    } catch (py::error_already_set& raised) {
        raised.restore();
    } catch (const std::bad_alloc&) {
        PyErr_NoMemory();
    } catch (const std::exception& other) {
        PyErr_SetString(PyExc_RuntimeError, other.what());
    }
}

namespace {

void check_signals() {
    const py::gil_scoped_acquire gil;
    if (PyErr_CheckSignals() != 0) throw py::error_already_set();
}

std::atomic<pid_t> exiting_thread{0};

pid_t thread_id() {
    return static_cast<pid_t>(syscall(SYS_gettid));
}

}  // namespace

void begin_exit() {
    exiting_thread.store(thread_id());
}

void hold_at_exit() {
    const pid_t exiting = exiting_thread.load(std::memory_order_relaxed);
    if (exiting == 0 || exiting == thread_id()) return;
    while (true) pause();
}

const std::function<void()>& signal_hook() {
    static const std::function<void()> hook(&check_signals);
    static const std::function<void()> none;
    static thread_local const bool is_main = thread_id() == getpid();
    return is_main ? hook : none;
}

}  // namespace pycomm::bindings
