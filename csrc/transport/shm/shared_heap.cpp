// Pages in and out.
#include "transport/shm/shared_heap.h"

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>

#include "base/error.h"

namespace pycomm {
namespace {

constexpr size_t page = 4096;

}  // namespace

void PageList::insert(size_t begin, size_t pages) {
    total_ += pages;
    auto next = runs_.lower_bound(begin);
    if (next != runs_.end() && next->first == begin + pages) {
        pages += next->second;
        next = runs_.erase(next);
    }
    if (next != runs_.begin()) {
        const auto previous = std::prev(next);
        if (previous->first + previous->second == begin) {
            previous->second += pages;
            return;
        }
    }
    runs_.emplace(begin, pages);
}

bool PageList::take(size_t pages, size_t& begin) {
    auto best = runs_.end();
    for (auto run = runs_.begin(); run != runs_.end(); ++run) {
        if (run->second >= pages && (best == runs_.end() || run->second < best->second)) best = run;
    }
    if (best == runs_.end()) return false;
    begin = best->first;
    const size_t left = best->second - pages;
    runs_.erase(best);
    if (left > 0) runs_.emplace(begin + pages, left);
    total_ -= pages;
    return true;
}

std::map<size_t, size_t> PageList::take_all() {
    total_ = 0;
    return std::exchange(runs_, {});
}

SharedHeap::SharedHeap(std::shared_ptr<SharedRegion> region, size_t begin, size_t bytes)
    : region_(std::move(region)), begin_(begin), bytes_(bytes) {
    clean_.insert(begin / page, bytes / page);
}

bool SharedHeap::owns(const void* memory) const {
    const auto* place = static_cast<const std::byte*>(memory);
    return place >= region_->data() + begin_ && place < region_->data() + begin_ + bytes_;
}

void SharedHeap::empty_cache() {
    for (const auto& [begin, pages] : cached_.take_all()) {
        region_->give_back(begin * page, pages * page);
        clean_.insert(begin, pages);
    }
}

bool SharedHeap::reserve(size_t pages, size_t& begin, std::string& why) {
    if (!clean_.take(pages, begin)) {
        why = concat("wanted ", pages * page,
                     " bytes of symmetric memory, the address space for it has ", bytes_, " bytes");
        return false;
    }
    try {
        region_->reserve(begin * page, pages * page);
        return true;
    } catch (const Error& error) {
        why = error.what();
        region_->give_back(begin * page, pages * page);
        clean_.insert(begin, pages);
        return false;
    }
}

void* SharedHeap::allocate(size_t bytes, bool zeroed, std::string& why) {
    if (fork_generation() != generation_) {
        why = "the heap belongs to the process that this one was forked from";
        return nullptr;
    }
    const size_t pages = std::max<size_t>(1, bytes / page + (bytes % page != 0 ? 1 : 0));
    const std::lock_guard lock(mutex_);
    size_t begin = 0;
    const bool reused = cached_.take(pages, begin);
    if (!reused && !reserve(pages, begin, why)) {
        if (cached_.total() == 0) return nullptr;
        empty_cache();
        if (!reserve(pages, begin, why)) return nullptr;
    }
    used_.emplace(begin, pages);
    std::byte* memory = region_->data() + begin * page;
    if (reused && zeroed) std::memset(memory, 0, pages * page);
    return memory;
}

size_t SharedHeap::page_of(void* memory) const {
    return static_cast<size_t>(static_cast<std::byte*>(memory) - region_->data()) / page;
}

size_t SharedHeap::size_of(void* memory) {
    const std::lock_guard lock(mutex_);
    const auto entry = used_.find(page_of(memory));
    return entry == used_.end() ? 0 : entry->second * page;
}

void SharedHeap::deallocate(void* memory) {
    if (memory == nullptr || fork_generation() != generation_) return;
    const std::lock_guard lock(mutex_);
    const auto entry = used_.find(page_of(memory));
    if (entry == used_.end()) return;
    const auto [begin, pages] = *entry;
    used_.erase(entry);
    if ((cached_.total() + pages) * page <= cached_bytes) {
        cached_.insert(begin, pages);
    } else {
        region_->give_back(begin * page, pages * page);
        clean_.insert(begin, pages);
    }
}

std::shared_ptr<SharedRegion> make_heap_region(Bootstrap& bootstrap, size_t& part,
                                               const Deadline& deadline) {
    const auto ranks = static_cast<size_t>(bootstrap.size());
    constexpr size_t smallest = size_t{64} << 20;
    // As much as the machine has, for each rank; less where address space or files are limited.
    size_t wanted = static_cast<size_t>(sysconf(_SC_PHYS_PAGES)) * page;
    rlimit limit{};
    if (getrlimit(RLIMIT_FSIZE, &limit) == 0) {
        wanted = std::min<size_t>(wanted, limit.rlim_cur / ranks);
    }
    if (getrlimit(RLIMIT_AS, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY) {
        wanted = std::min<size_t>(wanted, limit.rlim_cur / 2 / ranks);
    }
    for (const auto& text : bootstrap.all_gather(std::to_string(wanted), deadline)) {
        wanted = std::min<size_t>(wanted, std::stoull(text));
    }
    for (part = wanted / page * page;; part = part / 4 / page * page) {
        try {
            return make_sparse_region(bootstrap, part * ranks, deadline);
        } catch (const Error& error) {
            if (error.code() != ErrorCode::transport || part / 4 < smallest) throw;
        }
    }
}

}  // namespace pycomm
