// The client's side of the TCP store: finding the server, then one request at a time per
// connection.
#include <poll.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <thread>

#include "base/error.h"
#include "base/interrupt.h"
#include "store/tcp_store.h"
#include "store/tcp_store_protocol.h"

namespace pycomm {
namespace {

using namespace store_protocol;
using std::chrono::milliseconds;

constexpr double attempt_seconds = 5;  // for one connection and handshake
constexpr double foreign_seconds = 1;  // how long strangers on every port are put up with
constexpr double resolve_seconds = 5;  // how long a name may be unknown: it may be entered late

struct Attempt {
    UniqueFd fd;           // valid: a store of this job answered
    bool foreign = false;  // something else answered
    std::string failure;
};

// The first bytes of an answer as printable text.
std::string printable(const std::string& bytes) {
    std::string text;
    for (const char byte : bytes.substr(0, bytes.find_first_of("\r\n"))) {
        text += byte >= ' ' && byte <= '~' ? byte : '?';
    }
    return text;
}

std::string name_stranger(const std::string& answer) {
    const auto starts = [&answer](const char* prefix) { return answer.rfind(prefix, 0) == 0; };
    const char* kind = starts("HTTP/")  ? "an HTTP server"
                       : starts("SSH-") ? "an SSH server"
                       : starts("-ERR") ? "a Redis server"
                                        : "another program";
    return concat(kind, " listens there, not a pycomm store (it answered \"", printable(answer),
                  "\")");
}

std::string hello(const std::string& token) {
    std::string bytes(magic);
    put_u32(bytes, version);
    put_u32(bytes, static_cast<uint32_t>(token.size()));
    bytes += token;
    bytes += hello_end;
    return bytes;
}

// Reads up to an answer's length; less when the other side closes or stays silent.
std::string read_answer(int fd, const Deadline& deadline, IoResult* result) {
    std::string answer;
    char byte = 0;
    while (answer.size() < answer_bytes) {
        *result = recv_exact(fd, &byte, 1, deadline);
        if (*result != IoResult::done) return answer;
        answer += byte;
        // A stranger's short answer may be all it will ever say.
        const size_t checked = std::min(answer.size(), magic.size());
        if (answer.compare(0, checked, magic.substr(0, checked)) != 0 && byte == '\n') break;
    }
    return answer;
}

void judge_answer(const std::string& answer, IoResult result, Attempt* attempt) {
    attempt->foreign = true;
    if (answer.empty()) {
        attempt->foreign = result == IoResult::closed;
        attempt->failure = attempt->foreign
                               ? "another program listens there, not a pycomm store (it closed the "
                                 "connection without an answer)"
                               : "the connection was accepted, but no store answered";
        return;
    }
    if (answer.size() < answer_bytes || answer.compare(0, magic.size(), magic) != 0) {
        attempt->failure = name_stranger(answer);
        return;
    }
    const uint32_t theirs = get_u32(answer.data() + 8);
    const uint32_t verdict = get_u32(answer.data() + 12);
    if (theirs != version || verdict == wrong_version) {
        attempt->failure = concat("the store there speaks version ", theirs,
                                  " of the protocol, this process version ", version,
                                  "; use one version of pycomm in the whole job");
    } else if (verdict != welcome) {
        attempt->failure = "the store there belongs to another job (its token differs)";
    } else {
        attempt->foreign = false;
    }
}

Attempt try_address(const Address& address, const std::string& token, const Deadline& deadline) {
    const Deadline limit =
        Deadline::after(std::min(attempt_seconds, deadline.remaining().count() * 1e-9));
    Attempt attempt;
    int error = 0;
    UniqueFd fd = connect_to(address, limit, &error);
    if (!fd) {
        attempt.failure = errno_text(error);
        return attempt;
    }
    set_no_delay(fd.get());
    set_keepalive(fd.get(), 10);
    const std::string greeting = hello(token);
    IoResult result = send_all(fd.get(), greeting.data(), greeting.size(), limit);
    std::string answer;
    if (result == IoResult::done) answer = read_answer(fd.get(), limit, &result);
    judge_answer(answer, result, &attempt);
    if (attempt.failure.empty()) attempt.fd = std::move(fd);
    return attempt;
}

// One port of the search: the addresses behind it and what the last attempt found.
struct Candidate {
    int port = 0;
    bool foreign = false;
    std::string failure = "not tried yet";
};

class Search {
  public:
    Search(const std::string& host, const std::vector<int>& ports, const std::string& token,
           const Deadline& deadline)
        : host_(host), token_(token), deadline_(deadline) {
        for (const int port : ports) candidates_.push_back({port});
    }

    // Returns the connection and stores the address that answered.
    UniqueFd run(Address* server) {
        const std::vector<Address> addresses = resolve_patiently();
        Deadline::Clock::time_point foreign_since = Deadline::Clock::time_point::max();
        milliseconds pause(5);
        while (true) {
            UniqueFd fd = pass(addresses, server);
            if (fd) return fd;
            const auto now = Deadline::Clock::now();
            const bool strangers = std::all_of(candidates_.begin(), candidates_.end(),
                                               [](const Candidate& c) { return c.foreign; });
            foreign_since =
                strangers ? std::min(foreign_since, now) : Deadline::Clock::time_point::max();
            const bool hopeless =
                strangers && now - foreign_since >= std::chrono::duration<double>(foreign_seconds);
            PYCOMM_CHECK(!hopeless, transport, "no store to connect to", failures());
            PYCOMM_CHECK(!deadline_.expired(), timeout, "no store was reached within ",
                         deadline_.seconds(), " s", failures());
            check_interrupt();
            std::this_thread::sleep_for(
                std::min<std::chrono::nanoseconds>(pause, deadline_.remaining()));
            pause = std::min(pause * 2, milliseconds(200));
        }
    }

  private:
    std::vector<Address> resolve_patiently() const {
        const Deadline limit =
            Deadline::after(std::min(resolve_seconds, deadline_.remaining().count() * 1e-9));
        while (true) {
            try {
                return resolve(host_, 0, deadline_);
            } catch (const Error& error) {
                if (error.code() != ErrorCode::transport || limit.expired()) throw;
            }
            check_interrupt();
            std::this_thread::sleep_for(milliseconds(200));
        }
    }

    UniqueFd pass(const std::vector<Address>& addresses, Address* server) {
        for (Candidate& candidate : candidates_) {
            for (size_t i = 0; i < addresses.size(); ++i) {
                const Address address = numeric_address(addresses[i].host(), candidate.port);
                Attempt attempt = try_address(address, token_, deadline_);
                if (attempt.fd) {
                    *server = address;
                    return std::move(attempt.fd);
                }
                if (i == 0 || attempt.foreign) {
                    candidate.foreign = attempt.foreign;
                    candidate.failure = attempt.failure;
                }
            }
        }
        return UniqueFd();
    }

    std::string failures() const {
        std::string text;
        for (const Candidate& candidate : candidates_) {
            text += concat(text.empty() ? ": " : "; ", host_port(host_, candidate.port), ": ",
                           candidate.failure);
        }
        return text;
    }

    const std::string& host_;
    const std::string& token_;
    const Deadline& deadline_;
    std::vector<Candidate> candidates_;
};

}  // namespace

struct TcpStoreClient::Reply {
    Status status = ok;
    std::string value;
};

TcpStoreClient::TcpStoreClient(const std::string& host, const std::vector<int>& ports,
                               const Deadline& deadline, const std::string& token)
    : token_(token), timeout_(deadline.seconds()) {
    PYCOMM_CHECK(!ports.empty(), argument, "no port of the store on ", host, " was given");
    PYCOMM_CHECK(token.size() <= max_token, argument, "a store's token has at most ", max_token,
                 " bytes, not ", token.size());
    for (const int port : ports) {
        PYCOMM_CHECK(port >= 1 && port <= 65535, argument, "the store's port ",
                     host_port(host, port), " is not in 1 to 65535");
    }
    UniqueFd fd = Search(host, ports, token_, deadline).run(&server_);
    where_ = host_port(host, server_.port());
    local_host_ = local_address(fd.get()).host();
    idle_.push_back(std::move(fd));
}

UniqueFd TcpStoreClient::take_connection(const Deadline& deadline) {
    {
        std::lock_guard lock(mutex_);
        if (!idle_.empty()) {
            UniqueFd fd = std::move(idle_.back());
            idle_.pop_back();
            return fd;
        }
    }
    Attempt attempt = try_address(server_, token_, deadline);
    PYCOMM_CHECK(attempt.fd, transport, "the store at ", where_, " is gone: ", attempt.failure);
    return std::move(attempt.fd);
}

TcpStoreClient::Reply TcpStoreClient::request(uint8_t operation, const std::string& key,
                                              const std::string& value, const Deadline& deadline) {
    PYCOMM_CHECK(key.size() <= max_key, argument, "a key of a store has at most ", max_key,
                 " bytes, not ", key.size());
    PYCOMM_CHECK(value.size() <= max_value, argument, "the value of '", key, "' has ", value.size(),
                 " bytes; a store takes at most ", max_value);
    std::string frame;
    frame.reserve(request_head + key.size() + value.size());
    put_u32(frame, static_cast<uint32_t>(request_head - 4 + key.size() + value.size()));
    frame += static_cast<char>(operation);
    put_u32(frame, static_cast<uint32_t>(key.size()));
    frame += key;
    frame += value;

    // A connection that fails or times out half way is dropped here, with whatever is in flight on
    // it.
    UniqueFd fd = take_connection(deadline);
    char head[reply_head];
    IoResult result = send_all(fd.get(), frame.data(), frame.size(), deadline);
    if (result == IoResult::done) result = recv_exact(fd.get(), head, sizeof(head), deadline);
    Reply reply;
    if (result == IoResult::done) {
        const size_t length = get_u32(head);
        reply.status = static_cast<Status>(head[4]);
        PYCOMM_CHECK(length >= 1 && length <= max_value + 1, transport, "the store at ", where_,
                     " sent a reply of ", length, " bytes");
        reply.value.resize(length - 1);
        result = recv_exact(fd.get(), reply.value.data(), reply.value.size(), deadline);
    }
    PYCOMM_CHECK(result != IoResult::closed, transport, "the store at ", where_,
                 " closed the connection while key '", key,
                 "' was asked for: its process has ended");
    PYCOMM_CHECK(result != IoResult::timeout || operation == op_get, timeout, "the store at ",
                 where_, " did not answer within ", deadline.seconds(), " s (key '", key, "')");
    PYCOMM_CHECK(result != IoResult::timeout, timeout, "the key '", key, "' did not appear within ",
                 deadline.seconds(), " s in the store at ", where_);
    {
        std::lock_guard lock(mutex_);
        idle_.push_back(std::move(fd));
    }
    PYCOMM_CHECK(reply.status != refused, transport, "the store at ", where_, " refused key '", key,
                 "': ", reply.value);
    return reply;
}

void TcpStoreClient::set(const std::string& key, const std::string& value) {
    request(op_set, key, value, Deadline::after(timeout_));
}

bool TcpStoreClient::contains(const std::string& key) {
    return request(op_contains, key, "", Deadline::after(timeout_)).status == ok;
}

std::string TcpStoreClient::get(const std::string& key, const Deadline& deadline) {
    return request(op_get, key, "", deadline).value;
}

}  // namespace pycomm
