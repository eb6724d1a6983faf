// Board, doorbells and fault record in mapped memory.
#include "transport/mapped/mapped_transport.h"

#include <sched.h>

#include <algorithm>
#include <cstring>

#include "base/futex.h"
#include "transport/mapped/stream_copy.h"

namespace pycomm {
namespace {

constexpr int max_traced = 64;  // bits of Doorbell::waiting_for
// A rank that waits says so about every 50 ms. One that has not for this long is stopped or busy.
constexpr int64_t stale_nanoseconds = 500'000'000;
// Seconds. A visit to a peer's memory takes some tens of microseconds when nobody stops it.
constexpr double longest_inside = 2.0;

void copy_array(std::byte* to, const std::byte* from, size_t bytes, bool streams) {
    if (streams) {
        stream_copy(to, from, bytes);
    } else {
        std::memcpy(to, from, bytes);
    }
}

int64_t steady_nanoseconds() {
    return std::chrono::nanoseconds(std::chrono::steady_clock::now().time_since_epoch()).count();
}

}  // namespace

MappedTransport::MappedTransport(int rank, Layout layout, std::byte* base)
    : Board(layout.board_slots(base), rank), rank_(rank), layout_(layout), base_(base) {
    channels_.resize(static_cast<size_t>(size()) * stream_count);
    for (int peer = 0; peer < size(); ++peer) {
        if (peer == rank) continue;
        for (int stream = 0; stream < stream_count; ++stream) {
            channels_[static_cast<size_t>(peer * stream_count + stream)] =
                std::make_unique<MappedChannel>(layout_, base_, rank, peer,
                                                static_cast<Stream>(stream));
        }
    }
}

MappedTransport::~MappedTransport() = default;

Channel& MappedTransport::channel(int peer, Stream stream) {
    return *channels_[static_cast<size_t>(peer * stream_count + static_cast<int>(stream))];
}

void MappedTransport::wake_rank(int rank, bool only_if_sleeping) {
    Doorbell& bell = layout_.doorbell(base_, rank);
    if (only_if_sleeping && bell.sleeping.load(std::memory_order_seq_cst) == 0) return;
    bell.sequence.fetch_add(1, std::memory_order_seq_cst);
    futex_wake_all(bell.sequence);
}

void MappedTransport::prepare_wait() {
    Doorbell& bell = layout_.doorbell(base_, rank_);
    ticket_ = bell.sequence.load(std::memory_order_seq_cst);
    bell.sleeping.store(1, std::memory_order_seq_cst);
}

void MappedTransport::cancel_wait() {
    layout_.doorbell(base_, rank_).sleeping.store(0, std::memory_order_seq_cst);
}

void MappedTransport::wait(std::chrono::nanoseconds at_most) {
    Doorbell& bell = layout_.doorbell(base_, rank_);
    futex_wait(bell.sequence, ticket_, at_most);
    bell.sleeping.store(0, std::memory_order_seq_cst);
}

void MappedTransport::wake() {
    wake_rank(rank_, false);
}

// Either the sleeper, who looks once more after it set `sleeping`, sees what was stored before
// this, or this sees the sleeper.
void MappedTransport::wake_sleepers() {
    store_load_fence();
    for (int peer = 0; peer < size(); ++peer) {
        if (peer != rank_) wake_rank(peer, true);
    }
}

uint64_t MappedTransport::stage(const void* data, size_t bytes, Hole hole) {
    const size_t room = (bytes + cache_line - 1) / cache_line * cache_line;
    if (stage_next_ + room > layout_.stage_bytes()) stage_next_ = 0;
    const size_t offset = stage_next_;
    stage_next_ += room;
    const auto* from = static_cast<const std::byte*>(data);
    std::byte* to = layout_.stage(base_, rank_) + offset;
    if (hole.begin > 0 || hole.end == 0) {
        stage_copy_.copy(to, from, hole.end == 0 ? bytes : hole.begin);
    }
    if (hole.end > 0 && hole.end < bytes) {
        stage_copy_.copy(to + hole.end, from + hole.end, bytes - hole.end);
    }
    return offset;
}

const std::byte* MappedTransport::staged(int rank, uint64_t offset) const {
    return layout_.stage(base_, rank) + offset;
}

// Two operations are under way at most.
size_t MappedTransport::largest_staged() const {
    return layout_.stage_bytes() / 4;
}

void MappedTransport::write(uint64_t offset, const void* data, size_t bytes) {
    stage_copy_.copy(layout_.stage(base_, rank_) + offset, static_cast<const std::byte*>(data),
                     bytes);
}

void MappedTransport::post_progress(Phase phase, uint64_t value) {
    auto& own = layout_.progress_line(base_, rank_).phases[static_cast<int>(phase)];
    own.store(value, std::memory_order_release);
    wake_sleepers();
}

uint64_t MappedTransport::progress(int peer, Phase phase) const {
    const auto& theirs = layout_.progress_line(base_, peer).phases[static_cast<int>(phase)];
    return theirs.load(std::memory_order_acquire);
}

void MappedTransport::post_finished(uint64_t sequence) {
    layout_.progress_line(base_, rank_).finished.store(sequence, std::memory_order_release);
    wake_sleepers();
}

bool MappedTransport::finished(int peer, uint64_t sequence) const {
    return layout_.progress_line(base_, peer).finished.load(std::memory_order_seq_cst) >= sequence;
}

std::atomic<uint64_t>& MappedTransport::claims(uint64_t sequence) {
    return layout_.claim_line(base_, sequence).taken;
}

// Either a rank that enters sees that a peer has withdrawn, or the peer sees that it is inside.
bool MappedTransport::enter() {
    ProgressLine& own = layout_.progress_line(base_, rank_);
    own.inside.store(1, std::memory_order_seq_cst);
    for (int peer = 0; peer < size(); ++peer) {
        if (layout_.progress_line(base_, peer).withdrawn.load(std::memory_order_seq_cst) == 0) {
            continue;
        }
        own.inside.store(0, std::memory_order_seq_cst);
        return false;
    }
    return true;
}

bool MappedTransport::enter(int peer) {
    layout_.progress_line(base_, rank_).inside.store(1, std::memory_order_seq_cst);
    const auto& theirs = layout_.progress_line(base_, peer).withdrawn;
    if (theirs.load(std::memory_order_seq_cst) == 0) return true;
    leave();
    return false;
}

void MappedTransport::leave() {
    layout_.progress_line(base_, rank_).inside.store(0, std::memory_order_seq_cst);
}

void MappedTransport::withdraw() {
    layout_.progress_line(base_, rank_).withdrawn.store(1, std::memory_order_seq_cst);
    const Deadline limit = Deadline::after(longest_inside);
    for (int peer = 0; peer < size(); ++peer) {
        const auto& inside = layout_.progress_line(base_, peer).inside;
        while (peer != rank_ && inside.load(std::memory_order_seq_cst) != 0) {
            if (limit.expired() || !alive(peer)) break;
            sched_yield();
        }
    }
}

ArrayPlace MappedTransport::place_of(const void* data, size_t bytes) const {
    const auto place = locate(data, bytes);
    if (!place) return {};
    return {place->offset, place->window, ArrayPlace::Kind::mapped};
}

bool MappedTransport::read_array(int peer, const ArrayPlace& place, size_t offset, void* to,
                                 size_t bytes, bool streams) {
    if (place.kind != ArrayPlace::Kind::mapped) return false;
    const std::byte* from = peer_memory(peer, {place.window, place.offset}) + offset;
    copy_array(static_cast<std::byte*>(to), from, bytes, streams);
    return true;
}

bool MappedTransport::write_piece(int peer, const HandoverLine& line, int slot, const void* from,
                                  size_t bytes, bool streams) {
    if (line.target_kind != static_cast<uint32_t>(ArrayPlace::Kind::mapped)) return false;
    std::byte* to = peer_memory(peer, {line.target_window, line.target[slot].base});
    copy_array(to, static_cast<const std::byte*>(from), bytes, streams);
    return true;
}

void MappedTransport::notify(int peer) {
    store_load_fence();
    wake_rank(peer, true);
}

void MappedTransport::post_waiting(const std::vector<int>& peers) {
    uint64_t bits = 0;
    for (const int peer : peers) {
        if (peer < max_traced) bits |= uint64_t{1} << peer;
    }
    Doorbell& bell = layout_.doorbell(base_, rank_);
    bell.waiting_for.store(bits, std::memory_order_relaxed);
    bell.waiting_at.store(steady_nanoseconds(), std::memory_order_relaxed);
}

std::vector<int> MappedTransport::trace(const std::vector<int>& waiting) {
    if (size() > max_traced) return waiting;
    uint64_t seen = uint64_t{1} << rank_;
    std::vector<int> queue = waiting;
    std::vector<int> idle;
    for (size_t i = 0; i < queue.size(); ++i) {
        const int peer = queue[i];
        if ((seen >> peer & 1) != 0) continue;
        seen |= uint64_t{1} << peer;
        const Doorbell& bell = layout_.doorbell(base_, peer);
        const auto age = steady_nanoseconds() - bell.waiting_at.load(std::memory_order_relaxed);
        const uint64_t bits = bell.waiting_for.load(std::memory_order_relaxed);
        if (age > stale_nanoseconds || bits == 0) idle.push_back(peer);
        for (int next = 0; age <= stale_nanoseconds && next < size(); ++next) {
            if ((bits >> next & 1) != 0) queue.push_back(next);
        }
    }
    std::sort(idle.begin(), idle.end());
    return idle.empty() ? waiting : idle;
}

bool MappedTransport::alive(int peer) {
    return layout_.doorbell(base_, peer).closed.load(std::memory_order_seq_cst) == 0;
}

void MappedTransport::leave_group() {
    layout_.doorbell(base_, rank_).closed.store(1, std::memory_order_seq_cst);
    wake_sleepers();
}

void MappedTransport::post_fault(const Fault& fault) {
    FaultRecord& record = layout_.fault(base_);
    uint32_t expected = 0;
    if (!record.state.compare_exchange_strong(expected, FaultRecord::writing)) {
        // Another rank was first, or died while it wrote; either way this rank knows it is broken.
        const std::lock_guard lock(fault_mutex_);
        if (!fault_) fault_ = fault;
        fault_known_.store(true, std::memory_order_release);
        return;
    }
    record.code = static_cast<uint8_t>(fault.code);
    record.reporter = fault.reporter;
    record.rank_count =
        static_cast<int32_t>(std::min<size_t>(fault.ranks.size(), FaultRecord::max_ranks));
    std::copy_n(fault.ranks.begin(), record.rank_count, record.ranks);
    const size_t length = std::min(fault.text.size(), sizeof(record.text) - 1);
    std::memcpy(record.text, fault.text.data(), length);
    record.text[length] = '\0';
    record.state.store(FaultRecord::ready, std::memory_order_seq_cst);
    for (int rank = 0; rank < size(); ++rank) wake_rank(rank, false);
}

const Fault* MappedTransport::fault() {
    const FaultRecord& record = layout_.fault(base_);
    if (record.state.load(std::memory_order_acquire) != FaultRecord::ready &&
        !fault_known_.load(std::memory_order_acquire)) {
        return nullptr;
    }
    const std::lock_guard lock(fault_mutex_);
    if (!fault_) {
        fault_ =
            Fault{static_cast<ErrorCode>(record.code), record.reporter,
                  std::vector<int>(record.ranks, record.ranks + record.rank_count), record.text};
    }
    return &*fault_;
}

}  // namespace pycomm
