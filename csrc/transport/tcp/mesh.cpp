// The exchange of addresses and the poll loop that makes all connections.
#include "transport/tcp/mesh.h"

#include <poll.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <sstream>
#include <string_view>

#include "base/error.h"
#include "base/interrupt.h"
#include "store/interfaces.h"
#include "store/little_endian.h"
#include "store/random.h"

namespace pycomm {
namespace {

using Clock = Deadline::Clock;
using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr std::string_view magic("pycommTP", 8);
constexpr uint32_t version = 1;
constexpr size_t token_bytes = 32;
constexpr size_t hello_bytes = 8 + 4 * 4 + token_bytes;  // magic version from to link token
constexpr size_t answer_bytes = 8 + 2 * 4;               // magic version rank
constexpr milliseconds retry_pause{50};
constexpr seconds connect_patience{3};  // before another address of the peer is tried
constexpr seconds hello_patience{10};   // for a newcomer to say who it is

// Where one rank can be reached.
struct Site {
    std::string identity;
    int port = 0;
    std::string local_host;          // for ranks with the same identity
    std::vector<std::string> hosts;  // for the others, in order of preference
};

std::string encode_site(const Site& site) {
    std::string text = concat(site.port, ' ', site.local_host);
    for (const std::string& host : site.hosts) text += ' ' + host;
    return text;
}

void decode_site(const std::string& text, Site* site) {
    std::istringstream in(text);
    in >> site->port >> site->local_host;
    for (std::string host; in >> host;) site->hosts.push_back(host);
}

struct Outgoing {
    enum class State : uint8_t { idle, connecting, greeted, done };
    int peer = -1;
    int link = 0;
    State state = State::idle;
    size_t address = 0;        // of the peer's candidates
    Clock::time_point moment;  // idle: when to try; connecting: when to give up
    UniqueFd fd;
    std::string in;
};

struct Incoming {
    UniqueFd fd;
    Clock::time_point until;
    std::string in;
};

// Reads until `in` has `wanted` bytes. False when the connection has ended.
bool read_some(int fd, size_t wanted, std::string* in) {
    char bytes[hello_bytes];
    while (in->size() < wanted) {
        const ssize_t count = ::recv(fd, bytes, wanted - in->size(), MSG_DONTWAIT);
        if (count == -1 && errno == EINTR) continue;
        if (count == -1 && errno == EAGAIN) return true;
        if (count <= 0) return false;
        in->append(bytes, static_cast<size_t>(count));
    }
    return true;
}

// A fresh connection has room for these few bytes.
bool send_at_once(int fd, const std::string& bytes) {
    const ssize_t count = ::send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    return count == static_cast<ssize_t>(bytes.size());
}

class Mesh {
  public:
    Mesh(Bootstrap& bootstrap, const TcpOptions& options)
        : bootstrap_(bootstrap),
          options_(options),
          rank_(bootstrap.rank()),
          size_(bootstrap.size()),
          deadline_(Deadline::after(options.timeout)),
          sites_(static_cast<size_t>(size_)),
          links_(static_cast<size_t>(size_)),
          addresses_(static_cast<size_t>(size_)),
          failures_(static_cast<size_t>(size_)) {}

    std::vector<PeerLinks> run() {
        exchange_identities();
        exchange_sites();
        plan();
        while (missing_ > 0) {
            if (deadline_.expired()) fail_missing();
            start_due();
            step();
            check_interrupt();
        }
        return std::move(links_);
    }

  private:
    PeerLinks& links(int peer) { return links_[static_cast<size_t>(peer)]; }
    std::vector<Address>& addresses(int peer) { return addresses_[static_cast<size_t>(peer)]; }

    void exchange_identities();
    void exchange_sites();
    Site listen_here();
    void plan();
    void start_due();
    void step();
    void accept_all();
    bool greet_newcomer(Incoming& newcomer);
    void advance(Outgoing& attempt);
    void retry(Outgoing& attempt, const std::string& failure);
    std::string hello(const Outgoing& attempt) const;
    int pause_ms() const;
    [[noreturn]] void fail_missing();
    void check_descriptors(int error) const;

    Bootstrap& bootstrap_;
    const TcpOptions& options_;
    const int rank_;
    const int size_;
    const Deadline deadline_;
    std::string token_;
    std::vector<Site> sites_;
    UniqueFd listener_;
    std::vector<PeerLinks> links_;
    int missing_ = 0;                              // links not made yet
    std::vector<std::vector<Address>> addresses_;  // by peer
    std::vector<std::string> failures_;            // by peer, the last one
    std::vector<Outgoing> outgoing_;
    std::vector<Incoming> incoming_;
};

// Who shares a machine with whom decides where each rank listens. Rank 0's token serves all.
void Mesh::exchange_identities() {
    const std::string token = rank_ == 0 ? random_hex(token_bytes / 2) : "-";
    const auto blobs = bootstrap_.all_gather(token + ' ' + network_identity(), deadline_);
    for (int i = 0; i < size_; ++i) {
        std::istringstream in(blobs[static_cast<size_t>(i)]);
        std::string first;
        in >> first >> sites_[static_cast<size_t>(i)].identity;
        if (i == 0) token_ = first;
    }
    PYCOMM_CHECK(token_.size() == token_bytes, transport,
                 "tcp: rank 0 runs another version of pycomm");
}

Site Mesh::listen_here() {
    Site site;
    const std::string& own = sites_[static_cast<size_t>(rank_)].identity;
    const bool one_machine = std::all_of(
        sites_.begin(), sites_.end(), [&own](const Site& other) { return other.identity == own; });
    std::string host;  // every interface
    if (!options_.ifname.empty()) {
        site.hosts = advertised_addresses(options_.ifname, "");
        host = site.hosts.front();
        site.local_host = host;
    } else {
        site.local_host = "127.0.0.1";
        if (one_machine) {
            host = site.local_host;
        } else {
            site.hosts = advertised_addresses("", options_.store_host);
        }
    }
    listener_ = listen_on(host, 0);
    site.port = local_address(listener_.get()).port();
    return site;
}

// A rank that cannot listen tells the others, so that they do not wait for it.
void Mesh::exchange_sites() {
    std::string blob;
    std::exception_ptr failure;
    try {
        blob = encode_site(listen_here());
    } catch (const Error& error) {
        failure = std::current_exception();
        blob = concat('!', error.what());
    }
    const auto blobs = bootstrap_.all_gather(blob, deadline_);
    if (failure) std::rethrow_exception(failure);
    for (int i = 0; i < size_; ++i) {
        const std::string& text = blobs[static_cast<size_t>(i)];
        PYCOMM_CHECK(text.empty() || text[0] != '!', transport, "tcp: rank ", i,
                     " cannot be connected to: ", text.substr(1));
        decode_site(text, &sites_[static_cast<size_t>(i)]);
    }
}

void Mesh::plan() {
    missing_ = (size_ - 1) * links_per_peer;
    const std::string& own = sites_[static_cast<size_t>(rank_)].identity;
    for (int peer = rank_ + 1; peer < size_; ++peer) {
        const Site& site = sites_[static_cast<size_t>(peer)];
        const bool local = site.identity == own;
        const auto hosts = local ? std::vector<std::string>{site.local_host} : site.hosts;
        for (const std::string& host : hosts) {
            addresses(peer).push_back(numeric_address(host, site.port));
        }
        for (int link = 0; link < links_per_peer; ++link) {
            Outgoing attempt;
            attempt.peer = peer;
            attempt.link = link;
            attempt.moment = Clock::now();
            outgoing_.push_back(std::move(attempt));
        }
    }
}

void Mesh::check_descriptors(int error) const {
    PYCOMM_CHECK(error != EMFILE && error != ENFILE, transport, "tcp: ", errno_text(error), ": ",
                 size_, " ranks need ", (size_ - 1) * links_per_peer,
                 " sockets per rank and communicator; raise the limit (ulimit -n)");
}

void Mesh::retry(Outgoing& attempt, const std::string& failure) {
    const auto& known = addresses(attempt.peer);
    failures_[static_cast<size_t>(attempt.peer)] =
        concat(known[attempt.address].text(), ": ", failure);
    attempt.fd.reset();
    attempt.in.clear();
    attempt.state = Outgoing::State::idle;
    attempt.address = (attempt.address + 1) % known.size();
    attempt.moment = Clock::now();
    if (attempt.address == 0) attempt.moment += retry_pause;
}

// Starts the attempts whose time has come and gives up those that take too long.
void Mesh::start_due() {
    const auto now = Clock::now();
    for (Outgoing& attempt : outgoing_) {
        const auto& known = addresses(attempt.peer);
        const bool late = attempt.state == Outgoing::State::connecting && known.size() > 1 &&
                          now >= attempt.moment;
        if (late) retry(attempt, "no answer");
        if (attempt.state != Outgoing::State::idle || now < attempt.moment) continue;
        int error = 0;
        attempt.fd = start_connect(known[attempt.address], &error);
        check_descriptors(error);
        if (!attempt.fd) {
            retry(attempt, errno_text(error));
        } else {
            attempt.state = Outgoing::State::connecting;
            attempt.moment = now + connect_patience;
        }
    }
}

int Mesh::pause_ms() const {
    auto until =
        Clock::now() + std::min<Clock::duration>(deadline_.remaining(), interrupt_interval);
    for (const Outgoing& attempt : outgoing_) {
        if (attempt.state == Outgoing::State::idle) until = std::min(until, attempt.moment);
    }
    const auto pause = std::chrono::ceil<milliseconds>(until - Clock::now()).count();
    return static_cast<int>(std::max<long long>(0, pause));
}

// Waits for any of the sockets and serves all that are ready.
void Mesh::step() {
    std::vector<pollfd> polls{{listener_.get(), POLLIN, 0}};
    for (const Outgoing& attempt : outgoing_) {
        const bool connecting = attempt.state == Outgoing::State::connecting;
        const bool open = connecting || attempt.state == Outgoing::State::greeted;
        const short events = connecting ? POLLOUT : POLLIN;
        polls.push_back({open ? attempt.fd.get() : -1, events, 0});
    }
    for (const Incoming& newcomer : incoming_) polls.push_back({newcomer.fd.get(), POLLIN, 0});
    const int count = ::poll(polls.data(), polls.size(), pause_ms());
    PYCOMM_CHECK(count >= 0 || errno == EINTR, transport, "poll: ", errno_text(errno));

    size_t next = 1;
    for (Outgoing& attempt : outgoing_) {
        if (count > 0 && polls[next++].revents != 0) advance(attempt);
    }
    const auto now = Clock::now();
    std::erase_if(incoming_, [&](Incoming& newcomer) {
        const bool ready = count > 0 && polls[next++].revents != 0;
        return (ready && greet_newcomer(newcomer)) || now >= newcomer.until;
    });
    if (count > 0 && polls[0].revents != 0) accept_all();
}

std::string Mesh::hello(const Outgoing& attempt) const {
    std::string bytes(magic);
    put_u32(bytes, version);
    put_u32(bytes, static_cast<uint32_t>(rank_));
    put_u32(bytes, static_cast<uint32_t>(attempt.peer));
    put_u32(bytes, static_cast<uint32_t>(attempt.link));
    return bytes + token_;
}

// Connected: say hello. Answered: the link is made.
void Mesh::advance(Outgoing& attempt) {
    if (attempt.state == Outgoing::State::connecting) {
        const int error = connect_error(attempt.fd.get());
        if (error != 0) return retry(attempt, errno_text(error));
        set_no_delay(attempt.fd.get());
        if (!send_at_once(attempt.fd.get(), hello(attempt)))
            return retry(attempt, "closed at once");
        attempt.state = Outgoing::State::greeted;
        return;
    }
    if (!read_some(attempt.fd.get(), answer_bytes, &attempt.in)) {
        return retry(attempt, "it turned this rank away; another program may listen there");
    }
    if (attempt.in.size() < answer_bytes) return;
    std::string expected(magic);
    put_u32(expected, version);
    put_u32(expected, static_cast<uint32_t>(attempt.peer));
    if (attempt.in != expected) return retry(attempt, "another program listens there");
    attempt.state = Outgoing::State::done;
    links(attempt.peer)[static_cast<size_t>(attempt.link)] = std::move(attempt.fd);
    --missing_;
}

void Mesh::accept_all() {
    // Strangers can hold this many places at most, each for a few seconds.
    const size_t most = static_cast<size_t>(size_) * links_per_peer + 64;
    while (incoming_.size() < most) {
        UniqueFd fd(::accept4(listener_.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
        if (!fd && (errno == EINTR || errno == ECONNABORTED)) continue;
        if (!fd) return check_descriptors(errno);
        incoming_.push_back({std::move(fd), Clock::now() + hello_patience, ""});
    }
}

// True when the newcomer needs no more attention: it was taken as a link or turned away.
bool Mesh::greet_newcomer(Incoming& newcomer) {
    if (!read_some(newcomer.fd.get(), hello_bytes, &newcomer.in)) return true;
    const std::string& in = newcomer.in;
    const size_t checked = std::min(in.size(), magic.size());
    if (in.compare(0, checked, magic.substr(0, checked)) != 0) return true;
    if (in.size() < hello_bytes) return false;
    const uint32_t from = get_u32(in.data() + 12);
    const uint32_t to = get_u32(in.data() + 16);
    const uint32_t link = get_u32(in.data() + 20);
    const bool known = get_u32(in.data() + 8) == version &&
                       in.compare(24, token_bytes, token_) == 0 &&
                       from < static_cast<uint32_t>(rank_) && to == static_cast<uint32_t>(rank_) &&
                       link < links_per_peer;
    if (!known) return true;
    set_no_delay(newcomer.fd.get());
    std::string answer(magic);
    put_u32(answer, version);
    put_u32(answer, static_cast<uint32_t>(rank_));
    if (!send_at_once(newcomer.fd.get(), answer)) return true;
    UniqueFd& place = links(static_cast<int>(from))[link];
    if (!place) --missing_;
    place = std::move(newcomer.fd);
    return true;
}

void Mesh::fail_missing() {
    std::vector<int> missing;
    std::string reasons;
    for (int peer = 0; peer < size_; ++peer) {
        if (peer == rank_) continue;
        const auto& made = links(peer);
        if (std::all_of(made.begin(), made.end(), [](const UniqueFd& fd) { return bool(fd); }))
            continue;
        missing.push_back(peer);
        const std::string& reason = failures_[static_cast<size_t>(peer)];
        const char* silent = peer < rank_ ? "it did not connect to this rank" : "no answer";
        reasons += concat(reasons.empty() ? "" : "; ", "rank ", peer, ": ",
                          reason.empty() ? silent : reason);
    }
    throw Error(ErrorCode::timeout,
                concat("tcp: rank ", rank_, " of ", size_, " could not connect to rank ",
                       join_ranks(missing), " within ", deadline_.seconds(), " s (", reasons, ")"),
                missing);
}

}  // namespace

std::vector<PeerLinks> connect_mesh(Bootstrap& bootstrap, const TcpOptions& options) {
    return Mesh(bootstrap, options).run();
}

}  // namespace pycomm
