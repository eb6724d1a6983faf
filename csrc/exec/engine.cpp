// The driver loop, its worker thread and the handling of failures.
#include "exec/engine.h"

#include <sched.h>

#include <algorithm>

#include "base/futex.h"

namespace pycomm {
namespace {

using std::chrono::milliseconds;
using std::chrono::nanoseconds;

// Waiting this long without a look at deadlines, peers and signals is fine.
constexpr milliseconds look_interval{50};
// About 50 us of spinning, or some tens of us of yielding, before the driver sleeps. A pass over
// mapped memory takes some 50 ns, over sockets microseconds: then time ends the spinning.
constexpr int spin_passes = 1000;
constexpr int yield_passes = 40;
constexpr int passes_before_yield = 200;
constexpr std::chrono::microseconds spin_time{50};
constexpr int passes_between_clocks = 16;
// A pass that moves data looks at the clock only now and then.
constexpr unsigned passes_between_looks = 256;

Deadline next_look() {
    return Deadline::after(std::chrono::duration<double>(look_interval).count());
}

}  // namespace

Error fault_error(const Fault& fault, int rank, bool earlier) {
    std::string text;
    if (earlier) text = "this communicator is broken by an earlier error: ";
    text += fault.text;
    if (fault.reporter >= 0 && fault.reporter != rank) {
        text += concat(" [reported by rank ", fault.reporter, "]");
    }
    return Error(fault.code, text, fault.ranks);
}

Engine::Engine(Transport& transport, bool spin)
    : transport_(transport), spin_(spin), point_to_point_(transport), next_look_(next_look()) {}

Engine::~Engine() {
    stop();
}

void Engine::check_usable() {
    const std::lock_guard lock(mutex_);
    check_usable_locked();
}

// stop_once() needs mutex_, so the transport lives while it is held and stopping_ is not set.
void Engine::check_usable_locked() {
    PYCOMM_CHECK(!stopping_.load(), argument, "this communicator is closed");
    if (const Fault* fault = transport_.fault()) throw fault_error(*fault, transport_.rank(), true);
}

void Engine::check_peers(const std::vector<int>& peers) {
    std::unique_lock lock(mutex_);
    check_usable_locked();
    if (driving_) return;
    driving_ = true;
    lock.unlock();
    std::optional<Fault> lost;
    for (const int peer : peers) {
        if (lost || peer == transport_.rank() || transport_.alive(peer)) continue;
        lost = Fault{ErrorCode::peer_lost,
                     transport_.rank(),
                     {peer},
                     concat("rank ", peer, " has ended or closed its communicator while rank ",
                            transport_.rank(), " of ", transport_.size(),
                            " sets up a communicator or memory with it")};
    }
    if (lost) break_communicator(*lost);
    lock.lock();
    driving_ = false;
    changed_.notify_all();
    if (lost) throw fault_error(*lost, transport_.rank(), false);
}

void Engine::enqueue(TaskList tasks) {
    for (const auto& task : tasks) incoming_.push_back(task);
    unfinished_ += static_cast<int>(tasks.size());
    has_incoming_.store(true);
}

void Engine::run(TaskList tasks, const InterruptHook& hook) {
    std::unique_lock lock(mutex_);
    check_usable_locked();
    enqueue(tasks);
    run_queued(tasks, lock, hook);
}

// Drives, or waits for whoever does, until `tasks` are finished. `lock` holds mutex_.
void Engine::run_queued(TaskList tasks, std::unique_lock<std::mutex>& lock,
                        const InterruptHook& hook) {
    const auto satisfied = [&] {
        return std::all_of(tasks.begin(), tasks.end(), [](const auto& t) { return t->finished(); });
    };
    if (driving_) transport_.wake();
    std::exception_ptr interrupt;
    while (!satisfied()) {
        if (!driving_) {
            driving_ = true;
            lock.unlock();
            try {
                drive([&] { return satisfied() || stopping_.load(); }, hook, spin_);
            } catch (...) {
                interrupt = std::current_exception();  // the tasks have failed with it
            }
            if (stopping_.load()) fail_all(stopped_error());
            lock.lock();
            driving_ = false;
            changed_.notify_all();
        } else {
            sleep_until(lock, look_interval, [&] { return satisfied() || !driving_; });
            if (satisfied() || interrupt || !hook) continue;
            lock.unlock();
            try {
                hook();
            } catch (...) {
                // The buffers belong to the caller: leave only when no task can touch them any
                // more.
                interrupt = std::current_exception();
                abort(concat("rank ", transport_.rank(), " was interrupted during ",
                             tasks.front()->describe()));
            }
            lock.lock();
        }
    }
    lock.unlock();
    if (interrupt) std::rethrow_exception(interrupt);
    for (const auto& task : tasks) {
        if (task->error()) std::rethrow_exception(task->error());
    }
}

void Engine::submit(const std::shared_ptr<Task>& task) {
    const std::lock_guard lock(mutex_);
    check_usable_locked();
    enqueue({&task, 1});
    if (!worker_.joinable()) worker_ = std::thread([this] { worker_loop(); });
    if (driving_) {
        transport_.wake();
    } else {
        changed_.notify_all();
    }
}

bool Engine::wait(const Task& task, std::optional<double> seconds, const InterruptHook& hook) {
    if (task.finished()) return true;
    const Deadline deadline = Deadline::after(seconds.value_or(0));
    std::unique_lock lock(mutex_);
    while (!task.finished()) {
        if (seconds && deadline.expired()) return false;
        const nanoseconds slice =
            seconds ? std::min<nanoseconds>(look_interval, deadline.remaining()) : look_interval;
        sleep_until(lock, slice, [&] { return task.finished(); });
        if (hook && !task.finished()) {
            lock.unlock();
            hook();
            lock.lock();
        }
    }
    return true;
}

// Sleeps in changed_ until `condition` holds, at most `at_most`. `lock` holds mutex_.
void Engine::sleep_until(std::unique_lock<std::mutex>& lock, nanoseconds at_most,
                         const Satisfied& condition) {
    ++sleepers_;  // before the condition is looked at: finish() sets it, then looks at sleepers_
    changed_.wait_for(lock, at_most, condition);
    --sleepers_;
}

void Engine::worker_loop() {
    std::unique_lock lock(mutex_);
    while (true) {
        changed_.wait(lock, [&] { return stopping_ || (!driving_ && unfinished_ > 0); });
        if (stopping_) return;
        driving_ = true;
        lock.unlock();
        drive([&] { return unfinished_ == 0 || stopping_.load(); }, nullptr, false);
        if (stopping_.load()) fail_all(stopped_error());
        lock.lock();
        driving_ = false;
        changed_.notify_all();
    }
}

void Engine::drive(const Satisfied& satisfied, const InterruptHook& hook, bool spin) {
    int idle_passes = 0;
    next_look_ = next_look();
    while (!satisfied()) {
        if (pass()) {
            idle_passes = 0;
            if (++passes_ % passes_between_looks == 0) look_around(hook);
        } else {
            rest(idle_passes, spin, satisfied, hook);
        }
    }
}

// One idle moment of the driver: spin, yield, or sleep until something changes.
void Engine::rest(int& idle_passes, bool spin, const Satisfied& satisfied,
                  const InterruptHook& hook) {
    if (idle_passes < (spin ? spin_passes : yield_passes)) {
        ++idle_passes;
        if (spin) {
            // The other side may have been put on this very core.
            idle_passes > passes_before_yield ? static_cast<void>(sched_yield()) : cpu_relax();
            if (idle_passes % passes_between_clocks != 1) return;
            const auto now = Deadline::Clock::now();
            if (idle_passes == 1) spin_end_ = now + spin_time;
            if (now >= spin_end_) idle_passes = spin_passes;
        } else {
            sched_yield();
        }
        return;
    }
    transport_.prepare_wait();
    if (pass() || satisfied()) {
        transport_.cancel_wait();
        idle_passes = 0;
        return;
    }
    nanoseconds slice = look_interval;
    std::vector<int> waiting;
    for (const auto& task : open_tasks()) {
        slice = std::min(slice, task->deadline().remaining());
        task->publish_waiting();
        const auto peers = task->last_waiting();
        waiting.insert(waiting.end(), peers.begin(), peers.end());
        if (!task->is_collective()) continue;
        const std::lock_guard lock(holding_mutex_);
        holding_ = peers;
    }
    transport_.post_waiting(waiting);
    transport_.wait(slice);
    if (pass()) {
        idle_passes = 0;
        return;
    }
    look_around(hook);
}

bool Engine::pass() {
    bool moved = has_incoming_.load() && take_incoming();
    if (const Fault* fault = transport_.fault()) {
        if (unfinished_ == 0) return moved;
        // What the others have done for operations before the fault is here, and completes them.
        while (advance_collectives() | advance_point_to_point()) {
        }
        fail_all(fault_error(*fault, transport_.rank(), false));
        return true;
    }
    moved |= advance_collectives();
    moved |= advance_point_to_point();
    return moved;
}

bool Engine::take_incoming() {
    std::vector<std::shared_ptr<Task>> tasks;
    {
        const std::lock_guard lock(mutex_);
        tasks.swap(incoming_);
        has_incoming_.store(false);
    }
    for (auto& task : tasks) queue(std::move(task));
    return !tasks.empty();
}

void Engine::queue(std::shared_ptr<Task> task) {
    if (task->is_collective()) {
        collectives_.push_back(std::move(task));
    } else {
        point_to_point_.post(std::static_pointer_cast<PointToPointTask>(std::move(task)));
    }
}

bool Engine::advance_collectives() {
    bool moved = false;
    while (!collectives_.empty()) {
        Task& task = *collectives_.front();
        try {
            moved |= task.progress();
        } catch (const Error& error) {
            break_communicator({error.code(), transport_.rank(), error.ranks(), error.what()});
            return true;
        } catch (const std::exception& error) {
            break_communicator({ErrorCode::comm,
                                transport_.rank(),
                                {},
                                concat(task.describe(), ": ", error.what())});
            return true;
        }
        if (!task.complete()) break;
        const std::shared_ptr<Task> done = std::move(collectives_.front());
        collectives_.pop_front();
        finish(*done, nullptr);
        moved = true;
    }
    return moved;
}

bool Engine::advance_point_to_point() {
    bool moved = false;
    try {
        moved = point_to_point_.progress(outcomes_);
    } catch (const std::exception& error) {
        const auto* known = dynamic_cast<const Error*>(&error);
        break_communicator({known != nullptr ? known->code() : ErrorCode::comm, transport_.rank(),
                            known != nullptr ? known->ranks() : std::vector<int>{},
                            concat("point-to-point: ", error.what())});
        moved = true;
    }
    for (auto& outcome : outcomes_) finish(*outcome.task, std::move(outcome.error));
    outcomes_.clear();
    return moved;
}

std::vector<std::shared_ptr<Task>> Engine::open_tasks() const {
    auto tasks = point_to_point_.open_tasks();
    if (!collectives_.empty()) tasks.push_back(collectives_.front());
    return tasks;
}

void Engine::look_around(const InterruptHook& hook) {
    const auto late = find_late_task();
    if (!late && !next_look_.expired()) return;
    next_look_ = next_look();
    // A peer may have ended after its last bytes arrived, and bytes may have arrived with the
    // deadline.
    if (auto lost = find_lost_peer()) {
        if (pass()) return;
        lost = find_lost_peer();
        if (lost) return break_communicator(*lost);
    }
    if (late) return break_communicator(*late);
    if (!hook) return;
    try {
        hook();
    } catch (...) {
        const auto tasks = open_tasks();
        break_communicator({ErrorCode::aborted,
                            transport_.rank(),
                            {transport_.rank()},
                            concat("rank ", transport_.rank(), " was interrupted during ",
                                   tasks.empty() ? "a wait" : tasks.back()->describe())});
        throw;
    }
}

std::optional<Fault> Engine::find_lost_peer() const {
    for (const auto& task : open_tasks()) {
        for (const int peer : task->waiting_on()) {
            if (peer == transport_.rank() || transport_.alive(peer)) continue;
            return Fault{ErrorCode::peer_lost,
                         transport_.rank(),
                         {peer},
                         concat("rank ", peer, " has ended or closed its communicator while rank ",
                                transport_.rank(), " of ", transport_.size(), " waits for it in ",
                                task->describe())};
        }
    }
    return std::nullopt;
}

std::vector<int> Engine::waiting_on(const Task& task) const {
    auto peers = task.last_waiting();
    if (!peers.empty() || !task.is_collective() || task.finished()) return peers;
    const std::lock_guard lock(holding_mutex_);
    return holding_;
}

// The ranks that hold up `task`.
std::vector<int> Engine::culprits(const Task& task) const {
    const auto waiting = task.waiting_on();
    return task.waits_indirectly() ? transport_.trace(waiting) : waiting;
}

std::optional<Fault> Engine::find_late_task() const {
    const size_t queued = next_look_.expired() ? collectives_.size() : 0;
    for (size_t i = 1; i < queued; ++i) {
        const Task& task = *collectives_[i];
        if (!task.deadline().expired()) continue;
        const auto missing = culprits(*collectives_.front());
        return Fault{
            ErrorCode::timeout, transport_.rank(), missing,
            concat(task.describe(), " on rank ", transport_.rank(), " of ", transport_.size(),
                   " timed out after ", task.deadline().seconds(), " s, queued behind ",
                   collectives_.front()->describe(), ", which waits for rank ", join_ranks(missing),
                   ": ", collectives_.front()->timeout_hint())};
    }
    for (const auto& task : open_tasks()) {
        if (!task->deadline().expired()) continue;
        const auto missing = culprits(*task);
        return Fault{
            ErrorCode::timeout, transport_.rank(), missing,
            concat(task->describe(), " on rank ", transport_.rank(), " of ", transport_.size(),
                   " timed out after ", task->deadline().seconds(), " s waiting for rank ",
                   join_ranks(missing), ": ", task->timeout_hint())};
    }
    return std::nullopt;
}

void Engine::break_communicator(const Fault& fault) {
    transport_.post_fault(fault);
    fail_all(fault_error(fault, transport_.rank(), false));
}

// Called by the driver, without mutex_.
void Engine::fail_all(const Error& error) {
    // Peers may be working on arrays that go back to their owners now.
    point_to_point_.revoke();
    if (Board* board = transport_.board()) board->withdraw();
    // Each task gets an exception of its own, which its waiter may keep, change and let go alone.
    const auto own = [&] {
        return std::make_exception_ptr(
            Error(error.code(), std::string(error.what()), error.ranks()));
    };
    for (const auto& task : point_to_point_.open_tasks()) finish(*task, own());
    point_to_point_.drop_all();
    while (!collectives_.empty()) {
        finish(*collectives_.front(), own());
        collectives_.pop_front();
    }
    std::vector<std::shared_ptr<Task>> waiting;
    {
        const std::lock_guard lock(mutex_);
        waiting.swap(incoming_);
        has_incoming_.store(false);
    }
    for (const auto& task : waiting) finish(*task, own());
}

void Engine::finish(Task& task, std::exception_ptr error) {
    if (task.finished()) return;
    task.finish(std::move(error));
    --unfinished_;
    if (sleepers_.load() > 0) {
        const std::lock_guard lock(mutex_);
        changed_.notify_all();
    }
}

Error Engine::stopped_error() const {
    return Error(ErrorCode::aborted, concat("the communicator of rank ", transport_.rank(),
                                            " was closed while the operation was in flight"));
}

void Engine::abort(const std::string& reason) {
    const std::lock_guard lock(mutex_);
    if (stopping_.load()) return;
    transport_.post_fault({ErrorCode::aborted, transport_.rank(), {transport_.rank()}, reason});
    transport_.wake();
}

void Engine::stop() {
    std::call_once(stopped_, [this] { stop_once(); });
}

void Engine::stop_once() {
    std::unique_lock lock(mutex_);
    stopping_.store(true);
    transport_.wake();
    changed_.notify_all();
    changed_.wait(lock, [&] { return !driving_; });
    driving_ = true;
    lock.unlock();
    fail_all(stopped_error());
    lock.lock();
    driving_ = false;
    lock.unlock();
    changed_.notify_all();
    if (worker_.joinable()) worker_.join();
}

}  // namespace pycomm
