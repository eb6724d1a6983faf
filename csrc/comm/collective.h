// One collective operation: what was asked for, and the task that carries it out.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "algorithms/algorithms.h"
#include "base/buffer.h"
#include "comm/roll_call.h"
#include "direct/direct.h"
#include "exec/schedule_runner.h"
#include "exec/task.h"

namespace pycomm {

// Buffers follow the conventions of algorithms.h; both are contiguous.
struct CollectiveRequest {
    OpKind kind = OpKind::none;
    // What the caller called, when that is not `kind`: split, empty. Ranks compare it.
    OpKind called = OpKind::none;
    Buffer input;
    Buffer output;
    ReduceOp op = ReduceOp::none;
    int root = -1;
    // Elements per rank, for reduce_scatter, all_gather, gather and scatter. For all_to_all see
    // below.
    std::vector<int64_t> counts;
    // The counts were given by the caller on every rank (and are compared), not derived from one
    // buffer.
    bool explicit_counts = false;
    std::vector<int64_t> send_counts;
    std::vector<int64_t> recv_counts;
    // Without explicit counts, where counts follow from rows (reduce_scatter, scatter, all_to_all):
    // rows of the own buffer (of a scatter's root: of the whole), and elements per row.
    int64_t rows = 0;
    int64_t row_elements = 0;
};

// Throws ArgumentError when the request cannot be right on any rank: bad root, op that the dtype
// does not have, counts that do not add up to the buffers. `rank` and `size` are the
// communicator's.
void check_request(const CollectiveRequest& request, int rank, int size);

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
};

class CollectiveTask final : public Task {
  public:
    // `request` has passed check_request.
    CollectiveTask(CollectiveContext& context, CollectiveRequest request, const Deadline& deadline);

    bool progress() override;
    bool complete() const override { return stage_ == Stage::complete; }
    std::vector<int> waiting_on() const override;
    bool waits_indirectly() const override { return stage_ != Stage::roll_call; }
    std::string describe() const override;
    std::string timeout_hint() const override;

  private:
    enum class Stage { queued, roll_call, counts, direct, running, complete };

    void start();
    bool goes_direct() const;
    void start_direct();
    void enter_direct();
    DirectCall make_direct() const;
    bool in_place() const;
    void part_overlapping();
    void enter_counts();
    void check_announced() const;
    void check_counts(int from, int to, int64_t sent, int64_t expected) const;
    void enter_running();
    void enter_complete();
    void choose_plan();
    Problem make_problem() const;
    Envelope make_envelope() const;
    bool reduces() const;

    CollectiveContext& context_;
    CollectiveRequest request_;
    std::atomic<uint64_t> sequence_{0};
    Stage stage_ = Stage::queued;
    Algorithm algorithm_ = Algorithm::automatic;
    std::shared_ptr<const Schedule> plan_;  // null: the roll call is all there is to do
    std::optional<RollCall> roll_call_;
    std::optional<DirectCall> direct_;  // when it may be done on mapped memory
    std::optional<DirectRunner> direct_runner_;
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
