// MPI as the launcher of pycomm-perf, as a bootstrap, and as the library to compare with, in C.
#include <mpi.h>

#include <algorithm>
#include <limits>
#include <optional>

#include "base/error.h"
#include "tools/system.h"

namespace pycomm::tools {
namespace {

// MPI's own errors end the program (MPI_ERRORS_ARE_FATAL), so no return code is looked at.

int size_of_world() {
    int size = 0;
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    return size;
}

int rank_in_world() {
    int rank = 0;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    return rank;
}

class MpiBootstrap final : public Bootstrap {
  public:
    int rank() const override { return rank_; }
    int size() const override { return size_; }

    // MPI knows no deadlines; the program's alarm ends a wait that takes too long.
    std::vector<std::string> all_gather(const std::string& blob,
                                        const Deadline& /*deadline*/) override {
        const auto ranks = static_cast<size_t>(size_);
        const int own = static_cast<int>(blob.size());
        std::vector<int> lengths(ranks);
        MPI_Allgather(&own, 1, MPI_INT, lengths.data(), 1, MPI_INT, MPI_COMM_WORLD);
        std::vector<int> starts(ranks);
        int total = 0;
        for (size_t rank = 0; rank < ranks; ++rank) {
            starts[rank] = total;
            total += lengths[rank];
        }
        std::string all(static_cast<size_t>(total), '\0');
        MPI_Allgatherv(blob.data(), own, MPI_BYTE, all.data(), lengths.data(), starts.data(),
                       MPI_BYTE, MPI_COMM_WORLD);
        std::vector<std::string> blobs;
        for (size_t rank = 0; rank < ranks; ++rank) {
            blobs.push_back(
                all.substr(static_cast<size_t>(starts[rank]), static_cast<size_t>(lengths[rank])));
        }
        return blobs;
    }

  private:
    int rank_ = rank_in_world();
    int size_ = size_of_world();
};

// None where standard MPI has no such type.
std::optional<MPI_Datatype> mpi_type(DataType dtype) {
    switch (dtype) {
        case DataType::int8:
            return MPI_INT8_T;
        case DataType::int16:
            return MPI_INT16_T;
        case DataType::int32:
            return MPI_INT32_T;
        case DataType::int64:
            return MPI_INT64_T;
        case DataType::uint8:
            return MPI_UINT8_T;
        case DataType::uint16:
            return MPI_UINT16_T;
        case DataType::uint32:
            return MPI_UINT32_T;
        case DataType::uint64:
            return MPI_UINT64_T;
        case DataType::float32:
            return MPI_FLOAT;
        case DataType::float64:
            return MPI_DOUBLE;
        default:
            return std::nullopt;
    }
}

class MpiSystem final : public System {
  public:
    const std::string& name() const override { return name_; }

    std::string obstacle(const Case& c) const override {
        if (reduces(c.kind) && !mpi_type(c.dtype)) {
            return concat("MPI has no type for ", dtype_name(c.dtype));
        }
        if (c.elements > std::numeric_limits<int>::max()) return "more elements than an int counts";
        return {};
    }

    void settle() override { MPI_Barrier(MPI_COMM_WORLD); }

    std::function<void()> bind(const Case& c, const Buffers& buffers) override {
        MPI_Datatype type = mpi_type(c.dtype).value_or(MPI_UINT16_T);  // moved only: 16-bit floats
        const int all = static_cast<int>(c.elements);
        const int slice = static_cast<int>(c.slice());
        const int root = c.root;
        void* in = buffers.input.data;
        void* out = buffers.output.data;
        MPI_Comm world = MPI_COMM_WORLD;
        switch (c.kind) {
            case OpKind::all_reduce:
                return [=] { MPI_Allreduce(in, out, all, type, MPI_SUM, world); };
            case OpKind::reduce:
                return [=] { MPI_Reduce(in, out, all, type, MPI_SUM, root, world); };
            case OpKind::reduce_scatter:
                return [=] { MPI_Reduce_scatter_block(in, out, slice, type, MPI_SUM, world); };
            case OpKind::all_gather:
                return [=] { MPI_Allgather(in, slice, type, out, slice, type, world); };
            case OpKind::broadcast:
                return [=] { MPI_Bcast(out, all, type, root, world); };
            case OpKind::gather:
                return [=] { MPI_Gather(in, slice, type, out, slice, type, root, world); };
            case OpKind::scatter:
                return [=] { MPI_Scatter(in, slice, type, out, slice, type, root, world); };
            case OpKind::all_to_all:
                return [=] { MPI_Alltoall(in, slice, type, out, slice, type, world); };
            case OpKind::barrier:
                return [=] { MPI_Barrier(world); };
            default:
                break;
        }
        const int peer = 1 - c.rank;
        const auto send = [=] { MPI_Send(in, all, type, peer, 0, world); };
        const auto recv = [=] { MPI_Recv(out, all, type, peer, 0, world, MPI_STATUS_IGNORE); };
        if (!c.takes_part()) return [] {};
        if (c.rank == 0) return [=] { send(), recv(); };
        return [=] { recv(), send(); };
    }

  private:
    // "MPICH 5.0.2", "Intel MPI 2021.18.1": the first line of the library's description, without
    // the words that say nothing.
    static std::string library_name() {
        std::string text(MPI_MAX_LIBRARY_VERSION_STRING, '\0');
        int length = 0;
        MPI_Get_library_version(text.data(), &length);
        text.resize(std::min(static_cast<size_t>(length), text.find_first_of("\n,")));
        std::replace(text.begin(), text.end(), '\t', ' ');
        for (const std::string words : {"(R)", " Library", " Version:", " for Linux* OS"}) {
            for (size_t at; (at = text.find(words)) != std::string::npos;) {
                text.erase(at, words.size());
            }
        }
        const auto spaces = [](char a, char b) { return a == ' ' && b == ' '; };
        text.erase(std::unique(text.begin(), text.end(), spaces), text.end());
        return text;
    }

    std::string name_ = library_name();
};

class Session final : public MpiSession {
  public:
    ~Session() override { MPI_Finalize(); }
    Bootstrap& bootstrap() override { return bootstrap_; }
    System& system() override { return system_; }
    void abort(int code) override { MPI_Abort(MPI_COMM_WORLD, code); }

  private:
    MpiBootstrap bootstrap_;
    MpiSystem system_;
};

}  // namespace

std::unique_ptr<MpiSession> start_mpi() {
    MPI_Init(nullptr, nullptr);
    return std::make_unique<Session>();
}

}  // namespace pycomm::tools
