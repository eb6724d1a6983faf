// Drives the operations of one communicator.
//
// Whoever drives owns the transport: a thread inside run(), or the worker thread when operations
// were submitted. Collectives run one after the other in the order they were issued; point-to-point
// operations run side by side with them.
//
//   run():     the caller drives until its operations are finished; when another thread already
//              drives, the caller sleeps until they are finished or it can drive itself
//   submit():  returns at once; the worker drives until nothing is left
//
// The driver passes over all operations; when nothing moves it spins (when every rank has a core)
// or yields, then sleeps in the transport. About every 50 ms of waiting it looks at deadlines, at
// the life of the peers it waits for and, on the caller's thread, at signals. The first error
// breaks the communicator on every rank.
#pragma once

#include <atomic>
#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <thread>
#include <vector>

#include "exec/point_to_point.h"
#include "exec/task.h"
#include "transport/transport.h"

namespace pycomm {

class Engine {
  public:
    // Called about every 50 ms on a waiting caller's thread; ends the wait by throwing.
    using InterruptHook = std::function<void()>;
    using TaskList = std::span<const std::shared_ptr<Task>>;

    // `spin`: every rank of the node has a core of its own.
    Engine(Transport& transport, bool spin);
    ~Engine();

    // Blocks until all `tasks` are finished; throws the error of the first that failed.
    void run(TaskList tasks, const InterruptHook& hook);
    // When nothing else is under way, calls `attempt`, which does an operation on the spot and
    // returns null, or returns the begun task of what it could not finish, which is then run.
    // Returns whether it was called.
    template <typename Attempt>
    bool run_on_the_spot(Attempt&& attempt, const InterruptHook& hook) {
        std::unique_lock lock(mutex_, std::try_to_lock);
        if (!lock || driving_ || unfinished_ > 0) return false;
        check_usable_locked();
        const std::shared_ptr<Task> task = attempt();
        if (!task) return true;
        queue(task);
        ++unfinished_;
        run_queued({&task, 1}, lock, hook);
        return true;
    }
    // Only within run_on_the_spot.
    PointToPoint& messages() { return point_to_point_; }
    void submit(const std::shared_ptr<Task>& task);
    // Blocks until the submitted `task` is finished, at most `seconds` (null: its own deadline ends
    // it); returns whether it is.
    bool wait(const Task& task, std::optional<double> seconds, const InterruptHook& hook);

    // The ranks `task` waits for, or the operation it is queued behind, when the driver last slept.
    std::vector<int> waiting_on(const Task& task) const;
    // Breaks the communicator on all ranks; callable from any thread.
    void abort(const std::string& reason);
    // Ends the worker; operations in flight fail with AbortedError. Idempotent; the transport is
    // not used afterwards.
    void stop();
    // Throws when the communicator is broken or stopped.
    void check_usable();
    // The same, and breaks it when one of `peers` has ended. For waits outside the engine.
    void check_peers(const std::vector<int>& peers);

  private:
    using Satisfied = std::function<bool()>;

    void check_usable_locked();
    void queue(std::shared_ptr<Task> task);
    void run_queued(TaskList tasks, std::unique_lock<std::mutex>& lock, const InterruptHook& hook);
    void enqueue(TaskList tasks);
    void drive(const Satisfied& satisfied, const InterruptHook& hook, bool spin);
    bool pass();
    bool take_incoming();
    bool advance_collectives();
    bool advance_point_to_point();
    void rest(int& idle_passes, bool spin, const Satisfied& satisfied, const InterruptHook& hook);
    void look_around(const InterruptHook& hook);
    std::vector<std::shared_ptr<Task>> open_tasks() const;
    std::optional<Fault> find_lost_peer() const;
    std::optional<Fault> find_late_task() const;
    std::vector<int> culprits(const Task& task) const;
    void break_communicator(const Fault& fault);
    void fail_all(const Error& error);
    void finish(Task& task, std::exception_ptr error);
    void sleep_until(std::unique_lock<std::mutex>& lock, std::chrono::nanoseconds at_most,
                     const Satisfied& condition);
    void worker_loop();
    void stop_once();
    Error stopped_error() const;

    Transport& transport_;
    const bool spin_;

    std::mutex mutex_;
    std::condition_variable changed_;
    bool driving_ = false;
    std::vector<std::shared_ptr<Task>> incoming_;
    std::atomic<bool> has_incoming_{false};
    std::atomic<bool> stopping_{false};
    std::atomic<int> unfinished_{0};
    std::atomic<int> sleepers_{0};  // threads in changed_ that wait for a task
    mutable std::mutex holding_mutex_;
    std::vector<int> holding_;  // the ranks the first collective waits for
    std::thread worker_;
    std::once_flag stopped_;

    // Owned by the driver.
    std::deque<std::shared_ptr<Task>> collectives_;
    PointToPoint point_to_point_;
    std::vector<PointToPoint::Outcome> outcomes_;
    Deadline next_look_;
    unsigned passes_ = 0;
    Deadline::Clock::time_point spin_end_;
};

// The error that operations on a broken communicator raise.
Error fault_error(const Fault& fault, int rank, bool earlier);

}  // namespace pycomm
