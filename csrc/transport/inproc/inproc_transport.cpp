// A mapped transport whose memory is an anonymous mapping of this process.
#include "transport/inproc/inproc_transport.h"

#include <sys/mman.h>

#include <cerrno>
#include <charconv>

#include "transport/mapped/mapped_transport.h"
#include "transport/mapped/region.h"

namespace pycomm {
namespace {

class AnonymousRegion final : public Region {
  public:
    explicit AnonymousRegion(size_t bytes) {
        void* memory =
            mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        const int number = errno;
        PYCOMM_CHECK(memory != MAP_FAILED, transport, "cannot map ", bytes,
                     " bytes for ranks as threads: ", errno_text(number));
        data_ = static_cast<std::byte*>(memory);
        bytes_ = bytes;
    }
    ~AnonymousRegion() override { munmap(data_, bytes_); }
};

// Rank 0 allocates; the others copy its shared_ptr, whose address travels through the bootstrap.
// Rank 0 keeps its own alive until all have copied.
std::shared_ptr<Region> share_region(Bootstrap& bootstrap, size_t bytes, const Deadline& deadline) {
    std::shared_ptr<Region> region;
    std::string address;
    if (bootstrap.rank() == 0) {
        try {
            region = std::make_shared<AnonymousRegion>(bytes);
            address = std::to_string(reinterpret_cast<uintptr_t>(&region));
        } catch (const Error& error) {
            address = concat('!', error.what());
        }
    }
    const std::string offered = bootstrap.all_gather(address, deadline)[0];
    if (offered[0] == '!') PYCOMM_FAIL(transport, offered.substr(1));
    if (bootstrap.rank() != 0) {
        uintptr_t pointer = 0;
        std::from_chars(offered.data(), offered.data() + offered.size(), pointer);
        region = *reinterpret_cast<std::shared_ptr<Region>*>(pointer);
    }
    bootstrap.all_gather("", deadline);
    return region;
}

class InprocTransport final : public MappedTransport {
  public:
    InprocTransport(int rank, const Layout& layout, std::shared_ptr<Region> region)
        : MappedTransport(rank, layout, region->data()), region_(std::move(region)) {}
    ~InprocTransport() override { leave_group(); }

    const char* name() const override { return "inproc"; }
    // Threads share all their memory.
    std::optional<MappedPlace> locate(const void* data, size_t /*bytes*/) const override {
        return MappedPlace{0, reinterpret_cast<uintptr_t>(data)};
    }
    std::byte* peer_memory(int /*peer*/, const MappedPlace& place) const override {
        return reinterpret_cast<std::byte*>(static_cast<uintptr_t>(place.offset));
    }

  private:
    std::shared_ptr<Region> region_;
};

}  // namespace

std::unique_ptr<Transport> make_inproc_transport(Bootstrap& bootstrap, int64_t buffer_bytes,
                                                 const Deadline& deadline) {
    const Layout layout(bootstrap.size(), buffer_bytes);
    return std::make_unique<InprocTransport>(
        bootstrap.rank(), layout, share_region(bootstrap, layout.total_bytes(), deadline));
}

}  // namespace pycomm
