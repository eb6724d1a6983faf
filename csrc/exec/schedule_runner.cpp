// Progress of the steps of a round.
#include "exec/schedule_runner.h"

#include <algorithm>
#include <cstring>

#include "reduce/reduce.h"
#include "transport/mapped/stream_copy.h"

namespace pycomm {
namespace {

// How much one step moves before the next one gets its turn, so that sending and receiving overlap.
constexpr int64_t quantum_bytes = 32768;
// Partial messages are consumed in multiples of this, which keeps every element aligned.
constexpr int64_t alignment = 16;

}  // namespace

ScheduleRunner::ScheduleRunner(Transport& transport, Stream stream, const Schedule& schedule,
                               const Operands& operands)
    : transport_(transport),
      stream_(stream),
      schedule_(schedule),
      operands_(operands),
      element_(static_cast<int64_t>(dtype_size(operands.input.dtype))),
      pair_op_(operands.op == ReduceOp::avg ? ReduceOp::sum : operands.op) {
    const auto size = static_cast<size_t>(transport.size());
    send_used_.resize(size);
    recv_used_.resize(size);
    sources_.resize(size);
    if (schedule_.scratch_count > 0) {
        const auto bytes = static_cast<size_t>(schedule_.scratch_count * element_);
        scratch_ = std::make_unique<std::byte[]>(bytes);
    }
    skip_empty_rounds();
}

std::byte* ScheduleRunner::at(const Block& block) const {
    switch (block.space) {
        case Space::input:
            return operands_.input.at(block.offset);
        case Space::output:
            return operands_.output.at(block.offset);
        case Space::scratch:
            break;
    }
    return scratch_.get() + block.offset * element_;
}

int64_t ScheduleRunner::step_bytes(const Step& step) const {
    return element_ * (step.kind == StepKind::send ? step.src.count : step.dst.count);
}

// Goes to the next round that has open steps, or to the end.
void ScheduleRunner::skip_empty_rounds() {
    while (lane_ < schedule_.lanes.size()) {
        if (round_ == schedule_.lanes[lane_].rounds.size()) {
            ++lane_;
            round_ = 0;
            continue;
        }
        enter_round();
        if (open_steps_ > 0) return;
        ++round_;
    }
}

void ScheduleRunner::enter_round() {
    const auto& steps = round().steps;
    bytes_done_.assign(steps.size(), 0);
    open_steps_ = 0;
    for (size_t i = 0; i < steps.size(); ++i) {
        const Step& step = steps[i];
        if (step.kind == StepKind::copy) {
            const auto bytes = static_cast<size_t>(step_bytes(step));
            if (bytes > 0 && at(step.dst) != at(step.src)) {
                copy(at(step.dst), at(step.src), bytes);
            }
            bytes_done_[i] = step_bytes(step);
        } else if (step_bytes(step) > 0) {
            ++open_steps_;
        }
    }
}

void ScheduleRunner::copy(std::byte* to, const std::byte* from, size_t bytes) const {
    const bool apart = to + bytes <= from || from + bytes <= to;
    if (streams() && apart) {
        stream_copy(to, from, bytes);
    } else {
        std::memmove(to, from, bytes);
    }
}

bool ScheduleRunner::progress() {
    bool moved_ever = false;
    while (!done()) {
        ++pass_;
        bool moved = false;
        const auto& steps = round().steps;
        for (size_t i = 0; i < steps.size(); ++i) {
            const int64_t total = step_bytes(steps[i]);
            if (bytes_done_[i] == total || !claim_channels(steps[i])) continue;
            moved |= advance(steps[i], bytes_done_[i]);
            if (bytes_done_[i] == total) --open_steps_;
        }
        if (open_steps_ == 0) {
            ++round_;
            skip_empty_rounds();
        }
        if (!moved) break;
        moved_ever = true;
    }
    return moved_ever;
}

// False when an earlier, incomplete step of this round uses the channel.
bool ScheduleRunner::claim_channels(const Step& step) {
    if (step.kind == StepKind::recv_reduce_all) {
        const bool taken =
            std::find(recv_used_.begin(), recv_used_.end(), pass_) != recv_used_.end();
        std::fill(recv_used_.begin(), recv_used_.end(), pass_);
        return !taken;
    }
    auto& used = step.kind == StepKind::send ? send_used_ : recv_used_;
    const auto peer = static_cast<size_t>(step.peer);
    return std::exchange(used[peer], pass_) != pass_;
}

bool ScheduleRunner::advance(const Step& step, int64_t& bytes_done) {
    switch (step.kind) {
        case StepKind::send:
            return advance_send(step, bytes_done);
        case StepKind::recv:
            return advance_recv(step, bytes_done);
        case StepKind::recv_reduce:
            return advance_recv_reduce(step, bytes_done);
        case StepKind::recv_reduce_all:
            return advance_recv_reduce_all(step, bytes_done);
        case StepKind::copy:
            break;
    }
    return false;
}

bool ScheduleRunner::advance_send(const Step& step, int64_t& bytes_done) {
    const int64_t left = step_bytes(step) - bytes_done;
    const int64_t piece = std::min(left, quantum_bytes);
    const size_t taken =
        transport_.channel(step.peer, stream_)
            .try_send(at(step.src) + bytes_done, static_cast<size_t>(piece), piece == left);
    bytes_done += static_cast<int64_t>(taken);
    return taken > 0;
}

bool ScheduleRunner::advance_recv(const Step& step, int64_t& bytes_done) {
    const int64_t left = step_bytes(step) - bytes_done;
    const int64_t piece = std::min(left, quantum_bytes);
    const size_t taken = transport_.channel(step.peer, stream_)
                             .try_recv(at(step.dst) + bytes_done, static_cast<size_t>(piece),
                                       piece == left, streams());
    bytes_done += static_cast<int64_t>(taken);
    return taken > 0;
}

bool ScheduleRunner::advance_recv_reduce(const Step& step, int64_t& bytes_done) {
    const int64_t left = step_bytes(step) - bytes_done;
    Channel& channel = transport_.channel(step.peer, stream_);
    const auto view = channel.peek(static_cast<size_t>(std::min(left, quantum_bytes)));
    int64_t ready = static_cast<int64_t>(view.size());
    if (ready < left) ready -= ready % alignment;
    if (ready == 0) return false;
    const void* sources[] = {at(step.src) + bytes_done, view.data()};
    if (step.peer_first) std::swap(sources[0], sources[1]);
    reduce(at(step.dst) + bytes_done, sources, 2, static_cast<size_t>(ready / element_),
           operands_.input.dtype, pair_op_, 1);
    channel.consume(static_cast<size_t>(ready), ready == left);
    bytes_done += ready;
    return true;
}

bool ScheduleRunner::advance_recv_reduce_all(const Step& step, int64_t& bytes_done) {
    const int64_t left = step_bytes(step) - bytes_done;
    const int self = transport_.rank();
    int64_t ready = std::min(left, quantum_bytes);
    for (int rank = 0; rank < transport_.size(); ++rank) {
        if (rank == self) {
            sources_[static_cast<size_t>(rank)] = at(step.src) + bytes_done;
            continue;
        }
        const auto view = transport_.channel(rank, stream_).peek(static_cast<size_t>(ready));
        sources_[static_cast<size_t>(rank)] = view.data();
        ready = static_cast<int64_t>(view.size());
        if (ready < left) ready -= ready % alignment;
        if (ready == 0) return false;
    }
    reduce(at(step.dst) + bytes_done, sources_.data(), transport_.size(),
           static_cast<size_t>(ready / element_), operands_.input.dtype, operands_.op,
           operands_.divisor);
    for (int rank = 0; rank < transport_.size(); ++rank) {
        if (rank == self) continue;
        transport_.channel(rank, stream_).consume(static_cast<size_t>(ready), ready == left);
    }
    bytes_done += ready;
    return true;
}

std::vector<int> ScheduleRunner::waiting_on() const {
    std::vector<int> peers;
    if (done()) return peers;
    const auto& steps = round().steps;
    for (size_t i = 0; i < steps.size(); ++i) {
        const Step& step = steps[i];
        const int64_t total = step_bytes(step);
        if (bytes_done_[i] == total) continue;
        if (step.kind != StepKind::recv_reduce_all) {
            peers.push_back(step.peer);
            continue;
        }
        for (int rank = 0; rank < transport_.size(); ++rank) {
            if (rank == transport_.rank()) continue;
            if (transport_.channel(rank, stream_).peek(alignment).empty()) peers.push_back(rank);
        }
    }
    std::sort(peers.begin(), peers.end());
    peers.erase(std::unique(peers.begin(), peers.end()), peers.end());
    return peers;
}

}  // namespace pycomm
