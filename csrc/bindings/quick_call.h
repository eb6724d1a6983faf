// The short way from a Python call to the core.
//
// A public operation is a Python function in pycomm/communicator.py: its definition, with the
// documentation, the checks and whatever takes strided arrays, groups, counts or async_op.
// `_core.quick` puts an object in front of it that looks at the arguments first. When they are what
// nearly every call has (plain contiguous arrays, names and numbers within their range), it calls
// the core at once; everything else, wrong arguments included, it leaves to the function. So it
// decides nothing and reports nothing that the function would not.
#pragma once

#include <Python.h>
#include <sys/types.h>

#include <array>
#include <memory>
#include <span>

#include "base/buffer.h"
#include "comm/communicator.h"

namespace pycomm::bindings {

// What the base class of pycomm's Communicator holds.
struct CommunicatorBase {
    PyObject_HEAD std::shared_ptr<Communicator> core;
    // Threads that collect their messages instead of sending them: group() and sendrecv.
    int groups;
};

struct ArrayView {
    Buffer buffer;
    std::span<const ssize_t> shape;
};

// Called once, when the module is made: a thread that waits for another one's first call while it
// holds the GIL could wait for ever.
void find_numpy();
void make_names();

// A plain NumPy array that the core can work on as it lies: contiguous, aligned, native, of a
// supported dtype, and writeable when asked for. Returns false for everything else.
bool view_array(PyObject* object, bool writable, ArrayView& view);

enum class Parameter : uint8_t { x, op, out, root, dst, src, tag, timeout, async_op, end };

constexpr auto parameter_count = static_cast<size_t>(Parameter::end);

// Borrowed values by parameter; null where the caller gave none.
struct QuickArguments {
    std::array<PyObject*, parameter_count> values{};

    PyObject*& at(Parameter parameter) { return values[static_cast<size_t>(parameter)]; }
    PyObject* get(Parameter parameter) const { return values[static_cast<size_t>(parameter)]; }
};

// An operation that has a short way.
struct QuickOperation {
    const char* name;
    OpKind kind;  // none: a send and a receive
    // The function's parameters in its order, those that are only given by name after them.
    std::span<const Parameter> positional;
};

// Null when there is no short way of this name.
const QuickOperation* find_operation(const char* name);

// Carries the operation out; returns a new reference, null with an exception set, or
// `not_quick()` when the arguments need the function.
PyObject* quick_call(const QuickOperation& operation, CommunicatorBase& self,
                     const QuickArguments& arguments);
PyObject* not_quick();

// How many calls of this process have gone the short way.
size_t quick_calls();

// Interned.
PyObject* parameter_name(Parameter parameter);

}  // namespace pycomm::bindings
