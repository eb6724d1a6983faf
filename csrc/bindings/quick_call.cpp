// Checked arguments of the short way, and the operations that have one.
#include "bindings/quick_call.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <iterator>
#include <optional>

#include "bindings/bindings.h"
#include "schedule/schedule.h"

namespace pycomm::bindings {
namespace {

using Timeout = Communicator::Timeout;

size_t calls = 0;

// Interned: names in programs are the same objects.
PyObject* parameter_names[parameter_count];
std::pair<PyObject*, ReduceOp> op_names[] = {
#define PYCOMM_ENTRY(name) {nullptr, ReduceOp::name},
    PYCOMM_OP_LIST(PYCOMM_ENTRY)
#undef PYCOMM_ENTRY
};

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

std::optional<ReduceOp> known_op(PyObject* object) {
    if (object == nullptr) return ReduceOp::sum;
    for (const auto& [name, op] : op_names) {
        if (name == object) return op;
    }
    return std::nullopt;
}

bool same_shape(std::span<const ssize_t> a, std::span<const ssize_t> b) {
    return std::ranges::equal(a, b);
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

// Makes `array` the output and the result of the call.
bool take_target(Prepared& call, PyObject* array, const ArrayView& x, ArrayView& target) {
    call.result = array;
    if (!view_array(array, true, target) || target.buffer.dtype != x.buffer.dtype) return false;
    call.request.output = target.buffer;
    return true;
}

// `out` for the result, or else `x`.
bool take_like(Prepared& call, const ArrayView& x) {
    PyObject* out = call.arguments.get(Parameter::out);
    ArrayView target;
    return take_target(call, is_given(out) ? out : call.arguments.get(Parameter::x), x, target) &&
           same_shape(target.shape, x.shape);
}

// `out` for `rows` rows as those of `x`.
bool take_rows(Prepared& call, const ArrayView& x, int64_t rows) {
    ArrayView target;
    return take_target(call, call.arguments.get(Parameter::out), x, target) &&
           has_rows(target, x, rows);
}

bool is_root(const Prepared& call) {
    return call.core.rank() == call.request.root;
}

bool prepare_reduction(Prepared& call, const ArrayView& x) {
    if (!take_op(call)) return false;
    if (call.operation.kind == OpKind::all_reduce) return take_like(call, x);
    return take_root(call) && (!is_root(call) || take_like(call, x));
}

bool prepare_broadcast(Prepared& call) {
    call.result = call.arguments.get(Parameter::x);
    ArrayView x;
    if (!take_root(call) || !view_array(call.result, !is_root(call), x)) return false;
    call.request.input = call.request.output = x.buffer;
    return true;
}

// How the rows of x are told to the others. Without elements, the width of a row is known to the
// function only.
bool tell_rows(Prepared& call, const ArrayView& x) {
    if (x.shape.empty() || x.buffer.count == 0) return false;
    call.request.rows = x.shape[0];
    call.request.row_elements = x.buffer.count / x.shape[0];
    return true;
}

// Slices of x as numpy.array_split makes them.
std::vector<int64_t> slices(const Prepared& call, const ArrayView& x) {
    const int64_t rows = x.shape[0];
    const int64_t width = x.buffer.count / rows;
    std::vector<int64_t> counts(static_cast<size_t>(call.core.size()));
    for (size_t rank = 0; rank < counts.size(); ++rank) {
        counts[rank] = slice_count(rows, call.core.size(), static_cast<int>(rank)) * width;
    }
    return counts;
}

// Every rank gives an equal x.
bool prepare_joined(Prepared& call, const ArrayView& x) {
    if (x.shape.empty() || x.buffer.count == 0) return false;
    if (call.operation.kind == OpKind::gather && !take_root(call)) return false;
    call.request.counts.assign(static_cast<size_t>(call.core.size()), x.buffer.count);
    const bool takes = call.operation.kind == OpKind::all_gather || is_root(call);
    return !takes || take_rows(call, x, x.shape[0] * call.core.size());
}

// Every rank gets a slice of x.
bool prepare_split(Prepared& call, const ArrayView& x) {
    if (!tell_rows(call, x)) return false;
    const int64_t own = slice_count(x.shape[0], call.core.size(), call.core.rank());
    if (call.operation.kind == OpKind::all_to_all) {
        if (!take_rows(call, x, own * call.core.size())) return false;
        call.request.send_counts = slices(call, x);
        const int64_t count = call.request.send_counts[static_cast<size_t>(call.core.rank())];
        call.request.recv_counts.assign(call.request.send_counts.size(), count);
        return true;
    }
    if (!take_rows(call, x, own)) return false;
    call.request.counts = slices(call, x);
    return call.operation.kind != OpKind::reduce_scatter || take_op(call);
}

// A scatter away from the root, which has only the own rows.
bool prepare_scattered(Prepared& call) {
    PyObject* out = call.arguments.get(Parameter::out);
    ArrayView target;
    if (!view_array(out, true, target) || !tell_rows(call, target)) return false;
    call.result = out;
    call.request.output = target.buffer;
    call.request.input.dtype = target.buffer.dtype;
    return true;
}

bool prepare(Prepared& call) {
    call.request.kind = call.operation.kind;
    switch (call.operation.kind) {
        case OpKind::barrier:
            return true;
        case OpKind::broadcast:
            return prepare_broadcast(call);
        case OpKind::scatter:
            if (call.arguments.get(Parameter::x) == nullptr || !take_root(call)) return false;
            if (!is_root(call)) return prepare_scattered(call);
            break;
        default:
            break;
    }
    ArrayView x;
    if (!view_array(call.arguments.get(Parameter::x), false, x)) return false;
    call.request.input = x.buffer;
    call.request.output.dtype = x.buffer.dtype;
    switch (call.operation.kind) {
        case OpKind::all_reduce:
        case OpKind::reduce:
            return prepare_reduction(call, x);
        case OpKind::all_gather:
        case OpKind::gather:
            return prepare_joined(call, x);
        default:
            return prepare_split(call, x);
    }
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

// One direction of a message.
struct Half {
    OpKind kind;
    Parameter array;
    Parameter peer;
};

PyObject* quick_message(std::span<const Half> halves, Communicator& core,
                        const QuickArguments& arguments) {
    PyObject* given_tag = arguments.get(Parameter::tag);
    const auto tag = given_tag == nullptr ? 0 : small_int(given_tag, 0, INT32_MAX);
    Timeout timeout;
    if (!tag || !take_timeout(arguments.get(Parameter::timeout), timeout)) return not_quick();
    std::array<std::pair<Buffer, int>, 2> ends;
    PyObject* result = Py_None;
    for (size_t i = 0; i < halves.size(); ++i) {
        PyObject* array = arguments.get(halves[i].array);
        const bool writes = halves[i].kind == OpKind::recv;
        const auto peer = small_int(arguments.get(halves[i].peer), 0, core.size() - 1);
        ArrayView view;
        if (!peer || !view_array(array, writes, view)) return not_quick();
        ends[i] = {view.buffer, *peer};
        if (writes) result = array;
    }
    return finish(result, [&] {
        if (halves.size() == 1) {
            const auto& [buffer, peer] = ends[0];
            return core.run_now({halves[0].kind, buffer, peer, *tag}, timeout, signal_hook());
        }
        std::array<std::shared_ptr<Task>, 2> tasks;
        for (size_t i = 0; i < halves.size(); ++i) {
            const auto& [buffer, peer] = ends[i];
            tasks[i] = core.point_to_point(halves[i].kind, buffer, peer, *tag, timeout);
        }
        core.run(std::span(tasks).first(halves.size()), signal_hook());
    });
}

constexpr Parameter no_parameters[] = {Parameter::end};
constexpr Parameter all_reduce_parameters[] = {Parameter::x, Parameter::op, Parameter::out};
constexpr Parameter reduce_parameters[] = {Parameter::x, Parameter::root, Parameter::op,
                                           Parameter::out};
constexpr Parameter broadcast_parameters[] = {Parameter::x, Parameter::root};
constexpr Parameter pair_parameters[] = {Parameter::x, Parameter::out};
constexpr Parameter rooted_parameters[] = {Parameter::x, Parameter::root, Parameter::out};
constexpr Parameter send_parameters[] = {Parameter::x, Parameter::dst, Parameter::tag};
constexpr Parameter recv_parameters[] = {Parameter::out, Parameter::src, Parameter::tag};
constexpr Parameter sendrecv_parameters[] = {Parameter::x, Parameter::dst, Parameter::out,
                                             Parameter::src, Parameter::tag};

const QuickOperation operations[] = {
    {"all_reduce", OpKind::all_reduce, all_reduce_parameters},
    {"reduce", OpKind::reduce, reduce_parameters},
    {"broadcast", OpKind::broadcast, broadcast_parameters},
    {"reduce_scatter", OpKind::reduce_scatter, all_reduce_parameters},
    {"all_gather", OpKind::all_gather, pair_parameters},
    {"gather", OpKind::gather, rooted_parameters},
    {"scatter", OpKind::scatter, rooted_parameters},
    {"all_to_all", OpKind::all_to_all, pair_parameters},
    {"barrier", OpKind::barrier, std::span(no_parameters).first(0)},
    {"send", OpKind::send, send_parameters},
    {"recv", OpKind::recv, recv_parameters},
    {"sendrecv", OpKind::none, sendrecv_parameters},
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

void make_names() {
    constexpr const char* texts[] = {"x",   "op",  "out",     "root",    "dst",
                                     "src", "tag", "timeout", "async_op"};
    static_assert(std::size(texts) == parameter_count);
    for (size_t i = 0; i < parameter_count; ++i) {
        parameter_names[i] = PyUnicode_InternFromString(texts[i]);
    }
    for (auto& [name, op] : op_names) name = PyUnicode_InternFromString(op_name(op));
}

PyObject* parameter_name(Parameter parameter) {
    return parameter_names[static_cast<size_t>(parameter)];
}

PyObject* quick_call(const QuickOperation& operation, CommunicatorBase& self,
                     const QuickArguments& arguments) {
    PyObject* started = arguments.get(Parameter::async_op);
    if (self.core == nullptr || self.groups != 0 || (started != nullptr && started != Py_False)) {
        return not_quick();
    }
    constexpr Half both[] = {{OpKind::send, Parameter::x, Parameter::dst},
                             {OpKind::recv, Parameter::out, Parameter::src}};
    switch (operation.kind) {
        case OpKind::send:
            return quick_message(std::span(both).first(1), *self.core, arguments);
        case OpKind::recv:
            return quick_message(std::span(both).last(1), *self.core, arguments);
        case OpKind::none:
            return quick_message(both, *self.core, arguments);
        default:
            return quick_collective(operation, *self.core, arguments);
    }
}

}  // namespace pycomm::bindings
