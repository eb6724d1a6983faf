// The heap of one rank: pages of a sparse region that all ranks of the node have mapped.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <utility>
#include <vector>

#include "base/fork.h"
#include "transport/shm/shared_region.h"
#include "transport/transport.h"

namespace pycomm {

// Free pages: runs [begin, begin + pages), neighbours joined.
class PageList {
  public:
    struct Run {
        size_t begin;
        size_t pages;
    };

    void insert(size_t begin, size_t pages);
    // The first page of `pages` free ones, cut from the shortest run that has them; false when
    // there is none.
    bool take(size_t pages, size_t& begin);
    // Takes out so many pages in all, or everything: the shortest runs, which are of the least use.
    std::vector<Run> take_shortest(size_t pages);
    size_t total() const { return total_; }

  private:
    using ByPlace = std::map<size_t, size_t>;  // begin, pages
    ByPlace::iterator remove(ByPlace::iterator run);

    ByPlace runs_;
    std::set<std::pair<size_t, size_t>> by_length_;  // pages, begin
    size_t total_ = 0;
};

// Pages are reserved when they are handed out, so that a full memory shows then, and given back
// when they are freed, but for cached_bytes of them: a program that allocates the same temporary
// arrays again and again does not pay for new pages each time. When more are freed, short runs go
// first. Small arrays are cut from pages that were reserved together, granule_bytes at a time,
// since each reservation has to find out how much is free.
//
// In a forked process the heap is the parent's: nothing is allocated or freed there.
class SharedHeap final : public Heap {
  public:
    static constexpr size_t cached_bytes = size_t{64} << 20;
    static constexpr size_t granule_bytes = size_t{1} << 20;

    // Hands out [begin, begin + bytes) of the region.
    SharedHeap(std::shared_ptr<SharedRegion> region, size_t begin, size_t bytes);

    void* allocate(size_t bytes, bool zeroed, const SharedOut* shared, std::string& why) override;
    void deallocate(void* memory) override;
    bool owns(const void* memory) const override;
    size_t size_of(void* memory) override;
    std::byte* base() const { return region_->data(); }

  private:
    bool reserve(size_t pages, const SharedOut* shared, size_t& begin, std::string& why);
    bool reserve_some(size_t pages, const SharedOut* shared, size_t& begin, std::string& why);
    void shrink_cache(size_t pages);
    void release(size_t begin, size_t pages);
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

// Collective. `part` is what each rank has of the region; less than usual where address space or
// files are limited. Throws TransportError on all ranks when there is hardly any.
std::shared_ptr<SharedRegion> make_heap_region(Bootstrap& bootstrap, size_t& part,
                                               const Deadline& deadline);

}  // namespace pycomm
