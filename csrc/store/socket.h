// Sockets for the store and the TCP transport: owned descriptors, addresses, name resolution and
// connecting, with errors that name the host and the port.
#pragma once

#include <sys/socket.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "base/deadline.h"

namespace pycomm {

// A file descriptor that is closed with its owner.
class UniqueFd {
  public:
    UniqueFd() = default;
    explicit UniqueFd(int fd) : fd_(fd) {}
    UniqueFd(UniqueFd&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
    UniqueFd& operator=(UniqueFd&& other) noexcept {
        if (this != &other) {
            reset();
            fd_ = std::exchange(other.fd_, -1);
        }
        return *this;
    }
    ~UniqueFd() { reset(); }

    int get() const { return fd_; }
    explicit operator bool() const { return fd_ >= 0; }
    void reset();

  private:
    int fd_ = -1;
};

// An IPv4 or IPv6 address with its port.
struct Address {
    sockaddr_storage storage{};
    socklen_t length = 0;

    const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&storage); }
    int family() const { return storage.ss_family; }
    int port() const;
    bool loopback() const;
    bool wildcard() const;
    std::string host() const;  // "10.0.0.3", "fe80::1%eth0"
    std::string text() const;  // "10.0.0.3:1234", "[::1]:1234"
};

// "host:port", with brackets around an IPv6 address.
std::string host_port(const std::string& host, int port);

// The name of this machine as the kernel knows it.
std::string own_hostname();

// A numeric address such as "10.0.0.3" or "::1". Throws ArgumentError when it is none.
Address numeric_address(const std::string& host, int port);

// All addresses of a name or of a numeric address, in the order of preference. A name that does not
// resolve but is this machine's own hostname gives 127.0.0.1. Throws TransportError with the name,
// or CommTimeoutError when the name service has not answered at the deadline.
std::vector<Address> resolve(const std::string& host, int port, const Deadline& deadline);

// A non-blocking listening socket. `host` empty, "0.0.0.0", "::" or "*" means every interface; port
// 0 lets the system choose. Throws TransportError with host:port, for example when the port is
// taken.
UniqueFd listen_on(const std::string& host, int port);

Address local_address(int fd);

// Starts a non-blocking connection. Returns an invalid descriptor and sets `error` to the errno
// value when it failed at once.
UniqueFd start_connect(const Address& address, int* error);
// The errno value a connection attempt ended with, 0 when connected. For sockets that poll as
// writable.
int connect_error(int fd);
// start_connect and the wait for its end. `error` is ETIMEDOUT at the deadline.
UniqueFd connect_to(const Address& address, const Deadline& deadline, int* error);

// Small messages leave at once.
void set_no_delay(int fd);
// Notices a peer host that vanished without a word after about `idle_seconds` + 20 seconds.
void set_keepalive(int fd, int idle_seconds);

// Waits until one of `events` (of poll) or an error is pending; false at the deadline.
bool wait_ready(int fd, short events, const Deadline& deadline);

enum class IoResult : uint8_t { done, closed, timeout };
// Move exactly `bytes` bytes over a non-blocking socket. `closed` covers every error of the
// connection.
IoResult send_all(int fd, const void* data, size_t bytes, const Deadline& deadline);
IoResult recv_exact(int fd, void* data, size_t bytes, const Deadline& deadline);

}  // namespace pycomm
