// The transport object: channels, sleeping, the life of peers, faults, and a careful end.
#include "transport/tcp/tcp_transport.h"

#include <linux/sockios.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <limits>
#include <mutex>
#include <optional>
#include <vector>

#include "base/fork.h"
#include "transport/tcp/fault_wire.h"
#include "transport/tcp/mesh.h"
#include "transport/tcp/tcp_channel.h"

namespace pycomm {
namespace {

using Clock = Deadline::Clock;
using std::chrono::milliseconds;

constexpr size_t max_capacity = 256 << 10;  // of one channel's buffer; larger ones leave the cache
constexpr double flush_seconds = 2;
constexpr double flush_seconds_broken = 0.1;
constexpr milliseconds fault_check_interval{1};
// Streams of an ended peer are known to be complete when their ends have arrived; a path that loses
// packets may delay that, but not for ever.
constexpr milliseconds end_patience{2000};

size_t channel_capacity(int64_t buffer_bytes, int size) {
    if (size == 1) return 0;
    const int64_t channels = int64_t{stream_count} * (size - 1);
    const int64_t share = buffer_bytes / channels / 64 * 64;
    PYCOMM_CHECK(share >= static_cast<int64_t>(TcpChannel::min_capacity), argument,
                 "PYCOMM_BUFFER_BYTES=", buffer_bytes, " is too small for ", size,
                 " ranks over TCP, which need at least ",
                 channels * static_cast<int64_t>(TcpChannel::min_capacity));
    return std::min(static_cast<size_t>(share), max_capacity);
}

// The control socket of one peer.
struct Control {
    UniqueFd fd;
    std::string in;
    bool ended = false;
    Clock::time_point ended_at;
};

class TcpTransport final : public Transport {
  public:
    TcpTransport(int rank, std::vector<PeerLinks> links, size_t capacity);
    ~TcpTransport() override;

    const char* name() const override { return "tcp"; }
    int rank() const override { return rank_; }
    int size() const override { return static_cast<int>(controls_.size()); }
    Channel& channel(int peer, Stream stream) override {
        return *channels_[channel_index(peer, static_cast<int>(stream))];
    }

    // Events that come before wait() are kept by epoll and the eventfd, so nothing has to be armed.
    void prepare_wait() override {}
    void cancel_wait() override {}
    void wait(std::chrono::nanoseconds at_most) override;
    void wake() override;

    bool alive(int peer) override;
    void post_fault(const Fault& fault) override;
    const Fault* fault() override;

  private:
    static size_t channel_index(int peer, int stream) {
        return static_cast<size_t>(peer * stream_count + stream);
    }
    void watch(int fd, uint32_t events, int64_t tag);
    void read_control(int peer);
    void read_all_controls();
    bool record_fault(const Fault& fault);
    bool flushed(int peer, int stream);

    static constexpr int64_t wake_tag = -1;
    static constexpr int64_t data_tag =
        -2;  // any stream; else the tag is the peer of a control socket

    const int rank_;
    const pid_t owner_ = ::getpid();
    std::vector<std::unique_ptr<TcpChannel>> channels_;
    UniqueFd epoll_;
    UniqueFd wake_;

    std::mutex control_mutex_;  // controls_ and the writing of fault_
    std::vector<Control> controls_;
    std::unique_ptr<const Fault> fault_;
    std::atomic<const Fault*> known_fault_{nullptr};
    std::atomic<Clock::rep> next_fault_check_{0};
    std::optional<ParentOnly> sockets_;  // of channels_ and controls_; after them
};

TcpTransport::TcpTransport(int rank, std::vector<PeerLinks> links, size_t capacity)
    : rank_(rank), channels_(links.size() * stream_count), controls_(links.size()) {
    epoll_ = UniqueFd(::epoll_create1(EPOLL_CLOEXEC));
    PYCOMM_CHECK(epoll_, transport, "epoll_create1: ", errno_text(errno));
    wake_ = UniqueFd(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
    PYCOMM_CHECK(wake_, transport, "eventfd: ", errno_text(errno));
    watch(wake_.get(), EPOLLIN, wake_tag);
    for (int peer = 0; peer < size(); ++peer) {
        if (peer == rank_) continue;
        PeerLinks& mine = links[static_cast<size_t>(peer)];
        for (int stream = 0; stream < stream_count; ++stream) {
            UniqueFd& fd = mine[static_cast<size_t>(stream)];
            watch(fd.get(), EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET, data_tag);
            channels_[channel_index(peer, stream)] =
                std::make_unique<TcpChannel>(std::move(fd), capacity);
        }
        Control& control = controls_[static_cast<size_t>(peer)];
        control.fd = std::move(mine[control_link]);
        set_keepalive(control.fd.get(), 10);
        watch(control.fd.get(), EPOLLIN | EPOLLRDHUP | EPOLLET, peer);
    }
    std::vector<int> sockets;
    for (const auto& channel : channels_) {
        if (channel) sockets.push_back(channel->fd());
    }
    for (const Control& control : controls_) {
        if (control.fd) sockets.push_back(control.fd.get());
    }
    sockets_.emplace(std::move(sockets));
}

void TcpTransport::watch(int fd, uint32_t events, int64_t tag) {
    epoll_event event{};
    event.events = events;
    event.data.u64 = static_cast<uint64_t>(tag);
    PYCOMM_CHECK_SYSCALL(::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd, &event), "epoll_ctl");
}

void TcpTransport::wait(std::chrono::nanoseconds at_most) {
    const auto ms = std::chrono::ceil<milliseconds>(at_most).count();
    epoll_event events[64];
    const int count = ::epoll_wait(
        epoll_.get(), events, 64,
        static_cast<int>(std::clamp<long long>(ms, 0, std::numeric_limits<int>::max())));
    for (int i = 0; i < count; ++i) {
        const auto tag = static_cast<int64_t>(events[i].data.u64);
        if (tag == wake_tag) {
            uint64_t counter = 0;
            while (::read(wake_.get(), &counter, sizeof(counter)) == -1 && errno == EINTR) {
            }
        } else if (tag >= 0) {
            const std::lock_guard lock(control_mutex_);
            read_control(static_cast<int>(tag));
        }
    }
}

void TcpTransport::wake() {
    const uint64_t one = 1;
    while (::write(wake_.get(), &one, sizeof(one)) == -1 && errno == EINTR) {
    }
}

// Takes what has arrived on the control socket of `peer`. Needs control_mutex_.
void TcpTransport::read_control(int peer) {
    Control& control = controls_[static_cast<size_t>(peer)];
    char bytes[4096];
    while (!control.ended) {
        const ssize_t count = ::recv(control.fd.get(), bytes, sizeof(bytes), MSG_DONTWAIT);
        if (count == -1 && errno == EINTR) continue;
        if (count == -1 && errno == EAGAIN) return;
        bool malformed = false;
        if (count > 0) {
            control.in.append(bytes, static_cast<size_t>(count));
            while (const auto fault = decode_fault(&control.in, &malformed)) record_fault(*fault);
        }
        if (count <= 0 || malformed) {
            control.ended = true;
            control.ended_at = Clock::now();
        }
    }
}

void TcpTransport::read_all_controls() {
    for (int peer = 0; peer < size(); ++peer) {
        if (peer != rank_) read_control(peer);
    }
}

bool TcpTransport::alive(int peer) {
    if (peer == rank_) return true;
    {
        const std::lock_guard lock(control_mutex_);
        read_control(peer);
        const Control& control = controls_[static_cast<size_t>(peer)];
        if (!control.ended) return true;
        if (Clock::now() - control.ended_at > end_patience) return false;
    }
    // What the peer sent before its end may still be on its way.
    for (int stream = 0; stream < stream_count; ++stream) {
        if (!channels_[channel_index(peer, stream)]->input_complete()) return true;
    }
    return false;
}

// Needs control_mutex_. The driver may sleep while another thread finds the fault, hence the wake.
bool TcpTransport::record_fault(const Fault& fault) {
    if (fault_) return false;
    fault_ = std::make_unique<const Fault>(fault);
    known_fault_.store(fault_.get(), std::memory_order_release);
    wake();
    return true;
}

void TcpTransport::post_fault(const Fault& fault) {
    const std::lock_guard lock(control_mutex_);
    read_all_controls();
    if (!record_fault(fault)) return;
    const std::string frame = encode_fault(fault);
    for (int peer = 0; peer < size(); ++peer) {
        if (peer == rank_) continue;
        // The only frame this rank ever sends there, so there is room for it at once. A peer that
        // has ended needs it no more.
        const int fd = controls_[static_cast<size_t>(peer)].fd.get();
        (void)::send(fd, frame.data(), frame.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    }
}

const Fault* TcpTransport::fault() {
    const Fault* known = known_fault_.load(std::memory_order_acquire);
    if (known != nullptr) return known;
    // A driver that never sleeps finds faults here. The clock is cheap, system calls are not.
    const auto now = Clock::now().time_since_epoch().count();
    if (now < next_fault_check_.load(std::memory_order_relaxed)) return nullptr;
    next_fault_check_.store(now + Clock::duration(fault_check_interval).count(),
                            std::memory_order_relaxed);
    const std::unique_lock lock(control_mutex_, std::try_to_lock);
    if (lock.owns_lock()) read_all_controls();
    return known_fault_.load(std::memory_order_acquire);
}

// Whether the peer's system has every byte that was sent to it, or never will.
bool TcpTransport::flushed(int peer, int stream) {
    TcpChannel& channel = *channels_[channel_index(peer, stream)];
    // Closing a socket with unread bytes resets the connection, and a reset may overtake what was
    // sent.
    channel.discard_input();
    int unacknowledged = 0;
    return ::ioctl(channel.fd(), SIOCOUTQ, &unacknowledged) == -1 || unacknowledged == 0 ||
           connect_error(channel.fd()) != 0;
}

TcpTransport::~TcpTransport() {
    // In a child of fork the connections are still the parent's: closing the copies is all there is
    // to do.
    if (::getpid() != owner_) return;
    // Streams end before the control sockets, whose end tells peers that no more will come.
    for (const auto& channel : channels_) {
        if (channel) ::shutdown(channel->fd(), SHUT_WR);
    }
    for (const Control& control : controls_) {
        if (control.fd) ::shutdown(control.fd.get(), SHUT_WR);
    }
    const bool broken = known_fault_.load() != nullptr;
    const Deadline deadline = Deadline::after(broken ? flush_seconds_broken : flush_seconds);
    while (true) {
        bool done = true;
        for (int peer = 0; peer < size(); ++peer) {
            for (int stream = 0; peer != rank_ && stream < stream_count; ++stream) {
                done &= flushed(peer, stream);
            }
        }
        if (done || deadline.expired()) break;
        ::poll(nullptr, 0, 1);
    }
    const std::lock_guard lock(control_mutex_);
    read_all_controls();
}

}  // namespace

std::unique_ptr<Transport> make_tcp_transport(Bootstrap& bootstrap, const TcpOptions& options) {
    const size_t capacity = channel_capacity(options.buffer_bytes, bootstrap.size());
    std::vector<PeerLinks> links = connect_mesh(bootstrap, options);
    return std::make_unique<TcpTransport>(bootstrap.rank(), std::move(links), capacity);
}

}  // namespace pycomm
