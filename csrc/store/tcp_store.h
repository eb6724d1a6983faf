// A store served over TCP by one process of the job (or by its launcher).
#pragma once

#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "store/socket.h"
#include "store/store.h"

namespace pycomm {

// Serves from a thread of its own until close().
class TcpStoreServer {
  public:
    // `host` empty, "*", "0.0.0.0" or "::" listens on every interface; port 0 takes any free one.
    // Clients that give another `token` are turned away, which keeps two jobs apart. Throws
    // TransportError with host:port when it cannot listen.
    TcpStoreServer(const std::string& host, int port, const std::string& token = "");
    ~TcpStoreServer();
    TcpStoreServer(const TcpStoreServer&) = delete;
    TcpStoreServer& operator=(const TcpStoreServer&) = delete;

    int port() const;
    // Disconnects all clients and ends the thread. May be called again.
    void close();

  private:
    class Loop;
    std::unique_ptr<Loop> loop_;
};

// Waiting for a key happens at the server, which answers when the key is set.
class TcpStoreClient : public Store {
  public:
    // Connects to the first of `ports` behind which a pycomm store with the same token answers, and
    // keeps trying until `deadline`, since the server may start later. Throws CommTimeoutError with
    // host:port and the last failure of each port; TransportError when the name cannot be resolved
    // or when something else than this job's store has been listening on every port for a second.
    TcpStoreClient(const std::string& host, const std::vector<int>& ports, const Deadline& deadline,
                   const std::string& token = "");

    // Both end after the constructor's timeout at the latest, with CommTimeoutError; all three
    // throw TransportError as soon as the server is gone.
    void set(const std::string& key, const std::string& value) override;
    bool contains(const std::string& key) override;
    std::string get(const std::string& key, const Deadline& deadline) override;

    int port() const { return server_.port(); }
    // The numeric address of this machine's end of the connection.
    const std::string& local_host() const { return local_host_; }

  private:
    struct Reply;
    Reply request(uint8_t operation, const std::string& key, const std::string& value,
                  const Deadline& deadline);
    UniqueFd take_connection(const Deadline& deadline);

    std::string where_;  // "host:port" for messages
    Address server_;
    std::string token_;
    std::string local_host_;
    double timeout_ = 0;
    std::mutex mutex_;
    std::vector<UniqueFd> idle_;  // connections that no call is using now
};

}  // namespace pycomm
