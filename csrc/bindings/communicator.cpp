// Communicator and Task for Python. Arguments arrive checked by pycomm/communicator.py; what could
// corrupt memory is checked here again.
#include "comm/communicator.h"

#include <pybind11/stl.h>

#include <exception>
#include <thread>

#include "bindings/bindings.h"
#include "store/bootstrap.h"

namespace pycomm::bindings {
namespace {

using SharedCommunicator = std::shared_ptr<Communicator>;

// A task with what it needs to stay valid: its communicator and the arrays it works on.
struct PyTask {
    SharedCommunicator communicator;
    std::shared_ptr<Task> task;
    py::object input;
    py::object output;

    void raise_error() const {
        if (task->finished() && task->error()) std::rethrow_exception(task->error());
    }
};

SharedCommunicator create(Bootstrap& bootstrap, double timeout, double limit) {
    Env env = read_env();
    env.timeout = timeout;
    return without_gil([&]() -> SharedCommunicator {
        return Communicator::create(bootstrap, env, Deadline::after(limit));
    });
}

std::vector<SharedCommunicator> thread_world(int size, double timeout) {
    Env env = read_env();
    env.timeout = timeout;
    const py::gil_scoped_release release;
    const auto bootstraps = InprocGroup::create(size);
    std::vector<SharedCommunicator> communicators(bootstraps.size());
    std::vector<std::exception_ptr> errors(bootstraps.size());
    std::vector<std::thread> threads;
    for (size_t rank = 0; rank < bootstraps.size(); ++rank) {
        threads.emplace_back([&, rank] {
            try {
                communicators[rank] = Communicator::create(*bootstraps[rank], env);
            } catch (...) {
                errors[rank] = std::current_exception();
            }
        });
    }
    for (auto& thread : threads) thread.join();
    for (const auto& error : errors) {
        if (error) std::rethrow_exception(error);
    }
    return communicators;
}

CollectiveRequest make_request(OpKind kind, const py::object& input, const py::object& output,
                               ReduceOp op, int root) {
    CollectiveRequest request;
    request.kind = kind;
    request.op = op;
    request.root = root;
    // A broadcast and a one-sided call have one array only; both buffers carry its dtype.
    const Buffer in = buffer_of(input, false, DataType::uint8, "the input");
    request.output = buffer_of(output, true, in.dtype, "the output");
    request.input = input.is_none() ? Buffer{nullptr, 0, request.output.dtype} : in;
    // The root of a broadcast gives its array as input, which is only read.
    if (kind == OpKind::broadcast && output.is_none()) request.output = request.input;
    if (kind == OpKind::broadcast) request.input = request.output;
    PYCOMM_CHECK(request.input.dtype == request.output.dtype, argument, "the input is ",
                 dtype_name(request.input.dtype), " but the output is ",
                 dtype_name(request.output.dtype));
    return request;
}

PyTask make_collective(const SharedCommunicator& self, int kind, const py::object& input,
                       const py::object& output, int op, int root, std::vector<int64_t> counts,
                       bool explicit_counts, std::vector<int64_t> recv_counts, int64_t rows,
                       int64_t row_elements, Communicator::Timeout timeout) {
    CollectiveRequest request =
        make_request(static_cast<OpKind>(kind), input, output, static_cast<ReduceOp>(op), root);
    if (request.kind == OpKind::all_to_all) {
        request.send_counts = std::move(counts);
        request.recv_counts = std::move(recv_counts);
    } else {
        request.counts = std::move(counts);
    }
    request.explicit_counts = explicit_counts;
    request.rows = rows;
    request.row_elements = row_elements;
    return {self, self->collective(std::move(request), timeout), input, output};
}

PyTask make_message(const SharedCommunicator& self, bool is_send, const py::object& array, int peer,
                    int tag, Communicator::Timeout timeout) {
    const OpKind kind = is_send ? OpKind::send : OpKind::recv;
    const Buffer buffer = buffer_of(array, !is_send, DataType::uint8, "the array");
    return {self, self->point_to_point(kind, buffer, peer, tag, timeout), array, py::none()};
}

void run(Communicator& self, const std::vector<PyTask*>& tasks) {
    std::vector<std::shared_ptr<Task>> list;
    list.reserve(tasks.size());
    for (const PyTask* task : tasks) list.push_back(task->task);
    without_gil([&] { self.run(list, signal_hook()); });
}

// The short way of the commonest calls: one contiguous input, one output, blocking.
void run_simple(const SharedCommunicator& self, int kind, const py::object& input,
                const py::object& output, int op, int root, Communicator::Timeout timeout) {
    CollectiveRequest request =
        make_request(static_cast<OpKind>(kind), input, output, static_cast<ReduceOp>(op), root);
    released([&] { self->run_now(std::move(request), timeout, signal_hook()); });
}

bool wait(const PyTask& self, std::optional<double> seconds) {
    const bool finished =
        without_gil([&] { return self.communicator->wait(*self.task, seconds, signal_hook()); });
    self.raise_error();
    return finished;
}

py::array symmetric(const SharedCommunicator& self, int64_t bytes) {
    const auto memory = without_gil([&] { return self->symmetric(bytes, signal_hook()); });
    auto* holder = new std::shared_ptr<std::byte>(memory);
    const py::capsule owner(
        holder, [](void* pointer) { delete static_cast<std::shared_ptr<std::byte>*>(pointer); });
    return py::array(py::dtype::of<uint8_t>(), {static_cast<py::ssize_t>(bytes)}, {1}, memory.get(),
                     owner);
}

py::dict enumerator_table(const std::vector<std::pair<const char*, int>>& entries) {
    py::dict table;
    for (const auto& [name, value] : entries) table[name] = value;
    return table;
}

}  // namespace

void bind_communicator(py::module_& module) {
#define PYCOMM_ENTRY(name) {#name, static_cast<int>(OpKind::name)},
    module.attr("KINDS") = enumerator_table({PYCOMM_KIND_LIST(PYCOMM_ENTRY)});
#undef PYCOMM_ENTRY
#define PYCOMM_ENTRY(name) {#name, static_cast<int>(ReduceOp::name)},
    module.attr("OPS") = enumerator_table({PYCOMM_OP_LIST(PYCOMM_ENTRY)});
#undef PYCOMM_ENTRY
    module.def(
        "algorithms_for",
        [](int kind) {
            std::vector<std::string> names;
            for (const Algorithm algorithm : algorithms_for(static_cast<OpKind>(kind))) {
                names.emplace_back(algorithm_name(algorithm));
            }
            return names;
        },
        py::arg("kind"), "The schedules that there are for a kind of operation.");
    module.def(
        "keeps_order",
        [](int kind, const std::string& algorithm) {
            const auto kind_of = static_cast<OpKind>(kind);
            return keeps_order(kind_of, parse_choice(kind_name(kind_of), algorithm).second);
        },
        py::arg("kind"), py::arg("algorithm"),
        "Whether sums are the same, bit by bit, as by the algorithms that are chosen by "
        "themselves.");
    module.def("machine_name", &machine_name, "This machine, as profiles name it.");
    module.def(
        "read_profile",
        [](const std::string& path) {
            const std::string text = read_profile(path);
            parse_profile(text);
            return text;
        },
        py::arg("path"),
        "The text of a profile. Raises ArgumentError that says what is wrong with the file.");
    module.attr("NO_OP") = static_cast<int>(ReduceOp::none);

    py::class_<PyTask>(module, "Task")
        .def("wait", &wait, py::arg("seconds"),
             "Blocks until it is finished, at most `seconds` (None: without limit of its own); "
             "returns whether it is. Raises the operation's error.")
        .def("done", [](const PyTask& self) { return self.task->finished(); })
        .def("succeeded",
             [](const PyTask& self) { return self.task->finished() && !self.task->error(); })
        .def("raise_error", &PyTask::raise_error)
        .def("waiting_on",
             [](const PyTask& self) { return self.communicator->waiting_on(*self.task); });

    py::class_<Communicator, SharedCommunicator>(module, "Communicator")
        .def_static("create", &create, py::arg("bootstrap"), py::arg("timeout"), py::arg("limit"))
        .def_static("thread_world", &thread_world, py::arg("size"), py::arg("timeout"))
        .def_property_readonly("rank", &Communicator::rank)
        .def_property_readonly("size", &Communicator::size)
        .def_property_readonly("local_rank",
                               [](const Communicator& c) { return c.topology().local_rank; })
        .def_property_readonly("local_size",
                               [](const Communicator& c) { return c.topology().local_size; })
        .def_property_readonly("node", [](const Communicator& c) { return c.topology().node; })
        .def_property_readonly("num_nodes",
                               [](const Communicator& c) { return c.topology().num_nodes; })
        .def_property_readonly("transport", &Communicator::transport_name)
        .def_property_readonly("timeout", &Communicator::timeout)
        .def("make_collective", &make_collective, py::arg("kind"), py::arg("input"),
             py::arg("output"), py::arg("op"), py::arg("root"), py::arg("counts"),
             py::arg("explicit_counts"), py::arg("recv_counts"), py::arg("rows"),
             py::arg("row_elements"), py::arg("timeout"))
        .def("make_message", &make_message, py::arg("is_send"), py::arg("array"), py::arg("peer"),
             py::arg("tag"), py::arg("timeout"))
        .def("run_simple", &run_simple, py::arg("kind"), py::arg("input"), py::arg("output"),
             py::arg("op"), py::arg("root"), py::arg("timeout"))
        .def("run", &run, py::arg("tasks"))
        .def(
            "submit", [](Communicator& self, const PyTask& task) { self.submit(task.task); },
            py::arg("task"))
        .def(
            "split",
            [](Communicator& self, std::optional<int> color, int key) -> SharedCommunicator {
                return without_gil(
                    [&]() -> SharedCommunicator { return self.split(color, key, signal_hook()); });
            },
            py::arg("color"), py::arg("key"))
        .def("symmetric", &symmetric, py::arg("bytes"))
        .def(
            "choice",
            [](const Communicator& self, int kind, int64_t bytes) {
                return algorithm_name(self.choice(static_cast<OpKind>(kind), bytes));
            },
            py::arg("kind"), py::arg("bytes"))
        .def("use_profile", &Communicator::use_profile, py::arg("text"))
        .def(
            "abort",
            [](Communicator& self, const std::string& reason) {
                without_gil([&] { self.abort(reason); });
            },
            py::arg("reason"))
        .def("close", [](Communicator& self) { without_gil([&] { self.close(); }); })
        .def("close_with_process",
             [](Communicator& self) { without_gil([&] { self.close_with_process(); }); });
}

}  // namespace pycomm::bindings
