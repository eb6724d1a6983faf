// The object that `_core.quick` puts in front of a method: called, it tries the short way first;
// for everything else it stands for the function. And the base class that such methods need.
#include <Python.h>
#include <structmember.h>

#include <cstddef>
#include <new>

#include "bindings/bindings.h"
#include "bindings/quick_call.h"

namespace pycomm::bindings {
namespace {

// ---- The method. ----

struct QuickMethod {
    PyObject_HEAD vectorcallfunc vectorcall;
    const QuickOperation* operation;
    PyObject* function;
    PyObject* dict;
    PyObject* weak_references;
};

PyTypeObject* base_type = nullptr;
PyTypeObject* method_type = nullptr;

QuickMethod* method_of(PyObject* object) {
    return reinterpret_cast<QuickMethod*>(object);
}

// Puts a keyword's value at its place. Names in calls are interned; others are left to the
// function.
bool take_keyword(const QuickOperation& operation, PyObject* name, PyObject* value,
                  QuickArguments& arguments) {
    const auto take = [&](Parameter parameter) {
        if (name != parameter_name(parameter)) return false;
        PyObject*& place = arguments.at(parameter);
        if (place != nullptr) return false;  // given twice
        place = value;
        return true;
    };
    for (const Parameter parameter : operation.positional) {
        if (take(parameter)) return true;
    }
    return take(Parameter::timeout) || take(Parameter::async_op);
}

// `given` begins after self. Returns false when some of them belong to no known parameter.
bool take_arguments(const QuickOperation& operation, PyObject* const* given, size_t count,
                    PyObject* names, QuickArguments& arguments) {
    if (count > operation.positional.size()) return false;
    for (size_t i = 0; i < count; ++i) arguments.at(operation.positional[i]) = given[i];
    if (names == nullptr) return true;
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(names); ++i) {
        PyObject* value = given[count + static_cast<size_t>(i)];
        if (!take_keyword(operation, PyTuple_GET_ITEM(names, i), value, arguments)) return false;
    }
    return true;
}

PyObject* call_method(PyObject* callable, PyObject* const* given, size_t flagged_count,
                      PyObject* names) {
    const QuickMethod& method = *method_of(callable);
    const auto count = static_cast<size_t>(PyVectorcall_NARGS(flagged_count));
    if (count > 0 && PyObject_TypeCheck(given[0], base_type)) {
        QuickArguments arguments;
        if (take_arguments(*method.operation, given + 1, count - 1, names, arguments)) {
            auto& self = *reinterpret_cast<CommunicatorBase*>(given[0]);
            PyObject* result = quick_call(*method.operation, self, arguments);
            if (result != not_quick()) return result;
        }
    }
    return PyObject_Vectorcall(method.function, given, flagged_count, names);
}

PyObject* bind_method(PyObject* self, PyObject* object, PyObject* /*type*/) {
    if (object == nullptr || object == Py_None) return Py_NewRef(self);
    return PyMethod_New(self, object);
}

// What the method does not have itself (__code__, __defaults__, ...) it has from the function.
PyObject* method_attribute(PyObject* self, PyObject* name) {
    PyObject* value = PyObject_GenericGetAttr(self, name);
    if (value != nullptr || !PyErr_ExceptionMatches(PyExc_AttributeError)) return value;
    PyErr_Clear();
    return PyObject_GetAttr(method_of(self)->function, name);
}

PyObject* represent_method(PyObject* self) {
    return PyObject_Repr(method_of(self)->function);
}

// Pickled by name, as functions are.
PyObject* reduce_method(PyObject* self, PyObject* /*nothing*/) {
    return PyObject_GetAttrString(method_of(self)->function, "__qualname__");
}

int traverse_method(PyObject* self, visitproc visit, void* arg) {
    Py_VISIT(Py_TYPE(self));
    Py_VISIT(method_of(self)->function);
    Py_VISIT(method_of(self)->dict);
    return 0;
}

int clear_method(PyObject* self) {
    Py_CLEAR(method_of(self)->dict);
    return 0;
}

void free_method(PyObject* self) {
    PyTypeObject* type = Py_TYPE(self);
    PyObject_GC_UnTrack(self);
    if (method_of(self)->weak_references != nullptr) PyObject_ClearWeakRefs(self);
    Py_CLEAR(method_of(self)->function);
    Py_CLEAR(method_of(self)->dict);
    type->tp_free(self);
    Py_DECREF(type);
}

PyTypeObject* make_method_type() {
    static PyMemberDef members[] = {
        {"__vectorcalloffset__", T_PYSSIZET, offsetof(QuickMethod, vectorcall), READONLY, nullptr},
        {"__dictoffset__", T_PYSSIZET, offsetof(QuickMethod, dict), READONLY, nullptr},
        {"__weaklistoffset__", T_PYSSIZET, offsetof(QuickMethod, weak_references), READONLY,
         nullptr},
        {nullptr, 0, 0, 0, nullptr}};
    static PyMethodDef methods[] = {{"__reduce__", &reduce_method, METH_NOARGS, nullptr},
                                    {nullptr, nullptr, 0, nullptr}};
    static PyGetSetDef properties[] = {
        {"__dict__", &PyObject_GenericGetDict, &PyObject_GenericSetDict, nullptr, nullptr},
        {nullptr, nullptr, nullptr, nullptr, nullptr}};
    static PyType_Slot slots[] = {{Py_tp_call, reinterpret_cast<void*>(&PyVectorcall_Call)},
                                  {Py_tp_descr_get, reinterpret_cast<void*>(&bind_method)},
                                  {Py_tp_getattro, reinterpret_cast<void*>(&method_attribute)},
                                  {Py_tp_repr, reinterpret_cast<void*>(&represent_method)},
                                  {Py_tp_traverse, reinterpret_cast<void*>(&traverse_method)},
                                  {Py_tp_clear, reinterpret_cast<void*>(&clear_method)},
                                  {Py_tp_dealloc, reinterpret_cast<void*>(&free_method)},
                                  {Py_tp_members, members},
                                  {Py_tp_methods, methods},
                                  {Py_tp_getset, properties},
                                  {0, nullptr}};
    static PyType_Spec spec = {"pycomm._core.QuickMethod", sizeof(QuickMethod), 0,
                               Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC |
                                   Py_TPFLAGS_HAVE_VECTORCALL | Py_TPFLAGS_METHOD_DESCRIPTOR |
                                   Py_TPFLAGS_DISALLOW_INSTANTIATION,
                               slots};
    return reinterpret_cast<PyTypeObject*>(PyType_FromSpec(&spec));
}

// The decorated function; `functools.update_wrapper` gives the object the function's names.
py::object make_method(const QuickOperation& operation, const py::object& function) {
    auto method = py::reinterpret_steal<py::object>(method_type->tp_alloc(method_type, 0));
    if (!method) throw py::error_already_set();
    QuickMethod& self = *method_of(method.ptr());
    self.vectorcall = &call_method;
    self.operation = &operation;
    self.function = Py_NewRef(function.ptr());
    py::module_::import("functools").attr("update_wrapper")(method, function);
    return method;
}

py::cpp_function quick(const std::string& name) {
    const QuickOperation* operation = find_operation(name.c_str());
    if (operation == nullptr) throw py::value_error("no short way for " + name);
    return py::cpp_function(
        [operation](const py::object& function) { return make_method(*operation, function); },
        py::arg("function"));
}

// ---- The base class. ----

CommunicatorBase* base_of(PyObject* object) {
    return reinterpret_cast<CommunicatorBase*>(object);
}

PyObject* new_base(PyTypeObject* type, PyObject* /*arguments*/, PyObject* /*names*/) {
    PyObject* self = type->tp_alloc(type, 0);
    if (self != nullptr) new (&base_of(self)->core) std::shared_ptr<Communicator>();
    return self;
}

int init_base(PyObject* self, PyObject* arguments, PyObject* names) {
    PyObject* core = nullptr;
    if (names != nullptr || !PyArg_ParseTuple(arguments, "O", &core)) {
        if (PyErr_Occurred() == nullptr) PyErr_SetString(PyExc_TypeError, "expected a core");
        return -1;
    }
    // Calls on other threads may be using the one that is there.
    if (base_of(self)->core != nullptr) {
        PyErr_SetString(PyExc_TypeError, "a communicator is made once");
        return -1;
    }
    try {
        base_of(self)->core = py::handle(core).cast<std::shared_ptr<Communicator>>();
    } catch (const py::cast_error& error) {
        PyErr_SetString(PyExc_TypeError, error.what());
        return -1;
    }
    return 0;
}

void free_base(PyObject* self) {
    PyTypeObject* type = Py_TYPE(self);
    base_of(self)->core.~shared_ptr();
    type->tp_free(self);
    Py_DECREF(type);
}

PyObject* begin_group(PyObject* self, PyObject* /*nothing*/) {
    ++base_of(self)->groups;
    Py_RETURN_NONE;
}

PyObject* end_group(PyObject* self, PyObject* /*nothing*/) {
    --base_of(self)->groups;
    Py_RETURN_NONE;
}

PyTypeObject* make_base_type() {
    static PyMethodDef methods[] = {
        {"_begin_group", &begin_group, METH_NOARGS, "Calls take the long way until _end_group()."},
        {"_end_group", &end_group, METH_NOARGS, nullptr},
        {nullptr, nullptr, 0, nullptr}};
    static PyType_Slot slots[] = {{Py_tp_new, reinterpret_cast<void*>(&new_base)},
                                  {Py_tp_init, reinterpret_cast<void*>(&init_base)},
                                  {Py_tp_dealloc, reinterpret_cast<void*>(&free_base)},
                                  {Py_tp_methods, methods},
                                  {0, nullptr}};
    static PyType_Spec spec = {"pycomm._core.CommunicatorBase", sizeof(CommunicatorBase), 0,
                               Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE, slots};
    return reinterpret_cast<PyTypeObject*>(PyType_FromSpec(&spec));
}

}  // namespace

void bind_quick_calls(py::module_& module) {
    find_numpy();
    make_names();
    base_type = make_base_type();
    method_type = make_method_type();
    if (base_type == nullptr || method_type == nullptr) throw py::error_already_set();
    module.attr("CommunicatorBase") = py::handle(reinterpret_cast<PyObject*>(base_type));
    module.def("quick", &quick, py::arg("name"),
               "Decorates the method of an operation: calls with plain arguments go straight to "
               "the core, all others to the function.");
    module.def("quick_calls", &quick_calls, "How many calls of this process went straight.");
}

}  // namespace pycomm::bindings
