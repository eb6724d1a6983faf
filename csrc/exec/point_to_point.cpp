// Matching and moving of tagged messages.
#include "exec/point_to_point.h"

#include <sched.h>

#include <algorithm>
#include <cstring>

#include "base/error.h"
#include "base/futex.h"

namespace pycomm {
namespace {

constexpr size_t quantum_bytes = 65536;
// So much of the payload is published together with the header. The receiver begins with it while
// the sender copies the rest.
constexpr size_t first_bytes = 2048;
// Looking again costs less than a pause as long as the message is about to arrive.
constexpr int eager_looks = 64;

std::string elements_text(int64_t count, DataType type) {
    return concat(count, count == 1 ? " element of " : " elements of ", dtype_name(type));
}

void pause(int looks, const Patience& patience) {
    if (looks < eager_looks) return;
    patience.yields ? static_cast<void>(sched_yield()) : cpu_relax();
}

}  // namespace

PointToPointTask::PointToPointTask(OpKind kind, const Buffer& buffer, int rank, int peer, int tag,
                                   uint64_t number, const Deadline& deadline)
    : Task(deadline),
      kind_(kind),
      buffer_(buffer),
      rank_(rank),
      peer_(peer),
      tag_(tag),
      number_(number) {}

std::string PointToPointTask::describe() const {
    if (is_internal()) {
        return concat("setting up a communicator or memory (", kind_name(kind_),
                      kind_ == OpKind::send ? " to rank " : " from rank ", peer_, ")");
    }
    return concat(kind_name(kind_), " #", number_, " (",
                  elements_text(buffer_.count, buffer_.dtype),
                  kind_ == OpKind::send ? " to rank " : " from rank ", peer_, ", tag ", tag_, ")");
}

std::string PointToPointTask::timeout_hint() const {
    if (is_internal()) return "a rank did not take part in time";
    if (kind_ == OpKind::send) {
        return concat("rank ", peer_, " posted no receive for it (", bytes_done_, " of ",
                      buffer_.bytes(), " bytes are under way)");
    }
    return concat("no message with tag ", tag_, " arrived from rank ", peer_, " (", bytes_done_,
                  " of ", buffer_.bytes(), " bytes received)");
}

PointToPoint::PointToPoint(Transport& transport)
    : transport_(transport),
      ways_(transport.one_copy().always),
      peers_(static_cast<size_t>(transport.size())) {}

void PointToPoint::post(std::shared_ptr<PointToPointTask> task) {
    const int rank = task->peer_;
    Peer& peer = peers_[static_cast<size_t>(rank)];
    activate(rank);
    if (peer.target == task) return;  // begun on the spot
    (task->kind_ == OpKind::send ? peer.sends : peer.receives).push_back(std::move(task));
}

void PointToPoint::activate(int rank) {
    if (std::find(active_.begin(), active_.end(), rank) == active_.end()) active_.push_back(rank);
}

bool PointToPoint::progress(std::vector<Outcome>& finished) {
    bool moved = false;
    for (size_t i = 0; i < active_.size();) {
        const int rank = active_[i];
        Peer& peer = peers_[static_cast<size_t>(rank)];
        moved |= progress_sends(rank, peer, finished);
        moved |= progress_receives(rank, peer, finished);
        if (peer.idle()) {
            active_.erase(active_.begin() + static_cast<std::ptrdiff_t>(i));
        } else {
            ++i;
        }
    }
    return moved;
}

PointToPoint::Header PointToPoint::header_of(const Buffer& buffer, int rank, int tag) const {
    ArrayPlace place;
    if (rank != transport_.rank()) place = offer_payload(transport_, buffer);
    return {buffer.count,
            place.offset,
            place.window,
            tag,
            static_cast<uint8_t>(buffer.dtype),
            place.kind,
            {}};
}

bool PointToPoint::progress_sends(int rank, Peer& peer, std::vector<Outcome>& finished) {
    bool moved = false;
    while (!peer.sends.empty()) {
        PointToPointTask& task = *peer.sends.front();
        const size_t bytes = task.buffer_.bytes();
        const Header header = header_of(task.buffer_, rank, task.tag_);
        if (rank == transport_.rank()) {
            auto message = std::make_unique<Message>();
            message->header = header;
            message->data = std::make_unique_for_overwrite<std::byte[]>(bytes);
            if (bytes > 0) std::memcpy(message->data.get(), task.buffer_.data, bytes);
            message->arrived = true;
            peer.set_aside.push_back(std::move(message));
        } else {
            if (task.header_done_ < sizeof(header)) {
                Channel& channel = transport_.channel(rank, Stream::point_to_point);
                const size_t had = task.header_done_;
                const bool whole =
                    send_header(channel, header, task.buffer_, task.header_done_, task.bytes_done_);
                moved |= task.header_done_ > had;
                if (!whole) return moved;
                if (header.place != ArrayPlace::Kind::hidden) task.offer_ = ++peer.offers_made;
            }
            if (!send_payload(rank, task, moved)) return moved;
        }
        finished.push_back({peer.sends.front(), nullptr});
        peer.sends.pop_front();
        moved = true;
    }
    return moved;
}

// Returns whether the whole payload is on its way, or at its target.
bool PointToPoint::send_payload(int rank, PointToPointTask& task, bool& moved) {
    if (task.offer_ != 0) {
        const Answer answer = read_answer(transport_, rank, task.offer_);
        if (answer == Answer::copying) moved |= help_receiver(transport_, rank, task.buffer_);
        if (answer != Answer::channel) return answer == Answer::finished;
    }
    Channel& channel = transport_.channel(rank, Stream::point_to_point);
    const size_t bytes = task.buffer_.bytes();
    while (task.bytes_done_ < bytes) {
        const size_t left = bytes - task.bytes_done_;
        const size_t piece = std::min(left, quantum_bytes);
        const size_t taken =
            channel.try_send(static_cast<const std::byte*>(task.buffer_.data) + task.bytes_done_,
                             piece, piece == left);
        task.bytes_done_ += taken;
        moved |= taken > 0;
        if (taken < piece) return false;
    }
    return true;
}

// Together with the payload, or its beginning, where that can be: then the other side hears once.
// Returns whether the whole header is on its way.
bool PointToPoint::send_header(Channel& channel, const Header& header, const Buffer& buffer,
                               size_t& header_done, size_t& bytes_done) {
    const auto* from = reinterpret_cast<const std::byte*>(&header);
    const size_t bytes = header.bytes();
    const bool alone = header.stands_alone();
    if (header_done == 0 && header.place == ArrayPlace::Kind::hidden && bytes > 0) {
        const size_t before = alone ? Channel::alignment : sizeof(header);
        const size_t piece = std::min(bytes, first_bytes);
        if (std::byte* place = channel.reserve(before + piece)) {
            std::memcpy(place, from, sizeof(header));
            std::memcpy(place + before, buffer.data, piece);
            channel.publish(before + piece, piece == bytes);
            header_done = sizeof(header);
            bytes_done = piece;
            return true;
        }
    }
    if (header_done > 0 || alone) {
        header_done += channel.try_send(from + header_done, sizeof(header) - header_done, alone);
        return header_done == sizeof(header);
    }
    std::byte message[sizeof(Header) + short_bytes];
    std::memcpy(message, from, sizeof(header));
    std::memcpy(message + sizeof(header), buffer.data, bytes);
    const size_t taken = channel.try_send(message, sizeof(header) + bytes, true);
    header_done = std::min(taken, sizeof(header));
    bytes_done = taken - header_done;
    return header_done == sizeof(header);
}

std::shared_ptr<PointToPointTask> PointToPoint::send_now(const Buffer& buffer, int rank, int tag,
                                                         const MakeTask& make_task) {
    const size_t bytes = buffer.bytes();
    if (rank == transport_.rank()) return make_task();
    Channel& channel = transport_.channel(rank, Stream::point_to_point);
    const Header header = header_of(buffer, rank, tag);
    const bool offered = header.place != ArrayPlace::Kind::hidden;
    size_t header_done = 0;
    size_t bytes_done = 0;
    const bool whole = send_header(channel, header, buffer, header_done, bytes_done);
    if (whole && !offered && bytes_done < bytes) {
        const auto* from = static_cast<const std::byte*>(buffer.data);
        bytes_done += channel.try_send(from + bytes_done, bytes - bytes_done, true);
    }
    if (header_done == sizeof(header) && bytes_done == bytes) return nullptr;
    auto task = make_task();
    task->header_done_ = header_done;
    task->bytes_done_ = bytes_done;
    if (whole && offered) task->offer_ = ++peers_[static_cast<size_t>(rank)].offers_made;
    return task;
}

std::shared_ptr<PointToPointTask> PointToPoint::recv_now(const Buffer& buffer, int rank, int tag,
                                                         const Patience& patience,
                                                         const MakeTask& make_task) {
    Peer& peer = peers_[static_cast<size_t>(rank)];
    if (rank == transport_.rank() || !peer.set_aside.empty() || !peer.idle()) return make_task();
    Channel& channel = transport_.channel(rank, Stream::point_to_point);
    std::span<const std::byte> view;
    for (int looks = 0; view.size() < sizeof(Header); ++looks) {
        view = channel.peek(sizeof(Header));
        if (looks == patience.looks) return make_task();
        pause(looks, patience);
    }
    Header header;
    std::memcpy(&header, view.data(), sizeof(header));
    const bool fits = header.tag == tag && header.count == buffer.count &&
                      header.dtype == static_cast<uint8_t>(buffer.dtype);
    if (!fits || header.place != ArrayPlace::Kind::hidden) return make_task();
    channel.consume(sizeof(header), header.stands_alone());
    const size_t bytes = header.bytes();
    size_t done = 0;
    for (int looks = 0; done < bytes && looks < patience.looks; ++looks) {
        const size_t arrived = channel.try_recv(static_cast<std::byte*>(buffer.data) + done,
                                                bytes - done, true, bytes >= smallest_streamed);
        done += arrived;
        if (arrived > 0) looks = 0;
        pause(looks, patience);
    }
    if (done == bytes) return nullptr;
    auto task = make_task();
    task->bytes_done_ = done;
    peer.header = header;
    peer.header_done = sizeof(header);
    peer.payload_done = done;
    peer.target = task;
    activate(rank);
    return task;
}

bool PointToPoint::progress_receives(int rank, Peer& peer, std::vector<Outcome>& finished) {
    const size_t before = finished.size();
    take_aside(peer, finished);
    bool moved = finished.size() > before;
    if (rank == transport_.rank()) return moved;
    while (true) {
        if (peer.header_done < sizeof(Header)) {
            // Nobody asked: leave the message with its sender.
            if (peer.receives.empty() && peer.header_done == 0) return moved;
            const size_t had = peer.header_done;
            const bool whole = read_header(rank, peer);
            moved |= peer.header_done > had;
            if (!whole) return moved;
            match(peer);
            answer_offer(rank, peer);
        }
        const size_t had = peer.payload_done;
        const bool whole = read_payload(rank, peer);
        moved |= peer.payload_done > had;
        if (!whole) return moved;
        message_arrived(peer, finished);
        moved = true;
    }
}

bool PointToPoint::read_header(int rank, Peer& peer) {
    auto* into = reinterpret_cast<std::byte*>(&peer.header) + peer.header_done;
    Channel& channel = transport_.channel(rank, Stream::point_to_point);
    peer.header_done += channel.try_recv(into, sizeof(Header) - peer.header_done, false, false);
    if (peer.header_done < sizeof(Header)) return false;
    if (peer.header.stands_alone()) channel.consume(0, true);
    return true;
}

// Decides where the payload of the message goes whose header was read.
void PointToPoint::match(Peer& peer) {
    peer.payload_done = 0;
    const auto found =
        std::find_if(peer.receives.begin(), peer.receives.end(),
                     [&](const auto& task) { return task->tag_ == peer.header.tag; });
    if (found == peer.receives.end()) {
        auto message = std::make_unique<Message>();
        message->header = peer.header;
        message->data = std::make_unique_for_overwrite<std::byte[]>(peer.header.bytes());
        peer.aside = message.get();
        peer.set_aside.push_back(std::move(message));
        return;
    }
    std::shared_ptr<PointToPointTask> receive = *found;
    peer.receives.erase(found);
    // A message that does not fit is taken in all the same before its receive fails: its sender
    // must not wait for a rank that may never look at this stream again.
    peer.refusal = compare(peer.header, *receive);
    (peer.refusal ? peer.refused : peer.target) = std::move(receive);
}

// How the payload comes that a sender has offered. What nobody takes needs no copy, and what is set
// aside flows: then its sender need not wait for a receive that may come much later.
void PointToPoint::answer_offer(int rank, Peer& peer) {
    const Header& header = peer.header;
    if (header.place == ArrayPlace::Kind::hidden) return;
    const uint64_t number = ++peer.offers_seen;
    Answer answer = Answer::channel;
    if (peer.refused) {
        peer.payload_done = header.bytes();
        answer = Answer::finished;
    } else if (peer.target) {
        peer.begun = Deadline::Clock::now();
        if (ways_.copies(header.place, header.bytes())) {
            const ArrayPlace source{header.offset, header.window, header.place};
            peer.fetch = std::make_unique<Fetch>(transport_, rank, source, peer.target->buffer_);
            answer = Answer::copying;
        }
    }
    post_answer(transport_, rank, number, answer);
}

// Returns whether it has ended; then it is complete, or flows through the channel after all.
bool PointToPoint::read_offered(int rank, Peer& peer) {
    peer.fetch->progress();
    peer.payload_done = peer.fetch->bytes_done();
    if (!peer.fetch->ended()) return false;
    const bool refused = peer.fetch->refused();
    if (refused) peer.payload_done = 0;
    post_answer(transport_, rank, peer.offers_seen, refused ? Answer::channel : Answer::finished);
    peer.fetch = nullptr;
    return true;
}

bool PointToPoint::read_payload(int rank, Peer& peer) {
    const bool copies = peer.fetch != nullptr;
    if (copies && !read_offered(rank, peer)) return false;
    Channel& channel = transport_.channel(rank, Stream::point_to_point);
    const size_t bytes = peer.header.bytes();
    std::byte* into = peer.target  ? static_cast<std::byte*>(peer.target->buffer_.data)
                      : peer.aside ? peer.aside->data.get()
                                   : nullptr;
    while (peer.payload_done < bytes) {
        const size_t left = bytes - peer.payload_done;
        const size_t piece = std::min(left, quantum_bytes);
        size_t taken = 0;
        if (into != nullptr) {
            taken = channel.try_recv(into + peer.payload_done, piece, piece == left,
                                     bytes >= smallest_streamed);
        } else {
            taken = channel.peek(piece).size();
            if (taken > 0) channel.consume(taken, taken == left);
        }
        if (taken == 0) return false;
        peer.payload_done += taken;
        if (peer.target) peer.target->bytes_done_ = peer.payload_done;
    }
    if (peer.target && peer.header.place != ArrayPlace::Kind::hidden) {
        const std::chrono::duration<double, std::nano> took = Deadline::Clock::now() - peer.begun;
        ways_.add(peer.header.place, bytes, copies, took.count());
    }
    return true;
}

void PointToPoint::message_arrived(Peer& peer, std::vector<Outcome>& finished) {
    if (peer.target) finished.push_back({std::move(peer.target), nullptr});
    if (peer.refused) finished.push_back({std::move(peer.refused), std::move(peer.refusal)});
    if (peer.aside != nullptr) peer.aside->arrived = true;
    peer.target = nullptr;
    peer.refused = nullptr;
    peer.refusal = nullptr;
    peer.aside = nullptr;
    peer.header_done = 0;
    peer.payload_done = 0;
    take_aside(peer, finished);
}

// Gives messages that were set aside to the receives posted since.
void PointToPoint::take_aside(Peer& peer, std::vector<Outcome>& finished) {
    if (peer.set_aside.empty()) return;
    for (auto& message : peer.set_aside) {
        if (message->claimed_by) continue;
        const auto found =
            std::find_if(peer.receives.begin(), peer.receives.end(),
                         [&](const auto& task) { return task->tag_ == message->header.tag; });
        if (found == peer.receives.end()) continue;
        message->claimed_by = *found;
        peer.receives.erase(found);
    }
    for (auto& message : peer.set_aside) {
        if (!message->claimed_by || !message->arrived) continue;
        auto error = compare(message->header, *message->claimed_by);
        const size_t bytes = message->header.bytes();
        if (!error && bytes > 0) {
            std::memcpy(message->claimed_by->buffer_.data, message->data.get(), bytes);
        }
        finished.push_back({std::move(message->claimed_by), std::move(error)});
        message.reset();
    }
    std::erase(peer.set_aside, nullptr);
}

std::exception_ptr PointToPoint::compare(const Header& header,
                                         const PointToPointTask& receive) const {
    const DataType sent = static_cast<DataType>(header.dtype);
    if (header.count == receive.buffer_.count && sent == receive.buffer_.dtype) return nullptr;
    const std::string text = concat(receive.describe(), " on rank ", receive.rank_, ": rank ",
                                    receive.peer_, " sent ", elements_text(header.count, sent),
                                    " with tag ", header.tag, ", but this rank expected ",
                                    elements_text(receive.buffer_.count, receive.buffer_.dtype),
                                    "; the message was dropped, later ones are intact");
    return std::make_exception_ptr(Error(ErrorCode::mismatch, text, {receive.peer_}));
}

std::vector<std::shared_ptr<Task>> PointToPoint::open_tasks() const {
    std::vector<std::shared_ptr<Task>> tasks;
    for (const int rank : active_) {
        const Peer& peer = peers_[static_cast<size_t>(rank)];
        tasks.insert(tasks.end(), peer.sends.begin(), peer.sends.end());
        tasks.insert(tasks.end(), peer.receives.begin(), peer.receives.end());
        if (peer.target) tasks.push_back(peer.target);
        if (peer.refused) tasks.push_back(peer.refused);
        for (const auto& message : peer.set_aside) {
            if (message->claimed_by) tasks.push_back(message->claimed_by);
        }
    }
    return tasks;
}

void PointToPoint::revoke() {
    for (Peer& peer : peers_) {
        if (peer.fetch) peer.fetch->revoke();
    }
}

void PointToPoint::drop_all() {
    for (Peer& peer : peers_) peer = Peer{};
    active_.clear();
}

}  // namespace pycomm
