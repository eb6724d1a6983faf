// All-gather of blobs: one key per call and rank in a store, or one slot per call and rank in
// memory.
#include "store/bootstrap.h"

#include <unistd.h>

#include <algorithm>
#include <condition_variable>
#include <map>
#include <mutex>
#include <optional>

#include "base/error.h"
#include "base/interrupt.h"

namespace pycomm {
namespace {

void check_group(int rank, int size) {
    PYCOMM_CHECK(size >= 1, argument, "a group has at least 1 rank, not ", size);
    PYCOMM_CHECK(rank >= 0 && rank < size, argument, "rank ", rank, " is not in 0 to ", size - 1);
}

// "process 4711 on node17".
std::string this_process() {
    char host[256] = "";
    gethostname(host, sizeof(host) - 1);
    return concat("process ", getpid(), " on ", host);
}

[[noreturn]] void throw_missing(const std::string& call, int rank, int size,
                                const Deadline& deadline, const std::vector<int>& missing) {
    throw Error(
        ErrorCode::timeout,
        concat(call, ": rank ", rank, " of ", size, " waited ", deadline.seconds(), " s for rank ",
               join_ranks(missing), "; check that every rank was started and is still running"),
        missing);
}

}  // namespace

StoreBootstrap::StoreBootstrap(std::shared_ptr<Store> store, int rank, int size, std::string prefix)
    : store_(std::move(store)), rank_(rank), size_(size), prefix_(std::move(prefix)) {
    check_group(rank, size);
    PYCOMM_CHECK(store_ != nullptr, argument, "a bootstrap needs a store");
}

std::string StoreBootstrap::key(int rank) const {
    return concat(prefix_, "/gather/", calls_, '/', rank);
}

std::vector<std::string> StoreBootstrap::all_gather(const std::string& blob,
                                                    const Deadline& deadline) {
    ++calls_;
    check_not_failed(deadline);
    if (calls_ == 1) claim_place(deadline);
    store_->set(key(rank_), blob);
    if (calls_ == 1) compare_size(deadline);  // after this rank is known to be there
    std::vector<std::string> blobs(static_cast<size_t>(size_));
    for (int i = 0; i < size_; ++i) {
        if (i == rank_) {
            blobs[static_cast<size_t>(i)] = blob;
            continue;
        }
        try {
            blobs[static_cast<size_t>(i)] = store_->get(key(i), deadline);
        } catch (const Error& error) {
            if (error.code() != ErrorCode::timeout) throw;
            fail_missing(deadline);
        }
    }
    return blobs;
}

std::string StoreBootstrap::claim(int rank) const {
    return concat(prefix_, "/claim/", rank);
}

// What launchers say of ranks may be wrong: the same rank twice, or other numbers of ranks.
void StoreBootstrap::claim_place(const Deadline& deadline) {
    const std::string own = this_process();
    if (store_->contains(claim(rank_))) {
        const std::string other = store_->get(claim(rank_), deadline);
        const std::string process = other.substr(other.find(' ') + 1);
        PYCOMM_CHECK(process == own, argument, "this process (", own, ") and ", process,
                     " both say that they are rank ", rank_, " of group '", prefix_,
                     "'; every process needs a RANK of its own");
    }
    store_->set(claim(rank_), concat(size_, ' ', own));
}

void StoreBootstrap::compare_size(const Deadline& deadline) const {
    if (rank_ == 0) return;
    try {
        const int size = std::stoi(store_->get(claim(0), deadline));
        PYCOMM_CHECK(size == size_, argument, "rank 0 says that there are ", size, " ranks, rank ",
                     rank_, " that there are ", size_, "; WORLD_SIZE must be the same everywhere");
    } catch (const Error& error) {
        // That rank 0 is missing is said by the exchange.
        if (error.code() != ErrorCode::timeout) throw;
    }
}

void StoreBootstrap::fail_missing(const Deadline& deadline) const {
    std::vector<int> missing;
    for (int i = 0; i < size_; ++i) {
        if (i != rank_ && !store_->contains(key(i))) missing.push_back(i);
    }
    const std::string call = concat("exchange ", calls_, " of group '", prefix_, "'");
    // The last rank may have arrived between the deadline and the question.
    PYCOMM_CHECK(!missing.empty(), timeout, call, ": rank ", rank_, " of ", size_, " waited ",
                 deadline.seconds(), " s; the last rank arrived just then");
    try {
        throw_missing(call, rank_, size_, deadline, missing);
    } catch (const Error& error) {
        std::string note;
        for (const int rank : missing) note += concat(rank, ' ');
        store_->set(prefix_ + "/failed", concat(note, '\n', error.what()));
        throw;
    }
}

// Whoever comes after others have given up need not wait for them.
void StoreBootstrap::check_not_failed(const Deadline& deadline) const {
    const std::string failed = prefix_ + "/failed";
    if (!store_->contains(failed)) return;
    std::istringstream note(store_->get(failed, deadline));
    std::vector<int> missing;
    for (int rank = 0; note >> rank;) missing.push_back(rank);
    note.clear();
    std::string reason;
    std::getline(note, reason);
    throw Error(
        ErrorCode::timeout,
        concat("rank ", rank_, " of ", size_, " came after another rank had given up: ", reason),
        missing);
}

namespace {

// The memory that the ranks of one InprocGroup share.
struct SharedSlots {
    struct Call {
        std::vector<std::optional<std::string>> blobs;
        int arrived = 0;
        int taken = 0;
    };
    std::mutex mutex;
    std::condition_variable arrived;
    std::map<uint64_t, Call> calls;
};

class InprocBootstrap : public Bootstrap {
  public:
    InprocBootstrap(std::shared_ptr<SharedSlots> slots, int rank, int size)
        : slots_(std::move(slots)), rank_(rank), size_(size) {}

    int rank() const override { return rank_; }
    int size() const override { return size_; }

    std::vector<std::string> all_gather(const std::string& blob,
                                        const Deadline& deadline) override {
        const uint64_t number = ++calls_;
        std::unique_lock lock(slots_->mutex);
        SharedSlots::Call& call = slots_->calls[number];
        call.blobs.resize(static_cast<size_t>(size_));
        call.blobs[static_cast<size_t>(rank_)] = blob;
        if (++call.arrived == size_) slots_->arrived.notify_all();
        while (call.arrived < size_) {
            if (deadline.expired()) fail_missing(call, number, deadline);
            slots_->arrived.wait_for(
                lock, std::min<std::chrono::nanoseconds>(deadline.remaining(), interrupt_interval));
            lock.unlock();
            check_interrupt();
            lock.lock();
        }
        std::vector<std::string> blobs;
        for (const std::optional<std::string>& entry : call.blobs) blobs.push_back(*entry);
        if (++call.taken == size_) slots_->calls.erase(number);
        return blobs;
    }

  private:
    [[noreturn]] void fail_missing(const SharedSlots::Call& call, uint64_t number,
                                   const Deadline& deadline) const {
        std::vector<int> missing;
        for (int i = 0; i < size_; ++i) {
            if (!call.blobs[static_cast<size_t>(i)]) missing.push_back(i);
        }
        throw_missing(concat("exchange ", number, " of a group of threads"), rank_, size_, deadline,
                      missing);
    }

    std::shared_ptr<SharedSlots> slots_;
    int rank_;
    int size_;
    uint64_t calls_ = 0;
};

}  // namespace

std::vector<std::shared_ptr<Bootstrap>> InprocGroup::create(int size) {
    check_group(0, size);
    auto slots = std::make_shared<SharedSlots>();
    std::vector<std::shared_ptr<Bootstrap>> group;
    for (int rank = 0; rank < size; ++rank) {
        group.push_back(std::make_shared<InprocBootstrap>(slots, rank, size));
    }
    return group;
}

}  // namespace pycomm
