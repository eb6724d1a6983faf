// The heap of one rank: pages of a sparse region that all ranks of the node have mapped.
#pragma once

#include <map>
#include <memory>
#include <mutex>

#include "base/fork.h"
#include "transport/shm/shared_region.h"
#include "transport/transport.h"

namespace pycomm {

// Free pages by place: [begin, begin + pages), neighbours joined.
class PageList {
  public:
    void insert(size_t begin, size_t pages);
    // The first page of `pages` free ones, cut from the smallest run that has them; false when
    // there is none.
    bool take(size_t pages, size_t& begin);
    // Takes out everything.
    std::map<size_t, size_t> take_all();
    size_t total() const { return total_; }

  private:
    std::map<size_t, size_t> runs_;
    size_t total_ = 0;
};

// Pages are reserved when they are handed out, so that a full memory shows then, and given back
// when they are freed, but for the last cached_bytes: a program that allocates the same temporary
// arrays again and again does not pay for new pages each time.
//
// In a forked process the heap is the parent's: nothing is allocated or freed there.
class SharedHeap final : public Heap {
  public:
    static constexpr size_t cached_bytes = size_t{64} << 20;

    // Hands out [begin, begin + bytes) of the region.
    SharedHeap(std::shared_ptr<SharedRegion> region, size_t begin, size_t bytes);

    void* allocate(size_t bytes, bool zeroed, std::string& why) override;
    void deallocate(void* memory) override;
    bool owns(const void* memory) const override;
    size_t size_of(void* memory) override;

  private:
    bool reserve(size_t pages, size_t& begin, std::string& why);
    void empty_cache();
    size_t page_of(void* memory) const;

    std::shared_ptr<SharedRegion> region_;
    size_t begin_;
    size_t bytes_;
    const uint64_t generation_ = fork_generation();
    std::mutex mutex_;
    PageList clean_;                 // without memory behind them
    PageList cached_;                // with
    std::map<size_t, size_t> used_;  // pages by first page
};

// Collective; null when no address space can be had.
std::shared_ptr<SharedRegion> make_heap_region(Bootstrap& bootstrap, size_t& part,
                                               const Deadline& deadline);

}  // namespace pycomm
