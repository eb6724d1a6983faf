// NumPy's allocator hook (NEP 49), so that NumPy's own arrays lie in symmetric memory.
//
// A handler is a table of functions with a context, in a capsule that NumPy keeps with every array
// it allocated through it. NumPy's C functions are reached through its table of them, whose places
// are part of its ABI, so that building needs no NumPy headers.
#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>

#include "base/error.h"
#include "bindings/bindings.h"
#include "comm/communicator.h"

namespace pycomm::bindings {
namespace {

// As NumPy declares them (version 1 of the handler).
struct NumpyAllocator {
    void* context;
    void* (*malloc)(void* context, size_t bytes);
    void* (*calloc)(void* context, size_t count, size_t element_bytes);
    void* (*realloc)(void* context, void* memory, size_t bytes);
    void (*free)(void* context, void* memory, size_t bytes);
};
struct NumpyHandler {
    char name[127];
    uint8_t version;
    NumpyAllocator allocator;
};
constexpr const char* capsule_name = "mem_handler";
constexpr size_t set_handler_place = 304;  // PyDataMem_SetHandler

// What a handler works with.
struct Context {
    std::shared_ptr<Heap> heap;
    size_t threshold;
};

// From the heap, or where that has no room from where NumPy's memory comes otherwise.
void* obtain(void* context, size_t bytes, bool zeroed) {
    const auto& self = *static_cast<Context*>(context);
    if (bytes >= self.threshold) {
        std::string why;
        void* memory = self.heap->allocate(bytes, zeroed, nullptr, why);
        if (memory != nullptr) return memory;
    }
    return zeroed ? std::calloc(1, bytes) : std::malloc(bytes);
}

void* handler_malloc(void* context, size_t bytes) {
    return obtain(context, bytes, false);
}

void* handler_calloc(void* context, size_t count, size_t element_bytes) {
    size_t bytes = 0;
    if (__builtin_mul_overflow(count, element_bytes, &bytes)) return nullptr;
    return obtain(context, bytes, true);
}

void handler_free(void* context, void* memory, size_t /*bytes*/) {
    const auto& self = *static_cast<Context*>(context);
    if (self.heap->owns(memory)) {
        self.heap->deallocate(memory);
    } else {
        std::free(memory);
    }
}

void* handler_realloc(void* context, void* memory, size_t bytes) {
    const auto& self = *static_cast<Context*>(context);
    if (memory == nullptr) return obtain(context, bytes, false);
    const bool from_heap = self.heap->owns(memory);
    if (!from_heap && bytes < self.threshold) return std::realloc(memory, bytes);
    const size_t had = from_heap ? self.heap->size_of(memory) : 0;
    if (from_heap && had == 0) return nullptr;
    void* fresh = obtain(context, bytes, false);
    if (fresh == nullptr) return nullptr;
    if (from_heap) {
        std::memcpy(fresh, memory, std::min(bytes, had));
        self.heap->deallocate(memory);
    } else {
        // How long it is, is not known, but that it can be made as long as `bytes`.
        void* longer = std::realloc(memory, bytes);
        if (longer == nullptr) {
            handler_free(context, fresh, bytes);
            return nullptr;
        }
        std::memcpy(fresh, longer, bytes);
        std::free(longer);
    }
    return fresh;
}

void destroy(PyObject* capsule) {
    auto* handler = static_cast<NumpyHandler*>(PyCapsule_GetPointer(capsule, capsule_name));
    delete static_cast<Context*>(handler->allocator.context);
    delete handler;
}

// Null (None) when the communicator has no heap of its own.
py::object make_handler(Communicator& communicator, size_t threshold) {
    auto heap = without_gil([&] { return communicator.heap(signal_hook()); });
    if (!heap) return py::none();
    auto* handler = new NumpyHandler{};
    std::strcpy(handler->name, "pycomm symmetric memory");
    handler->version = 1;
    handler->allocator = {new Context{std::move(heap), threshold}, handler_malloc, handler_calloc,
                          handler_realloc, handler_free};
    PyObject* capsule = PyCapsule_New(handler, capsule_name, &destroy);
    if (capsule == nullptr) throw py::error_already_set();
    return py::reinterpret_steal<py::object>(capsule);
}

// NumPy's table of C functions.
void** numpy_functions() {
    const py::module_ numpy = py::module_::import("numpy");
    const bool second = py::str(numpy.attr("__version__")).cast<std::string>()[0] >= '2';
    const py::module_ multiarray =
        py::module_::import(second ? "numpy._core.multiarray" : "numpy.core.multiarray");
    const py::object table = multiarray.attr("_ARRAY_API");
    auto** functions = static_cast<void**>(PyCapsule_GetPointer(table.ptr(), nullptr));
    if (functions == nullptr) throw py::error_already_set();
    return functions;
}

// Makes NumPy use `handler` in this context (thread or task); returns the one it used before.
py::object set_handler(const py::object& handler) {
    // Found once: a program that is ending can import nothing any more. Kept outside a static's own
    // lock, inside which the import could wait for the GIL.
    static void** functions = nullptr;
    if (functions == nullptr) functions = numpy_functions();
    using SetHandler = PyObject* (*)(PyObject*);
    const auto function = reinterpret_cast<SetHandler>(functions[set_handler_place]);
    PyObject* before = function(handler.is_none() ? nullptr : handler.ptr());
    if (before == nullptr) throw py::error_already_set();
    return py::reinterpret_steal<py::object>(before);
}

}  // namespace

void bind_allocator(py::module_& module) {
    module.def("make_handler", &make_handler, py::arg("communicator"), py::arg("threshold"),
               "A NumPy memory handler on the heap of `communicator`; None when it has none. "
               "Collective.");
    module.def("set_handler", &set_handler, py::arg("handler"),
               "Makes NumPy allocate with `handler` (None: its own) in this context; returns the "
               "handler used before.");
    module.def(
        "is_symmetric",
        [](Communicator& communicator, const py::array& array) {
            return communicator.is_symmetric(array.data(), static_cast<size_t>(array.nbytes()));
        },
        py::arg("communicator"), py::arg("array"),
        "Whether peers can reach the memory of a contiguous array.");
}

}  // namespace pycomm::bindings
