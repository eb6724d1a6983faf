// The machine's limit, for the benchmarks.
#include "comm/memory_limit.h"

#include "bindings/bindings.h"
#include "comm/communicator.h"

namespace pycomm::bindings {
namespace {

using SharedLimit = std::shared_ptr<MemoryLimit>;

// A call to time; keeps the memory that it moves.
struct LimitCall {
    SharedLimit limit;
    std::function<void()> call;
};

SharedLimit make_limit(const std::shared_ptr<Communicator>& communicator, int64_t bytes) {
    return without_gil(
        [&] { return std::make_shared<MemoryLimit>(*communicator, bytes, signal_hook()); });
}

LimitCall bind(const SharedLimit& limit, int kind, int64_t bytes, int root,
               std::pair<int, int> pair, bool streaming) {
    const Traffic traffic{static_cast<OpKind>(kind), bytes, root, {pair.first, pair.second}};
    return {limit, limit->bind(traffic, streaming ? Stores::streaming : Stores::ordinary)};
}

}  // namespace

void bind_memory_limit(py::module_& module) {
    py::class_<LimitCall>(module, "LimitCall").def("__call__", [](const LimitCall& self) {
        released(self.call);
    });
    py::class_<MemoryLimit, SharedLimit>(module, "MemoryLimit")
        .def(py::init(&make_limit), py::arg("communicator"), py::arg("bytes"))
        .def("bind", &bind, py::arg("kind"), py::arg("bytes"), py::arg("root"), py::arg("pair"),
             py::arg("streaming"))
        .def_property_readonly("shared", &MemoryLimit::shared);
}

}  // namespace pycomm::bindings
