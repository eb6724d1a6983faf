// The store's server, and the three ways in which ranks find each other.
#include "store/bootstrap.h"

#include <pybind11/stl.h>

#include "base/error.h"
#include "bindings/bindings.h"
#include "store/tcp_store.h"

namespace pycomm::bindings {
namespace {

// Blobs exchanged by a Python callable: list_of_bytes = all_gather(bytes). mpi4py provides it.
class CallableBootstrap final : public Bootstrap {
  public:
    CallableBootstrap(int rank, int size, py::function all_gather)
        : rank_(rank), size_(size), all_gather_(std::move(all_gather)) {}
    ~CallableBootstrap() override {
        const py::gil_scoped_acquire gil;
        all_gather_ = py::function();
    }

    int rank() const override { return rank_; }
    int size() const override { return size_; }
    std::vector<std::string> all_gather(const std::string& blob,
                                        const Deadline& /*deadline*/) override {
        const py::gil_scoped_acquire gil;
        auto blobs = all_gather_(py::bytes(blob)).cast<std::vector<std::string>>();
        PYCOMM_CHECK(blobs.size() == static_cast<size_t>(size_), comm,
                     "bootstrap: all_gather returned ", blobs.size(), " blobs for ", size_,
                     " ranks");
        return blobs;
    }

  private:
    int rank_;
    int size_;
    py::function all_gather_;
};

std::shared_ptr<Bootstrap> store_bootstrap(const std::string& host, const std::vector<int>& ports,
                                           int rank, int size, const std::string& token,
                                           const std::string& prefix, double timeout) {
    return without_gil([&]() -> std::shared_ptr<Bootstrap> {
        auto store = std::make_shared<TcpStoreClient>(host, ports, Deadline::after(timeout), token);
        return std::make_shared<StoreBootstrap>(std::move(store), rank, size, prefix);
    });
}

}  // namespace

void bind_bootstrap(py::module_& module) {
    py::class_<TcpStoreServer>(module, "TcpStoreServer")
        .def(py::init<const std::string&, int, const std::string&>(), py::arg("host") = "127.0.0.1",
             py::arg("port") = 0, py::arg("token") = "",
             "Serves a job's store from a thread of its own; port 0 takes any free one.")
        .def_property_readonly("port", &TcpStoreServer::port)
        .def("close", [](TcpStoreServer& self) { without_gil([&] { self.close(); }); });

    py::class_<Bootstrap, std::shared_ptr<Bootstrap>>(module, "Bootstrap")
        .def_property_readonly("rank", &Bootstrap::rank)
        .def_property_readonly("size", &Bootstrap::size)
        .def(
            "all_gather",
            [](Bootstrap& self, const py::bytes& blob, double timeout) {
                const std::string text = blob;
                const auto blobs =
                    without_gil([&] { return self.all_gather(text, Deadline::after(timeout)); });
                py::list result;
                for (const std::string& item : blobs) result.append(py::bytes(item));
                return result;
            },
            py::arg("blob"), py::arg("timeout"));

    module.def("store_bootstrap", &store_bootstrap, py::arg("host"), py::arg("ports"),
               py::arg("rank"), py::arg("size"), py::arg("token"), py::arg("prefix"),
               py::arg("timeout"),
               "Connects to the store behind one of `ports` and meets the other ranks there.");
    module.def(
        "callable_bootstrap",
        [](int rank, int size, py::function all_gather) -> std::shared_ptr<Bootstrap> {
            return std::make_shared<CallableBootstrap>(rank, size, std::move(all_gather));
        },
        py::arg("rank"), py::arg("size"), py::arg("all_gather"),
        "Meets the other ranks through a callable bytes -> list of bytes.");
}

}  // namespace pycomm::bindings
