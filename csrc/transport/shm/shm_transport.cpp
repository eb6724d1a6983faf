// A mapped transport over a memfd; the end of a peer's process shows on its pidfd.
#include "transport/shm/shm_transport.h"

#include <poll.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <vector>

#include "transport/mapped/mapped_transport.h"
#include "transport/shm/shared_heap.h"

namespace pycomm {
namespace {

// Watches one process by its pidfd, or by signal 0 on kernels without pidfd_open.
class ProcessWatch {
  public:
    explicit ProcessWatch(pid_t pid)
        : pid_(pid), pidfd_(static_cast<int>(syscall(SYS_pidfd_open, pid, 0))) {
        gone_ = pidfd_ < 0 && errno == ESRCH;
    }
    ProcessWatch(ProcessWatch&& other) noexcept
        : pid_(other.pid_), pidfd_(std::exchange(other.pidfd_, -1)), gone_(other.gone_) {}
    ProcessWatch& operator=(ProcessWatch&&) = delete;
    ~ProcessWatch() {
        if (pidfd_ >= 0) ::close(pidfd_);
    }

    bool running() {
        if (gone_) return false;
        if (pidfd_ >= 0) {
            pollfd entry{pidfd_, POLLIN, 0};
            gone_ = poll(&entry, 1, 0) == 1;
        } else {
            gone_ = kill(pid_, 0) == -1 && errno == ESRCH;
        }
        return !gone_;
    }

  private:
    pid_t pid_;
    int pidfd_;
    bool gone_ = false;
};

class ShmTransport final : public MappedTransport {
  public:
    ShmTransport(int rank, const Layout& layout, std::shared_ptr<Region> region,
                 std::vector<ProcessWatch> watches)
        : MappedTransport(rank, layout, region->data()),
          region_(std::move(region)),
          watches_(std::move(watches)) {}
    ~ShmTransport() override {
        // In a child of fork the rank is still the parent's.
        if (getpid() == owner_) leave_group();
    }

    const char* name() const override { return "shm"; }
    bool alive(int peer) override {
        return MappedTransport::alive(peer) && watches_[static_cast<size_t>(peer)].running();
    }
    void open_heap(Bootstrap& bootstrap, const Deadline& deadline) override {
        size_t part = 0;
        auto region = make_heap_region(bootstrap, part, deadline);
        heap_ = std::make_shared<SharedHeap>(std::move(region), part * static_cast<size_t>(rank()),
                                             part);
        opened_.store(heap_.get(), std::memory_order_release);
        bootstrap.all_gather("", deadline);  // from here on peers may locate
    }
    std::shared_ptr<Heap> heap() override { return heap_; }
    // Pages of the heap have the same offset in the mapping of every rank.
    std::optional<MappedPlace> locate(const void* data, size_t bytes) const override {
        const SharedHeap* heap = opened_.load(std::memory_order_acquire);
        const auto* first = static_cast<const std::byte*>(data);
        if (heap == nullptr || bytes == 0 || !heap->owns(first) || !heap->owns(first + bytes - 1)) {
            return std::nullopt;
        }
        return MappedPlace{0, static_cast<uint64_t>(first - heap->base())};
    }
    std::byte* peer_memory(int /*peer*/, const MappedPlace& place) const override {
        return opened_.load(std::memory_order_acquire)->base() + place.offset;
    }

  private:
    const pid_t owner_ = getpid();
    std::shared_ptr<Region> region_;
    std::shared_ptr<SharedHeap> heap_;
    // The same, for a driver that looks while another thread opens it.
    std::atomic<const SharedHeap*> opened_{nullptr};
    std::vector<ProcessWatch> watches_;
};

}  // namespace

std::unique_ptr<Transport> make_shm_transport(Bootstrap& bootstrap, int64_t buffer_bytes,
                                              const Deadline& deadline) {
    std::vector<ProcessWatch> watches;
    for (const std::string& pid : bootstrap.all_gather(std::to_string(getpid()), deadline)) {
        watches.emplace_back(static_cast<pid_t>(std::strtol(pid.c_str(), nullptr, 10)));
    }
    const Layout layout(bootstrap.size(), buffer_bytes);
    return std::make_unique<ShmTransport>(
        bootstrap.rank(), layout, make_shared_region(bootstrap, layout.total_bytes(), deadline),
        std::move(watches));
}

}  // namespace pycomm
