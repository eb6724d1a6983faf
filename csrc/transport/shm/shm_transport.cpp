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
#include "transport/shm/process_memory.h"
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

    pid_t process() const { return pid_; }

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
    OneCopy one_copy() const override { return one_copy_; }
    void set_one_copy(OneCopy one_copy) { one_copy_ = std::move(one_copy); }
    ArrayPlace place_of(const void* data, size_t bytes) const override {
        const ArrayPlace place = MappedTransport::place_of(data, bytes);
        if (place.kind != ArrayPlace::Kind::hidden || !one_copy_.addresses) return place;
        return {reinterpret_cast<uintptr_t>(data), 0, ArrayPlace::Kind::address};
    }
    // The number of a process that has ended may belong to another one: whoever works with it makes
    // sure that the peer is still there, a writer before and a reader after it.
    bool read_array(int peer, const ArrayPlace& place, size_t offset, void* to, size_t bytes,
                    bool streams) override {
        if (place.kind != ArrayPlace::Kind::address) {
            return MappedTransport::read_array(peer, place, offset, to, bytes, streams);
        }
        ProcessWatch& watch = watches_[static_cast<size_t>(peer)];
        return read_process(watch.process(), place.offset + offset, to, bytes) && watch.running();
    }
    bool write_piece(int peer, const HandoverLine& line, int slot, const void* from, size_t bytes,
                     bool streams) override {
        if (line.target_kind != static_cast<uint32_t>(ArrayPlace::Kind::address)) {
            return MappedTransport::write_piece(peer, line, slot, from, bytes, streams);
        }
        ProcessWatch& watch = watches_[static_cast<size_t>(peer)];
        return watch.running() && write_process(watch.process(), line.target[slot], from, bytes);
    }

  private:
    const pid_t owner_ = getpid();
    OneCopy one_copy_;
    std::shared_ptr<Region> region_;
    std::shared_ptr<SharedHeap> heap_;
    // The same, for a driver that looks while another thread opens it.
    std::atomic<const SharedHeap*> opened_{nullptr};
    std::vector<ProcessWatch> watches_;
};

}  // namespace

std::unique_ptr<Transport> make_shm_transport(Bootstrap& bootstrap, int64_t buffer_bytes,
                                              const std::string& cma, const Deadline& deadline) {
    std::vector<ProcessWatch> watches;
    std::vector<pid_t> processes;
    for (const std::string& pid : bootstrap.all_gather(std::to_string(getpid()), deadline)) {
        processes.push_back(static_cast<pid_t>(std::strtol(pid.c_str(), nullptr, 10)));
        watches.emplace_back(processes.back());
    }
    const Layout layout(bootstrap.size(), buffer_bytes);
    auto transport = std::make_unique<ShmTransport>(
        bootstrap.rank(), layout, make_shared_region(bootstrap, layout.total_bytes(), deadline),
        std::move(watches));
    transport->set_one_copy(try_one_copy(bootstrap, *transport, cma, processes, deadline));
    return transport;
}

}  // namespace pycomm
