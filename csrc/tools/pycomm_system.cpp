// The operations through Communicator: what a C++ program would call.
#include "tools/system.h"

namespace pycomm::tools {
namespace {

class PycommSystem final : public System {
  public:
    explicit PycommSystem(Communicator& comm) : comm_(comm) {}

    const std::string& name() const override { return name_; }
    std::string obstacle(const Case& /*c*/) const override { return {}; }
    void settle() override {}

    std::function<void()> bind(const Case& c, const Buffers& buffers) override {
        if (c.kind == OpKind::send) return bind_ping_pong(c, buffers);
        return [this, request = make_request(c, buffers)] {
            comm_.run_now(request, std::nullopt, nullptr);
        };
    }

  private:
    static CollectiveRequest make_request(const Case& c, const Buffers& buffers) {
        CollectiveRequest request;
        request.kind = c.kind;
        request.input = buffers.input;
        request.output = buffers.output;
        if (c.kind == OpKind::broadcast) request.input = buffers.output;
        if (reduces(c.kind)) request.op = ReduceOp::sum;
        if (rooted(c.kind)) request.root = c.root;
        if (!splits(c.kind)) return request;

        const std::vector<int64_t> slices(static_cast<size_t>(c.ranks), c.slice());
        if (c.kind == OpKind::all_to_all) {
            request.send_counts = request.recv_counts = slices;
        } else if (c.kind != OpKind::scatter || c.is_root()) {
            request.counts = slices;
        }
        if (c.kind == OpKind::all_gather || c.kind == OpKind::gather) return request;
        const bool part = c.kind == OpKind::scatter && !c.is_root();
        request.rows = part ? c.slice() : c.elements;
        request.row_elements = 1;
        return request;
    }

    std::function<void()> bind_ping_pong(const Case& c, const Buffers& buffers) {
        const int peer = 1 - c.rank;
        const auto send = [this, peer, input = buffers.input] {
            comm_.run_now({OpKind::send, input, peer, 0}, std::nullopt, nullptr);
        };
        const auto recv = [this, peer, output = buffers.output] {
            comm_.run_now({OpKind::recv, output, peer, 0}, std::nullopt, nullptr);
        };
        if (!c.takes_part()) return [] {};
        if (c.rank == 0) return [send, recv] { send(), recv(); };
        return [send, recv] { recv(), send(); };
    }

    Communicator& comm_;
    std::string name_ = "pycomm";
};

}  // namespace

std::unique_ptr<System> make_pycomm_system(Communicator& comm) {
    return std::make_unique<PycommSystem>(comm);
}

}  // namespace pycomm::tools
