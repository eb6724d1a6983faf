// Name resolution, listening and connecting.
#include "store/socket.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <strings.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <future>
#include <memory>
#include <thread>

#include "base/error.h"
#include "base/interrupt.h"

namespace pycomm {
namespace {

constexpr int backlog = 4096;  // the kernel caps it at net.core.somaxconn

struct Lookup {
    int status = 0;
    int saved_errno = 0;
    std::vector<Address> addresses;
};

Lookup look_up(const std::string& host, int port, int flags) {
    addrinfo hints{};
    hints.ai_family = AF_UNSPEC;
    hints.ai_socktype = SOCK_STREAM;
    hints.ai_flags = flags | AI_NUMERICSERV;
    addrinfo* list = nullptr;
    Lookup lookup;
    lookup.status = getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &list);
    lookup.saved_errno = errno;
    if (lookup.status != 0) return lookup;
    for (const addrinfo* entry = list; entry != nullptr; entry = entry->ai_next) {
        if (entry->ai_family != AF_INET && entry->ai_family != AF_INET6) continue;
        Address address;
        std::memcpy(&address.storage, entry->ai_addr, entry->ai_addrlen);
        address.length = entry->ai_addrlen;
        lookup.addresses.push_back(address);
    }
    freeaddrinfo(list);
    return lookup;
}

// getaddrinfo knows no deadline, so it runs on a thread that is left behind when it takes too long.
Lookup look_up_until(const std::string& host, int port, const Deadline& deadline) {
    auto promise = std::make_shared<std::promise<Lookup>>();
    std::future<Lookup> future = promise->get_future();
    std::thread([promise, host, port] { promise->set_value(look_up(host, port, 0)); }).detach();
    while (future.wait_for(std::min<std::chrono::nanoseconds>(
               deadline.remaining(), interrupt_interval)) != std::future_status::ready) {
        check_interrupt();
        if (!deadline.expired()) continue;
        PYCOMM_FAIL(timeout, "the host name '", host, "' was not resolved within ",
                    deadline.seconds(), " s: the name service does not answer");
    }
    return future.get();
}

std::string lookup_text(const Lookup& lookup) {
    if (lookup.status == EAI_SYSTEM) return errno_text(lookup.saved_errno);
    return gai_strerror(lookup.status);
}

bool means_every_interface(const std::string& host) {
    return host.empty() || host == "*" || host == "::" || host == "0.0.0.0";
}

// Returns an invalid descriptor and sets errno on failure.
UniqueFd try_listen(const Address& address) {
    UniqueFd fd(::socket(address.family(), SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
    if (!fd) return fd;
    const int on = 1;
    const int off = 0;
    // Allows the port of a server that ended a moment ago; two listeners still exclude each other.
    ::setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
    if (address.family() == AF_INET6 && address.wildcard()) {
        ::setsockopt(fd.get(), IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof(off));
    }
    if (::bind(fd.get(), address.get(), address.length) == -1 ||
        ::listen(fd.get(), backlog) == -1) {
        const int error = errno;
        fd.reset();
        errno = error;
    }
    return fd;
}

int poll_timeout_ms(const Deadline& deadline) {
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(deadline.remaining());
    return static_cast<int>(
        std::min(left + std::chrono::milliseconds(1), interrupt_interval).count());
}

}  // namespace

void UniqueFd::reset() {
    if (fd_ >= 0) ::close(fd_);
    fd_ = -1;
}

int Address::port() const {
    if (family() == AF_INET) {
        return ntohs(reinterpret_cast<const sockaddr_in*>(&storage)->sin_port);
    }
    return ntohs(reinterpret_cast<const sockaddr_in6*>(&storage)->sin6_port);
}

bool Address::loopback() const {
    if (family() == AF_INET) {
        const auto* in4 = reinterpret_cast<const sockaddr_in*>(&storage);
        return (ntohl(in4->sin_addr.s_addr) >> 24) == 127;
    }
    return IN6_IS_ADDR_LOOPBACK(&reinterpret_cast<const sockaddr_in6*>(&storage)->sin6_addr);
}

bool Address::wildcard() const {
    if (family() == AF_INET) {
        return reinterpret_cast<const sockaddr_in*>(&storage)->sin_addr.s_addr == INADDR_ANY;
    }
    return IN6_IS_ADDR_UNSPECIFIED(&reinterpret_cast<const sockaddr_in6*>(&storage)->sin6_addr);
}

std::string Address::host() const {
    char text[NI_MAXHOST] = "?";
    ::getnameinfo(get(), length, text, sizeof(text), nullptr, 0, NI_NUMERICHOST);
    return text;
}

std::string Address::text() const {
    return host_port(host(), port());
}

std::string host_port(const std::string& host, int port) {
    if (host.find(':') != std::string::npos) return concat('[', host, "]:", port);
    return concat(host, ':', port);
}

std::string own_hostname() {
    char name[256] = "";
    if (::gethostname(name, sizeof(name) - 1) != 0 || name[0] == '\0') return "localhost";
    return name;
}

Address numeric_address(const std::string& host, int port) {
    const Lookup lookup = look_up(host, port, AI_NUMERICHOST);
    PYCOMM_CHECK(lookup.status == 0 && !lookup.addresses.empty(), argument, "'", host,
                 "' is not a numeric IPv4 or IPv6 address");
    return lookup.addresses.front();
}

std::vector<Address> resolve(const std::string& host, int port, const Deadline& deadline) {
    PYCOMM_CHECK(!host.empty(), argument, "the host name is empty");
    Lookup lookup = look_up(host, port, AI_NUMERICHOST);
    if (lookup.status != 0) lookup = look_up_until(host, port, deadline);
    if (lookup.status == 0 && !lookup.addresses.empty()) return lookup.addresses;
    if (::strcasecmp(host.c_str(), own_hostname().c_str()) == 0) {
        return {numeric_address("127.0.0.1", port)};
    }
    PYCOMM_FAIL(transport, "the host name '", host, "' cannot be resolved: ", lookup_text(lookup));
}

UniqueFd listen_on(const std::string& host, int port) {
    PYCOMM_CHECK(port >= 0 && port <= 65535, argument, "port ", port, " is not in 0 to 65535");
    std::vector<Address> addresses;
    if (means_every_interface(host)) {
        if (host != "0.0.0.0") addresses.push_back(numeric_address("::", port));
        if (host != "::") addresses.push_back(numeric_address("0.0.0.0", port));
    } else {
        addresses = resolve(host, port, Deadline::after(30));
    }
    int error = EAFNOSUPPORT;
    for (const Address& address : addresses) {
        UniqueFd fd = try_listen(address);
        if (fd) return fd;
        error = errno;
        // Another program may hold the port for one family only; taking the other would split them.
        if (error == EADDRINUSE) break;
    }
    const char* hint = error == EADDRINUSE ? "; another program listens there: end it, or choose"
                                             " another port"
                                           : "";
    PYCOMM_FAIL(transport, "cannot listen on ", host_port(host.empty() ? "*" : host, port), ": ",
                errno_text(error), hint);
}

Address local_address(int fd) {
    Address address;
    address.length = sizeof(address.storage);
    PYCOMM_CHECK_SYSCALL(
        ::getsockname(fd, reinterpret_cast<sockaddr*>(&address.storage), &address.length),
        "getsockname");
    return address;
}

UniqueFd start_connect(const Address& address, int* error) {
    *error = 0;
    UniqueFd fd(::socket(address.family(), SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
    if (!fd) {
        *error = errno;
        return fd;
    }
    if (::connect(fd.get(), address.get(), address.length) == -1 && errno != EINPROGRESS) {
        *error = errno;
        fd.reset();
    }
    return fd;
}

int connect_error(int fd) {
    int error = 0;
    socklen_t length = sizeof(error);
    if (::getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &length) == -1) return errno;
    if (error != 0) return error;
    // A connection from an ephemeral port to itself: the target port is free and was picked as
    // source.
    sockaddr_storage own{};
    sockaddr_storage peer{};
    socklen_t own_length = sizeof(own);
    socklen_t peer_length = sizeof(peer);
    if (::getpeername(fd, reinterpret_cast<sockaddr*>(&peer), &peer_length) == -1) return errno;
    if (::getsockname(fd, reinterpret_cast<sockaddr*>(&own), &own_length) == -1) return errno;
    const bool itself = own_length == peer_length && std::memcmp(&own, &peer, own_length) == 0;
    return itself ? ECONNREFUSED : 0;
}

UniqueFd connect_to(const Address& address, const Deadline& deadline, int* error) {
    UniqueFd fd = start_connect(address, error);
    if (!fd) return fd;
    *error = wait_ready(fd.get(), POLLOUT, deadline) ? connect_error(fd.get()) : ETIMEDOUT;
    if (*error != 0) fd.reset();
    return fd;
}

void set_no_delay(int fd) {
    const int on = 1;
    ::setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
}

void set_keepalive(int fd, int idle_seconds) {
    const int on = 1;
    const int interval = 5;
    const int probes = 4;
    ::setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof(on));
    ::setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &idle_seconds, sizeof(idle_seconds));
    ::setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &interval, sizeof(interval));
    ::setsockopt(fd, IPPROTO_TCP, TCP_KEEPCNT, &probes, sizeof(probes));
}

bool wait_ready(int fd, short events, const Deadline& deadline) {
    while (true) {
        pollfd entry{fd, events, 0};
        const int count = ::poll(&entry, 1, poll_timeout_ms(deadline));
        if (count > 0) return true;
        if (count == -1 && errno != EINTR) {
            PYCOMM_FAIL(transport, "poll: ", errno_text(errno));
        }
        check_interrupt();
        if (deadline.expired()) return false;
    }
}

IoResult send_all(int fd, const void* data, size_t bytes, const Deadline& deadline) {
    const char* position = static_cast<const char*>(data);
    while (bytes > 0) {
        const ssize_t sent = ::send(fd, position, bytes, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (sent > 0) {
            position += sent;
            bytes -= static_cast<size_t>(sent);
        } else if (errno == EAGAIN) {
            if (!wait_ready(fd, POLLOUT, deadline)) return IoResult::timeout;
        } else if (errno != EINTR) {
            return IoResult::closed;
        }
    }
    return IoResult::done;
}

IoResult recv_exact(int fd, void* data, size_t bytes, const Deadline& deadline) {
    char* position = static_cast<char*>(data);
    while (bytes > 0) {
        const ssize_t received = ::recv(fd, position, bytes, MSG_DONTWAIT);
        if (received > 0) {
            position += received;
            bytes -= static_cast<size_t>(received);
        } else if (received == 0) {
            return IoResult::closed;
        } else if (errno == EAGAIN) {
            if (!wait_ready(fd, POLLIN, deadline)) return IoResult::timeout;
        } else if (errno != EINTR) {
            return IoResult::closed;
        }
    }
    return IoResult::done;
}

}  // namespace pycomm
