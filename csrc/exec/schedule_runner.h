// Walks one schedule over the channels of a transport, a little further with every call.
#pragma once

#include <memory>
#include <vector>

#include "base/buffer.h"
#include "schedule/schedule.h"
#include "transport/transport.h"

namespace pycomm {

// The memory a schedule works on. All buffers have the same dtype.
struct Operands {
    Buffer input;
    Buffer output;
    ReduceOp op = ReduceOp::none;
    int64_t divisor = 1;  // of avg, in recv_reduce_all steps
};

class ScheduleRunner {
  public:
    // The schedule and the operands' memory must outlive the runner.
    ScheduleRunner(Transport& transport, Stream stream, const Schedule& schedule,
                   const Operands& operands);

    // Does what can be done now without waiting; returns whether anything moved.
    bool progress();
    bool done() const { return lane_ == schedule_.lanes.size(); }
    // The peers that incomplete steps of the current round wait for.
    std::vector<int> waiting_on() const;

  private:
    void enter_round();
    void skip_empty_rounds();
    bool advance(const Step& step, int64_t& bytes_done);
    bool advance_send(const Step& step, int64_t& bytes_done);
    bool advance_recv(const Step& step, int64_t& bytes_done);
    bool advance_recv_reduce(const Step& step, int64_t& bytes_done);
    bool advance_recv_reduce_all(const Step& step, int64_t& bytes_done);
    bool claim_channels(const Step& step);
    void copy(std::byte* to, const std::byte* from, size_t bytes) const;
    bool streams() const { return operands_.output.bytes() >= smallest_streamed; }
    int64_t step_bytes(const Step& step) const;
    std::byte* at(const Block& block) const;
    const Round& round() const { return schedule_.lanes[lane_].rounds[round_]; }

    Transport& transport_;
    Stream stream_;
    const Schedule& schedule_;
    Operands operands_;
    int64_t element_;   // bytes
    ReduceOp pair_op_;  // op of recv_reduce: avg sums first and is divided by the caller
    std::unique_ptr<std::byte[]> scratch_;
    size_t lane_ = 0;
    size_t round_ = 0;
    std::vector<int64_t> bytes_done_;  // per step of the current round
    size_t open_steps_ = 0;
    // The pass in which a peer's sending or receiving side was last used: steps of a round that
    // share a channel take turns in step order.
    uint64_t pass_ = 0;
    std::vector<uint64_t> send_used_;
    std::vector<uint64_t> recv_used_;
    std::vector<const void*> sources_;  // of recv_reduce_all, in rank order
};

}  // namespace pycomm
