// One collective operation: what was asked for, and the task that carries it out.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "algorithms/algorithms.h"
#include "algorithms/profile.h"
#include "base/buffer.h"
#include "comm/request.h"
#include "comm/roll_call.h"
#include "direct/direct.h"
#include "exec/schedule_runner.h"
#include "exec/task.h"

namespace pycomm {

// Keeps recently built schedules; safe to use from several threads.
class PlanCache {
  public:
    std::shared_ptr<const Schedule> get(const Problem& problem, Algorithm algorithm);

  private:
    struct Entry {
        Problem problem;
        Algorithm algorithm = Algorithm::automatic;
        std::shared_ptr<const Schedule> schedule;
    };
    std::mutex mutex_;
    std::vector<Entry> entries_;
    size_t next_victim_ = 0;
};

// What the tasks of one communicator share.
struct CollectiveContext {
    Transport& transport;
    PlanCache plans;
    std::string forced_algorithms;  // PYCOMM_ALGO
    bool check = true;              // PYCOMM_CHECK
    uint64_t sequence = 0;          // of the last collective that started; owned by the driver
    DirectScratch scratch;          // the same
    int spins = 0;                  // passes without progress before a quick call gives up
    bool yields = false;            // and it yields in them
    Choices measured;               // by a profile; where it says nothing, the built-in ones
};

// Whether calls of this kind may go over mapped memory.
bool goes_direct(const CollectiveContext& context, OpKind kind);

// What a profile says about a kind that PYCOMM_ALGO leaves open.
std::span<const Threshold> measured_choices(const CollectiveContext& context, OpKind kind);

// The call on mapped memory. `request` must outlive it.
DirectCall direct_call(const CollectiveContext& context, const CollectiveRequest& request,
                       uint64_t sequence);

// What a rank has put on the board.
struct Posted {
    Envelope envelope;
    Parcel parcel;
};

class CollectiveTask final : public Task {
  public:
    // `request` has passed check_request.
    CollectiveTask(CollectiveContext& context, CollectiveRequest request, const Deadline& deadline);
    // A quick call that was posted, as the last one of `context`, and could not be finished.
    CollectiveTask(CollectiveContext& context, CollectiveRequest request, const Deadline& deadline,
                   const Posted& posted);

    bool progress() override;
    bool complete() const override { return stage_ == Stage::complete; }
    std::vector<int> waiting_on() const override;
    bool waits_indirectly() const override { return stage_ != Stage::roll_call; }
    std::string describe() const override;
    std::string timeout_hint() const override;

  private:
    enum class Stage { queued, roll_call, counts, direct, running, complete };

    void start();
    bool may_go_direct() const;
    void start_direct();
    void enter_direct();
    void part_overlapping();
    void enter_counts();
    void check_announced() const;
    void check_counts(int from, int to, int64_t sent, int64_t expected) const;
    void enter_running();
    void enter_complete();
    void choose_plan();

    CollectiveContext& context_;
    CollectiveRequest request_;
    std::atomic<uint64_t> sequence_{0};
    Stage stage_ = Stage::queued;
    Algorithm algorithm_ = Algorithm::automatic;
    std::shared_ptr<const Schedule> plan_;  // null: the roll call is all there is to do
    std::optional<RollCall> roll_call_;
    std::optional<DirectCall> direct_;  // when it may be done on mapped memory
    std::unique_ptr<DirectWork> direct_work_;
    std::optional<ScheduleRunner> runner_;
    // 16-bit floats that are summed hop by hop travel as float32.
    bool widened_ = false;
    std::unique_ptr<float[]> wide_input_;
    std::unique_ptr<float[]> wide_output_;
    std::unique_ptr<std::byte[]> input_copy_;  // when input and output overlap in part
    // all_to_all: how much each peer will send, to be compared with recv_counts.
    std::vector<int64_t> announced_;
    std::shared_ptr<const Schedule> counts_plan_;
};

}  // namespace pycomm
