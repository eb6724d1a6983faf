// Pages in and out.
#include "transport/shm/shared_heap.h"

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <fstream>
#include <optional>

#include "base/error.h"

namespace pycomm {
namespace {

constexpr size_t page = 4096;
constexpr size_t most_cached = SharedHeap::cached_bytes / page;
constexpr size_t granule = SharedHeap::granule_bytes / page;

// How much of the address space the limit leaves to this process.
size_t free_address_space() {
    rlimit limit{};
    if (getrlimit(RLIMIT_AS, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return RLIM_INFINITY;
    std::ifstream file("/proc/self/statm");
    size_t pages = 0;
    file >> pages;
    return limit.rlim_cur > pages * page ? limit.rlim_cur - pages * page : 0;
}

}  // namespace

PageList::ByPlace::iterator PageList::remove(ByPlace::iterator run) {
    by_length_.erase({run->second, run->first});
    total_ -= run->second;
    return runs_.erase(run);
}

void PageList::insert(size_t begin, size_t pages) {
    auto next = runs_.lower_bound(begin);
    if (next != runs_.end() && next->first == begin + pages) {
        pages += next->second;
        next = remove(next);
    }
    if (next != runs_.begin()) {
        const auto previous = std::prev(next);
        if (previous->first + previous->second == begin) {
            begin = previous->first;
            pages += previous->second;
            remove(previous);
        }
    }
    runs_.emplace(begin, pages);
    by_length_.emplace(pages, begin);
    total_ += pages;
}

bool PageList::take(size_t pages, size_t& begin) {
    const auto best = by_length_.lower_bound({pages, 0});
    if (best == by_length_.end()) return false;
    const auto [length, place] = *best;
    remove(runs_.find(place));
    begin = place;
    if (length > pages) insert(place + pages, length - pages);
    return true;
}

std::vector<PageList::Run> PageList::take_shortest(size_t pages) {
    std::vector<Run> taken;
    while (pages > 0 && total_ > 0) {
        Run run{by_length_.begin()->second, std::min(pages, by_length_.begin()->first)};
        take(run.pages, run.begin);
        pages -= run.pages;
        taken.push_back(run);
    }
    return taken;
}

SharedHeap::SharedHeap(std::shared_ptr<SharedRegion> region, size_t begin, size_t bytes)
    : region_(std::move(region)), begin_(begin), bytes_(bytes) {
    clean_.insert(begin / page, bytes / page);
}

bool SharedHeap::owns(const void* memory) const {
    const auto* place = static_cast<const std::byte*>(memory);
    return place >= region_->data() + begin_ && place < region_->data() + begin_ + bytes_;
}

void SharedHeap::release(size_t begin, size_t pages) {
    region_->give_back(begin * page, pages * page);
    clean_.insert(begin, pages);
}

void SharedHeap::shrink_cache(size_t pages) {
    for (const auto& run : cached_.take_shortest(pages)) release(run.begin, run.pages);
}

bool SharedHeap::reserve(size_t pages, const SharedOut* shared, size_t& begin, std::string& why) {
    if (!clean_.take(pages, begin)) {
        why = concat("wanted ", mebibytes(pages * page),
                     " of symmetric memory, the address space for it has ", mebibytes(bytes_));
        return false;
    }
    try {
        region_->reserve(begin * page, pages * page, shared);
        return true;
    } catch (const Error& error) {
        why = error.what();
        release(begin, pages);
        return false;
    }
}

// A granule for small ones, as long as the cache has room for the rest of it.
bool SharedHeap::reserve_some(size_t pages, const SharedOut* shared, size_t& begin,
                              std::string& why) {
    const bool several = pages < granule && cached_.total() + granule <= most_cached;
    if (several && reserve(granule, shared, begin, why)) {
        cached_.insert(begin + pages, granule - pages);
        return true;
    }
    return reserve(pages, shared, begin, why);
}

void* SharedHeap::allocate(size_t bytes, bool zeroed, const SharedOut* shared, std::string& why) {
    if (fork_generation() != generation_) {
        why = "the heap belongs to the process that this one was forked from";
        return nullptr;
    }
    const size_t pages = std::max<size_t>(1, bytes / page + (bytes % page != 0 ? 1 : 0));
    size_t begin = 0;
    bool reused = false;
    {
        const std::lock_guard lock(mutex_);
        reused = cached_.take(pages, begin);
        if (!reused && !reserve_some(pages, shared, begin, why)) {
            const size_t kept = cached_.total();
            if (kept == 0) return nullptr;
            shrink_cache(kept);
            std::optional<SharedOut> now;
            if (shared != nullptr)
                now = {{shared->free.bytes + kept * page, shared->free.source}, shared->ranks};
            if (!reserve(pages, now ? &*now : nullptr, begin, why)) return nullptr;
        }
        used_.emplace(begin, pages);
    }
    std::byte* memory = region_->data() + begin * page;
    if (reused && zeroed) std::memset(memory, 0, pages * page);
    return memory;
}

size_t SharedHeap::page_of(void* memory) const {
    return static_cast<size_t>(static_cast<std::byte*>(memory) - region_->data()) / page;
}

size_t SharedHeap::size_of(void* memory) {
    std::unique_lock lock(mutex_, std::defer_lock);
    if (fork_generation() == generation_) {
        lock.lock();
    } else if (!lock.try_lock()) {
        return 0;  // held by a thread that this process does not have
    }
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
    if (pages > most_cached) {
        release(begin, pages);
        return;
    }
    const size_t together = cached_.total() + pages;
    if (together > most_cached) shrink_cache(together - most_cached);
    cached_.insert(begin, pages);
}

std::shared_ptr<SharedRegion> make_heap_region(Bootstrap& bootstrap, size_t& part,
                                               const Deadline& deadline) {
    const auto ranks = static_cast<size_t>(bootstrap.size());
    constexpr size_t smallest = size_t{1} << 20;
    // As much as the machine has, for each rank; less where address space or files are limited. A
    // limited address space is needed for other things, too.
    size_t wanted = static_cast<size_t>(sysconf(_SC_PHYS_PAGES)) * page;
    rlimit limit{};
    if (getrlimit(RLIMIT_FSIZE, &limit) == 0) {
        wanted = std::min<size_t>(wanted, limit.rlim_cur / ranks);
    }
    wanted = std::min<size_t>(wanted, free_address_space() / 4 / ranks);
    for (const auto& text : bootstrap.all_gather(std::to_string(wanted), deadline)) {
        wanted = std::min<size_t>(wanted, std::stoull(text));
    }
    PYCOMM_CHECK(wanted >= smallest, transport, "wanted address space for symmetric memory, ",
                 mebibytes(smallest), " for each of ", ranks, " ranks, free are ",
                 mebibytes(wanted * ranks), " (RLIMIT_AS, RLIMIT_FSIZE)");
    for (part = wanted / page * page;; part = part / 4 / page * page) {
        try {
            return make_sparse_region(bootstrap, part * ranks, deadline);
        } catch (const Error& error) {
            if (error.code() != ErrorCode::transport || part / 4 < smallest) throw;
        }
    }
}

}  // namespace pycomm
