// A started operation, advanced by the engine until it is complete or has failed.
#pragma once

#include <atomic>
#include <exception>
#include <mutex>
#include <string>
#include <vector>

#include "base/deadline.h"

namespace pycomm {

class Task {
  public:
    explicit Task(const Deadline& deadline) : deadline_(deadline) {}
    Task(const Task&) = delete;
    Task& operator=(const Task&) = delete;
    virtual ~Task() = default;

    // Does what can be done now without waiting; returns whether anything moved. Throws Error when
    // the operation cannot succeed.
    virtual bool progress() = 0;
    virtual bool complete() const = 0;
    // The ranks without which it cannot go on.
    virtual std::vector<int> waiting_on() const = 0;
    // Whether those ranks may themselves only be waiting for others in the same operation.
    virtual bool waits_indirectly() const { return false; }
    // "all_reduce #5 (float32, 1000 elements, sum)".
    virtual std::string describe() const = 0;
    // What a timeout means for this operation and what to do about it.
    virtual std::string timeout_hint() const = 0;
    // Point-to-point operations run side by side; collectives one after the other.
    virtual bool is_collective() const { return true; }

    const Deadline& deadline() const { return deadline_; }

    // A copy of waiting_on() for threads other than the driver, renewed by the driver before it
    // sleeps.
    void publish_waiting() {
        auto peers = waiting_on();
        const std::lock_guard lock(waiting_mutex_);
        waiting_ = std::move(peers);
    }
    std::vector<int> last_waiting() const {
        const std::lock_guard lock(waiting_mutex_);
        return waiting_;
    }

    // Set once by the engine; may be read from any thread.
    bool finished() const { return finished_.load(std::memory_order_acquire); }
    void finish(std::exception_ptr error) {
        error_ = std::move(error);
        finished_.store(true);
    }
    // Null when it succeeded. Only valid once finished() holds.
    const std::exception_ptr& error() const { return error_; }

  private:
    Deadline deadline_;
    std::exception_ptr error_;
    std::atomic<bool> finished_{false};
    mutable std::mutex waiting_mutex_;
    std::vector<int> waiting_;
};

}  // namespace pycomm
