// A map, a mutex and a condition variable.
#include "store/memory_store.h"

#include <algorithm>

#include "base/error.h"
#include "base/interrupt.h"

namespace pycomm {

void MemoryStore::set(const std::string& key, const std::string& value) {
    {
        std::lock_guard lock(mutex_);
        values_[key] = value;
    }
    changed_.notify_all();
}

std::string MemoryStore::get(const std::string& key, const Deadline& deadline) {
    std::unique_lock lock(mutex_);
    auto found = values_.end();
    // Waits for the remaining time anew, so that a clock change cannot stretch it.
    while ((found = values_.find(key)) == values_.end()) {
        PYCOMM_CHECK(!deadline.expired(), timeout, "the key '", key, "' did not appear within ",
                     deadline.seconds(), " s in the memory store");
        changed_.wait_for(
            lock, std::min<std::chrono::nanoseconds>(deadline.remaining(), interrupt_interval));
        lock.unlock();
        check_interrupt();
        lock.lock();
    }
    return found->second;
}

bool MemoryStore::contains(const std::string& key) {
    std::lock_guard lock(mutex_);
    return values_.count(key) != 0;
}

}  // namespace pycomm
