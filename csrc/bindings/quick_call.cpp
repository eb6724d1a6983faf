// Checked arguments of the short way, and the operations that have one.
#include "bindings/quick_call.h"

#include <cmath>
#include <cstring>
#include <optional>

#include "bindings/bindings.h"
#include "schedule/schedule.h"

namespace pycomm::bindings {
namespace {

using Timeout = Communicator::Timeout;

size_t calls = 0;

// A call on its way to the core. `result` is borrowed.
struct Prepared {
    const QuickOperation& operation;
    const Communicator& core;
    const QuickArguments& arguments;
    CollectiveRequest request{};
    Timeout timeout{};
    PyObject* result = Py_None;
};

bool is_given(PyObject* object) {
    return object != nullptr && object != Py_None;
}

std::optional<int> small_int(PyObject* object, int low, int high) {
    if (object == nullptr || !PyLong_CheckExact(object)) return std::nullopt;
    int overflow = 0;
    const long value = PyLong_AsLongAndOverflow(object, &overflow);
    if (overflow != 0 || value < low || value > high) return std::nullopt;
    return static_cast<int>(value);
}

bool take_timeout(PyObject* object, Timeout& timeout) {
    if (!is_given(object)) return true;
    if (PyFloat_CheckExact(object)) {
        timeout = PyFloat_AS_DOUBLE(object);
    } else if (const auto whole = small_int(object, 1, INT32_MAX)) {
        timeout = *whole;
    } else {
        return false;
    }
    return std::isfinite(*timeout) && *timeout > 0;
}

// Names of operations as they stand in programs are interned strings.
std::optional<ReduceOp> known_op(PyObject* object) {
#define PYCOMM_ENTRY(name) {PyUnicode_InternFromString(#name), ReduceOp::name},
    static const std::pair<PyObject*, ReduceOp> names[] = {PYCOMM_OP_LIST(PYCOMM_ENTRY)};
#undef PYCOMM_ENTRY
    if (object == nullptr) return ReduceOp::sum;
    for (const auto& [name, op] : names) {
        if (name == object) return op;
    }
    return std::nullopt;
}

bool same_shape(std::span<const ssize_t> a, std::span<const ssize_t> b) {
    return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size_bytes()) == 0;
}

// A result of `rows` rows as those of `x`.
bool has_rows(const ArrayView& out, const ArrayView& x, int64_t rows) {
    return !x.shape.empty() && out.shape.size() == x.shape.size() && out.shape[0] == rows &&
           same_shape(out.shape.subspan(1), x.shape.subspan(1));
}

bool take_root(Prepared& call) {
    PyObject* given = call.arguments.get(Parameter::root);
    const auto root = given == nullptr ? 0 : small_int(given, 0, call.core.size() - 1);
    if (root) call.request.root = *root;
    return root.has_value();
}

bool take_op(Prepared& call) {
    const auto op = known_op(call.arguments.get(Parameter::op));
    if (op) call.request.op = *op;
    return op.has_value();
}

// `out` for the result, or else `x`.
bool take_like(Prepared& call, const ArrayView& x) {
    PyObject* out = call.arguments.get(Parameter::out);
    call.result = is_given(out) ? out : call.arguments.get(Parameter::x);
    ArrayView target;
    if (!view_array(call.result, true, target) || target.buffer.dtype != x.buffer.dtype ||
        !same_shape(target.shape, x.shape)) {
        return false;
    }
    call.request.output = target.buffer;
    return true;
}

// `out` for `rows` rows as those of `x`.
bool take_rows(Prepared& call, const ArrayView& x, int64_t rows) {
    call.result = call.arguments.get(Parameter::out);
    ArrayView target;
    if (!view_array(call.result, true, target) || target.buffer.dtype != x.buffer.dtype ||
        !has_rows(target, x, rows)) {
        return false;
    }
    call.request.output = target.buffer;
    return true;
}

bool prepare_reduction(Prepared& call, const ArrayView& x) {
    if (!take_op(call)) return false;
    call.request.output.dtype = x.buffer.dtype;
    if (call.operation.kind == OpKind::all_reduce) return take_like(call, x);
    if (!take_root(call)) return false;
    return call.core.rank() != call.request.root || take_like(call, x);
}

bool prepare_broadcast(Prepared& call) {
    call.result = call.arguments.get(Parameter::x);
    ArrayView x;
    if (!take_root(call) ||
        !view_array(call.result, call.core.rank() != call.request.root, x)) {
        return false;
    }
    call.request.input = call.request.output = x.buffer;
    return true;
}

// Slices of x as numpy.array_split makes them.
std::vector<int64_t> slices(Prepared& call, const ArrayView& x) {
    const int64_t rows = x.shape[0];
    const int64_t width = rows > 0 ? x.buffer.count / rows : 1;
    std::vector<int64_t> counts(static_cast<size_t>(call.core.size()));
    for (size_t rank = 0; rank < counts.size(); ++rank) {
        counts[rank] = slice_count(rows, call.core.size(), static_cast<int>(rank)) * width;
    }
    call.request.rows = rows;
    call.request.row_elements = width;
    return counts;
}

// all_gather, reduce_scatter and all_to_all without counts and with `out`.
bool prepare_slices(Prepared& call, const ArrayView& x) {
    // Rows without elements have a width that only the shape tells.
    if (x.shape.empty() || x.buffer.count == 0) return false;
    const int64_t rows = x.shape[0];
    const int64_t own = slice_count(rows, call.core.size(), call.core.rank());
    switch (call.operation.kind) {
        case OpKind::all_gather:
            call.request.counts.assign(static_cast<size_t>(call.core.size()), x.buffer.count);
            return take_rows(call, x, rows * call.core.size());
        case OpKind::reduce_scatter:
            if (!take_op(call) || !take_rows(call, x, own)) return false;
            call.request.counts = slices(call, x);
            return true;
        default:
            if (!take_rows(call, x, own * call.core.size())) return false;
            call.request.send_counts = slices(call, x);
            call.request.recv_counts.assign(
                call.request.send_counts.size(),
                call.request.send_counts[static_cast<size_t>(call.core.rank())]);
            return true;
    }
}

bool prepare(Prepared& call) {
    call.request.kind = call.operation.kind;
    if (call.operation.kind == OpKind::barrier) return true;
    if (call.operation.kind == OpKind::broadcast) return prepare_broadcast(call);
    ArrayView x;
    if (!view_array(call.arguments.get(Parameter::x), false, x)) return false;
    call.request.input = x.buffer;
    return call.operation.kind == OpKind::all_reduce || call.operation.kind == OpKind::reduce
               ? prepare_reduction(call, x)
               : prepare_slices(call, x);
}

// Null with the exception set when `body` throws.
template <typename Body>
PyObject* finish(PyObject* result, Body&& body) {
    ++calls;
    try {
        released(body);
    } catch (const abi::__forced_unwind&) {
        throw;
    } catch (...) {
        set_error(std::current_exception());
        return nullptr;
    }
    return Py_NewRef(result);
}

PyObject* quick_collective(const QuickOperation& operation, Communicator& core,
                           const QuickArguments& arguments) {
    Prepared call{operation, core, arguments};
    if (!take_timeout(arguments.get(Parameter::timeout), call.timeout) || !prepare(call)) {
        return not_quick();
    }
    return finish(call.result,
                  [&] { core.run_now(std::move(call.request), call.timeout, signal_hook()); });
}

PyObject* quick_message(const QuickOperation& operation, Communicator& core,
                        const QuickArguments& arguments) {
    const bool sends = operation.kind == OpKind::send;
    PyObject* array = arguments.get(sends ? Parameter::x : Parameter::out);
    PyObject* given_tag = arguments.get(Parameter::tag);
    const auto peer = small_int(arguments.get(sends ? Parameter::dst : Parameter::src), 0,
                                core.size() - 1);
    const auto tag = given_tag == nullptr ? 0 : small_int(given_tag, 0, INT32_MAX);
    ArrayView view;
    Timeout timeout;
    if (!peer || !tag || !take_timeout(arguments.get(Parameter::timeout), timeout) ||
        !view_array(array, !sends, view)) {
        return not_quick();
    }
    return finish(sends ? Py_None : array, [&] {
        const auto task = core.point_to_point(operation.kind, view.buffer, *peer, *tag, timeout);
        core.run({&task, 1}, signal_hook());
    });
}

constexpr Parameter no_parameters[] = {Parameter::end};
constexpr Parameter all_reduce_parameters[] = {Parameter::x, Parameter::op, Parameter::out};
constexpr Parameter reduce_parameters[] = {Parameter::x, Parameter::root, Parameter::op,
                                           Parameter::out};
constexpr Parameter broadcast_parameters[] = {Parameter::x, Parameter::root};
constexpr Parameter pair_parameters[] = {Parameter::x, Parameter::out};
constexpr Parameter send_parameters[] = {Parameter::x, Parameter::dst, Parameter::tag};
constexpr Parameter recv_parameters[] = {Parameter::out, Parameter::src, Parameter::tag};

const QuickOperation operations[] = {
    {"all_reduce", OpKind::all_reduce, all_reduce_parameters},
    {"reduce", OpKind::reduce, reduce_parameters},
    {"broadcast", OpKind::broadcast, broadcast_parameters},
    {"reduce_scatter", OpKind::reduce_scatter, all_reduce_parameters},
    {"all_gather", OpKind::all_gather, pair_parameters},
    {"all_to_all", OpKind::all_to_all, pair_parameters},
    {"barrier", OpKind::barrier, std::span(no_parameters).first(0)},
    {"send", OpKind::send, send_parameters},
    {"recv", OpKind::recv, recv_parameters},
};

}  // namespace

const QuickOperation* find_operation(const char* name) {
    for (const auto& operation : operations) {
        if (std::strcmp(operation.name, name) == 0) return &operation;
    }
    return nullptr;
}

PyObject* not_quick() {
    static PyObject mark{};
    return &mark;
}

size_t quick_calls() {
    return calls;
}

PyObject* parameter_name(Parameter parameter) {
    static PyObject* const names[] = {
        PyUnicode_InternFromString("x"),       PyUnicode_InternFromString("op"),
        PyUnicode_InternFromString("out"),     PyUnicode_InternFromString("root"),
        PyUnicode_InternFromString("dst"),     PyUnicode_InternFromString("src"),
        PyUnicode_InternFromString("tag"),     PyUnicode_InternFromString("timeout"),
        PyUnicode_InternFromString("async_op")};
    return names[static_cast<size_t>(parameter)];
}

PyObject* quick_call(const QuickOperation& operation, CommunicatorBase& self,
                     const QuickArguments& arguments) {
    PyObject* started = arguments.get(Parameter::async_op);
    if (self.core == nullptr || self.groups != 0 || (started != nullptr && started != Py_False)) {
        return not_quick();
    }
    const bool is_message = operation.kind == OpKind::send || operation.kind == OpKind::recv;
    return is_message ? quick_message(operation, *self.core, arguments)
                      : quick_collective(operation, *self.core, arguments);
}

}  // namespace pycomm::bindings
