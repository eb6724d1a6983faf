// Tagged messages between pairs of ranks, over the point-to-point stream of a transport.
//
//   sender    header | payload, one message after the other per peer
//   receiver  reads the header, finds the first posted receive with that tag, and lets the payload
//             flow into its buffer; when none has the tag the message is set aside in memory.
//
// The payload of a large message may go from array to array instead: see handover.h.
//
// The stream is read only while a receive from that peer is posted, so what nobody asked for waits
// at the sender. Messages of one pair and tag keep their order. A receive whose count or dtype
// differs from the message fails with MismatchError on the receiving rank; the message is dropped
// and the next one is intact.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <vector>

#include "base/buffer.h"
#include "exec/handover.h"
#include "exec/task.h"
#include "transport/transport.h"

namespace pycomm {

class PointToPointTask final : public Task {
  public:
    PointToPointTask(OpKind kind, const Buffer& buffer, int rank, int peer, int tag,
                     uint64_t number, const Deadline& deadline);

    bool progress() override { return false; }  // PointToPoint moves it
    bool complete() const override { return finished(); }
    std::vector<int> waiting_on() const override { return {peer_}; }
    std::string describe() const override;
    std::string timeout_hint() const override;
    bool is_collective() const override { return false; }
    // The first of a group gathers what the others send, and sends it to them.
    bool waits_indirectly() const override { return is_internal(); }

  private:
    friend class PointToPoint;
    // A message of the library itself, with a tag that callers cannot use.
    bool is_internal() const { return tag_ < 0; }
    OpKind kind_;  // send or recv
    Buffer buffer_;
    int rank_;
    int peer_;
    int tag_;
    uint64_t number_;
    size_t header_done_ = 0;  // bytes, of a send
    size_t bytes_done_ = 0;
    uint64_t offer_ = 0;  // number of the offer of its payload, 0 when it was not offered
};

// How long a call on the spot looks for the other side before the engine waits on.
struct Patience {
    int looks = 0;
    bool yields = false;
};

// A reference to a function that makes a task, for as long as a call lasts: unlike std::function it
// allocates nothing.
class MakeTask {
  public:
    template <typename Function>
    MakeTask(const Function& function)
        : function_(&function),
          call_([](const void* target) { return (*static_cast<const Function*>(target))(); }) {}
    std::shared_ptr<PointToPointTask> operator()() const { return call_(function_); }

  private:
    const void* function_;
    std::shared_ptr<PointToPointTask> (*call_)(const void*);
};

class PointToPoint {
  public:
    explicit PointToPoint(Transport& transport);

    // A message while nothing else is posted. Returns null when it is done, else the task, begun or
    // not, that goes on with it and has to be posted.
    std::shared_ptr<PointToPointTask> send_now(const Buffer& buffer, int rank, int tag,
                                               const MakeTask& make_task);
    std::shared_ptr<PointToPointTask> recv_now(const Buffer& buffer, int rank, int tag,
                                               const Patience& patience, const MakeTask& make_task);

    void post(std::shared_ptr<PointToPointTask> task);
    // Moves all posted operations a little; finished ones are appended to `finished`, with their
    // error or null set by the caller from `error` of the pair.
    struct Outcome {
        std::shared_ptr<Task> task;
        std::exception_ptr error;
    };
    bool progress(std::vector<Outcome>& finished);
    // The operations that are not finished.
    std::vector<std::shared_ptr<Task>> open_tasks() const;
    void drop_all();
    // Peers shall not write into arrays of operations under way any more.
    void revoke();

  private:
    // Payloads of no more than this follow their header at once, longer ones at the next multiple
    // of 64.
    static constexpr size_t short_bytes = 480;

    struct Header {
        int64_t count;
        uint64_t offset;  // of an ArrayPlace, as window and place
        uint32_t window;
        int32_t tag;
        uint8_t dtype;
        ArrayPlace::Kind place;  // hidden: the payload follows
        uint8_t spare[6];
        size_t bytes() const {
            return static_cast<size_t>(count) * dtype_size(static_cast<DataType>(dtype));
        }
        // A message of its own as far as the channel is concerned, which aligns messages.
        bool stands_alone() const { return bytes() == 0 || bytes() > short_bytes; }
    };
    static_assert(sizeof(Header) == 32);

    // A message that arrived, or is arriving, without a receive for its tag.
    struct Message {
        Header header;
        std::unique_ptr<std::byte[]> data;
        bool arrived = false;
        std::shared_ptr<PointToPointTask> claimed_by;
    };

    struct Peer {
        std::deque<std::shared_ptr<PointToPointTask>> sends;
        std::deque<std::shared_ptr<PointToPointTask>> receives;
        std::deque<std::unique_ptr<Message>> set_aside;
        // The message being read.
        Header header{};
        size_t header_done = 0;
        size_t payload_done = 0;
        std::shared_ptr<PointToPointTask> target;   // receives the payload, or
        Message* aside = nullptr;                   // it is set aside, or it is dropped, and then
        std::shared_ptr<PointToPointTask> refused;  // ends with the error
        std::exception_ptr refusal;
        std::unique_ptr<Fetch> fetch;  // of a payload that goes from array to array
        Deadline::Clock::time_point begun;
        // Numbers of the last offers.
        uint64_t offers_made = 0;
        uint64_t offers_seen = 0;
        bool idle() const {
            return sends.empty() && receives.empty() && !target && !refused && aside == nullptr &&
                   header_done == 0;
        }
    };

    bool progress_sends(int rank, Peer& peer, std::vector<Outcome>& finished);
    bool progress_receives(int rank, Peer& peer, std::vector<Outcome>& finished);
    Header header_of(const Buffer& buffer, int rank, int tag) const;
    bool send_payload(int rank, PointToPointTask& task, bool& moved);
    bool send_header(Channel& channel, const Header& header, const Buffer& buffer,
                     size_t& header_done, size_t& bytes_done);
    bool read_header(int rank, Peer& peer);
    void answer_offer(int rank, Peer& peer);
    bool read_payload(int rank, Peer& peer);
    bool read_offered(int rank, Peer& peer);
    void match(Peer& peer);
    void message_arrived(Peer& peer, std::vector<Outcome>& finished);
    void take_aside(Peer& peer, std::vector<Outcome>& finished);
    std::exception_ptr compare(const Header& header, const PointToPointTask& receive) const;
    void activate(int rank);

    Transport& transport_;
    WayChoice ways_;
    std::vector<Peer> peers_;
    std::vector<int> active_;  // peers that are not idle
};

}  // namespace pycomm
