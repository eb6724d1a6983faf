// Creating the memfd, reserving its pages and passing it on.
#include "transport/shm/shared_region.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "base/error.h"
#include "base/free_memory.h"
#include "base/interrupt.h"

namespace pycomm {
namespace {

constexpr size_t largest_populated = 64 << 20;

class FileDescriptor {
  public:
    explicit FileDescriptor(int number = -1) : number_(number) {}
    FileDescriptor(FileDescriptor&& other) noexcept : number_(std::exchange(other.number_, -1)) {}
    FileDescriptor& operator=(FileDescriptor&& other) noexcept {
        std::swap(number_, other.number_);
        return *this;
    }
    ~FileDescriptor() {
        if (number_ >= 0) ::close(number_);
    }
    int get() const { return number_; }

  private:
    int number_;
};

enum class Pages { reserved, sparse };

class MemfdRegion final : public SharedRegion {
  public:
    MemfdRegion(FileDescriptor memfd, size_t bytes, Pages pages) : memfd_(std::move(memfd)) {
        // Pages that are there already are entered all at once: at the first touch, one by one,
        // that takes longer.
        const bool populate = pages == Pages::reserved && bytes <= largest_populated;
        const int flags = pages == Pages::sparse ? MAP_NORESERVE : populate ? MAP_POPULATE : 0;
        void* memory =
            mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | flags, memfd_.get(), 0);
        const int number = errno;
        PYCOMM_CHECK(memory != MAP_FAILED, transport, "cannot map ", bytes,
                     " bytes of shared memory: ", errno_text(number));
        data_ = static_cast<std::byte*>(memory);
        bytes_ = bytes;
        if (pages == Pages::sparse) madvise(memory, bytes, MADV_DONTDUMP);
    }
    ~MemfdRegion() override { munmap(data_, bytes_); }

    void reserve(size_t offset, size_t bytes, const SharedOut* shared) override {
        const SharedOut free = shared != nullptr ? *shared : SharedOut{free_memory(), 1};
        // Reserving more than a control group allows would end the process instead of failing, and
        // so would a place beyond the limit of file sizes.
        PYCOMM_CHECK(free.allows(bytes), memory, wanted_and_free(bytes, free));
        rlimit file_size{};
        const bool limited =
            getrlimit(RLIMIT_FSIZE, &file_size) == 0 && file_size.rlim_cur < offset + bytes;
        PYCOMM_CHECK(!limited, memory,
                     wanted_and_free(bytes, FreeMemory{0, "RLIMIT_FSIZE, less what is in use"}));
        const int number = allocate_pages(memfd_, offset, bytes);
        PYCOMM_CHECK(number == 0, memory, wanted_and_free(bytes, free), ": ", errno_text(number));
#if defined(MADV_POPULATE_WRITE)
        madvise(data_ + offset, bytes, MADV_POPULATE_WRITE);  // only saves time
#endif
    }

    void give_back(size_t offset, size_t bytes) override {
        // Fails at most where holes are not known; then the pages stay.
        (void)fallocate(memfd_.get(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
                        static_cast<off_t>(offset), static_cast<off_t>(bytes));
    }

    // In pieces: a signal may undo all of a call, and with a profiler's timer the next one comes
    // before a long call is through.
    static int allocate_pages(const FileDescriptor& memfd, size_t offset, size_t bytes) {
        constexpr size_t piece = 4 << 20;
        for (size_t done = 0; done < bytes;) {
            const size_t length = std::min(piece, bytes - done);
            const int number = posix_fallocate(memfd.get(), static_cast<off_t>(offset + done),
                                               static_cast<off_t>(length));
            if (number != 0 && number != EINTR) return number;
            if (number == 0) done += length;
        }
        return 0;
    }

  private:
    FileDescriptor memfd_;
};

FileDescriptor create_memfd(size_t bytes, Pages pages) {
    const FreeMemory free = free_memory();
    const std::string wanted = wanted_and_free(bytes, free);
    // Reserving more than a control group allows would end the process instead of failing.
    if (pages == Pages::reserved) PYCOMM_CHECK(bytes < free.bytes, transport, wanted);
    FileDescriptor memfd(memfd_create("pycomm", MFD_CLOEXEC));
    PYCOMM_CHECK_SYSCALL(memfd.get(), "memfd_create");
    PYCOMM_CHECK_SYSCALL(ftruncate(memfd.get(), static_cast<off_t>(bytes)), wanted);
    if (pages == Pages::sparse) return memfd;
    const int number = MemfdRegion::allocate_pages(memfd, 0, bytes);
    PYCOMM_CHECK(number == 0, transport, wanted, ": ", errno_text(number));
    return memfd;
}

sockaddr_un socket_address(const std::string& name, socklen_t& length) {
    sockaddr_un address{};
    address.sun_family = AF_UNIX;  // the leading zero byte of sun_path marks an abstract name
    std::memcpy(address.sun_path + 1, name.data(), name.size());
    length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
    return address;
}

std::string random_name() {
    uint64_t words[2];
    PYCOMM_CHECK_SYSCALL(getrandom(words, sizeof(words), 0), "getrandom");
    std::ostringstream name;
    name << "pycomm-" << std::hex << words[0] << words[1];
    return name.str();
}

FileDescriptor listen_on(const std::string& name, int backlog) {
    FileDescriptor listener(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    PYCOMM_CHECK_SYSCALL(listener.get(), "socket");
    socklen_t length = 0;
    const sockaddr_un address = socket_address(name, length);
    PYCOMM_CHECK_SYSCALL(bind(listener.get(), reinterpret_cast<const sockaddr*>(&address), length),
                         "bind");
    PYCOMM_CHECK_SYSCALL(listen(listener.get(), backlog), "listen");
    return listener;
}

// True when `descriptor` became ready for `events`, false at the deadline.
bool wait_ready(int descriptor, short events, const Deadline& deadline) {
    while (true) {
        pollfd entry{descriptor, events, 0};
        const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline.remaining());
        const int ready =
            poll(&entry, 1, static_cast<int>(std::min(left, interrupt_interval).count()));
        if (ready > 0) return true;
        PYCOMM_CHECK(ready == 0 || errno == EINTR, transport, "poll: ", errno_text(errno));
        check_interrupt();
        if (deadline.expired()) return false;
    }
}

// One byte of payload carries the descriptor and the rank count check.
void send_descriptor(int socket, int descriptor) {
    char byte = 'm';
    iovec part{&byte, 1};
    alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
    msghdr message{};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    message.msg_control = control;
    message.msg_controllen = sizeof(control);
    cmsghdr* header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof(int));
    std::memcpy(CMSG_DATA(header), &descriptor, sizeof(int));
    PYCOMM_CHECK_SYSCALL(sendmsg(socket, &message, MSG_NOSIGNAL), "passing shared memory");
}

FileDescriptor receive_descriptor(int socket) {
    char byte = 0;
    iovec part{&byte, 1};
    alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
    msghdr message{};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    message.msg_control = control;
    message.msg_controllen = sizeof(control);
    const ssize_t received = recvmsg(socket, &message, MSG_CMSG_CLOEXEC);
    PYCOMM_CHECK_SYSCALL(received, "receiving shared memory");
    const cmsghdr* header = CMSG_FIRSTHDR(&message);
    PYCOMM_CHECK(received == 1 && header != nullptr && header->cmsg_type == SCM_RIGHTS, transport,
                 "rank 0 closed the connection before it passed shared memory");
    int descriptor = -1;
    std::memcpy(&descriptor, CMSG_DATA(header), sizeof(int));
    return FileDescriptor(descriptor);
}

void pass_to_others(const FileDescriptor& listener, const FileDescriptor& memfd, int others,
                    const Deadline& deadline) {
    for (int served = 0; served < others;) {
        if (!wait_ready(listener.get(), POLLIN, deadline)) {
            PYCOMM_FAIL(timeout, "only ", served, " of ", others,
                        " ranks fetched the shared memory within ", deadline.seconds(), " s");
        }
        const FileDescriptor connection(accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
        if (connection.get() < 0) continue;
        ucred peer{};
        socklen_t length = sizeof(peer);
        const bool known =
            getsockopt(connection.get(), SOL_SOCKET, SO_PEERCRED, &peer, &length) == 0;
        if (!known || peer.uid != geteuid()) continue;  // a stranger
        send_descriptor(connection.get(), memfd.get());
        ++served;
    }
}

// Descriptors that passing memory will need. They are had before the ranks meet, since one that
// runs out of them later would let the others wait.
struct Descriptors {
    FileDescriptor socket;  // rank 0 listens on it, the others connect with it
    FileDescriptor spare;   // gives its place to the one that is accepted or received

    void keep_spare() {
        spare = FileDescriptor(fcntl(socket.get(), F_DUPFD_CLOEXEC, 0));
        PYCOMM_CHECK_SYSCALL(spare.get(), "dup");
    }
};

FileDescriptor make_client() {
    FileDescriptor connection(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
    PYCOMM_CHECK_SYSCALL(connection.get(), "socket");
    return connection;
}

FileDescriptor fetch_from(const std::string& name, Descriptors& own, const Deadline& deadline) {
    const FileDescriptor& connection = own.socket;
    socklen_t length = 0;
    const sockaddr_un address = socket_address(name, length);
    PYCOMM_CHECK_SYSCALL(
        connect(connection.get(), reinterpret_cast<const sockaddr*>(&address), length),
        "connecting to rank 0 for shared memory");
    PYCOMM_CHECK(wait_ready(connection.get(), POLLIN, deadline), timeout,
                 "rank 0 did not pass the shared memory within ", deadline.seconds(), " s");
    own.spare = FileDescriptor();
    return receive_descriptor(connection.get());
}

std::shared_ptr<SharedRegion> make_region(Bootstrap& bootstrap, size_t bytes, Pages pages,
                                          const Deadline& deadline) {
    // Rank 0 offers a socket name; any rank says why it cannot take part ('!').
    const bool leader = bootstrap.rank() == 0;
    FileDescriptor memfd;
    Descriptors own;
    std::string offer;
    try {
        if (leader) {
            memfd = create_memfd(bytes, pages);
            offer = random_name();
            own.socket = listen_on(offer, bootstrap.size());
        } else {
            own.socket = make_client();
        }
        own.keep_spare();
    } catch (const Error& error) {
        offer = concat('!', error.what());
    }
    const auto offers = bootstrap.all_gather(offer, deadline);
    for (size_t rank = 0; rank < offers.size(); ++rank) {
        PYCOMM_CHECK(!offers[rank].starts_with('!'), transport, "rank ", rank, ": ",
                     offers[rank].substr(1));
    }
    offer = offers[0];

    std::shared_ptr<SharedRegion> region;
    std::string failure;
    try {
        if (leader) {
            own.spare = FileDescriptor();
            pass_to_others(own.socket, memfd, bootstrap.size() - 1, deadline);
        } else {
            memfd = fetch_from(offer, own, deadline);
        }
        region = std::make_shared<MemfdRegion>(std::move(memfd), bytes, pages);
    } catch (const Error& error) {
        failure = error.what();
    }
    // All ranks have it, or all fail with the first reason.
    const auto failures = bootstrap.all_gather(failure, deadline);
    for (size_t rank = 0; rank < failures.size(); ++rank) {
        PYCOMM_CHECK(failures[rank].empty(), transport, "rank ", rank, ": ", failures[rank]);
    }
    return region;
}

}  // namespace

std::shared_ptr<SharedRegion> make_shared_region(Bootstrap& bootstrap, size_t bytes,
                                                 const Deadline& deadline) {
    return make_region(bootstrap, bytes, Pages::reserved, deadline);
}

std::shared_ptr<SharedRegion> make_sparse_region(Bootstrap& bootstrap, size_t bytes,
                                                 const Deadline& deadline) {
    return make_region(bootstrap, bytes, Pages::sparse, deadline);
}

}  // namespace pycomm
