// Least traffic by operation, and the loop that makes it.
#include "comm/memory_limit.h"

#include <algorithm>
#include <cstring>

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

#include "base/error.h"

namespace pycomm {
namespace {

constexpr size_t line = 64;
// GCC and clang make of it what the instruction set has.
using Line = uint32_t __attribute__((vector_size(line)));

size_t in_lines(size_t bytes) {
    return (bytes + line - 1) / line * line;
}

template <bool streams>
[[gnu::always_inline]] inline void store(std::byte* target, const Line& value) {
#if defined(__SSE2__)
    if constexpr (streams) {
        __m128i parts[4];
        std::memcpy(parts, &value, line);
        auto* to = reinterpret_cast<__m128i*>(target);
        for (int i = 0; i < 4; ++i) _mm_stream_si128(to + i, parts[i]);
        return;
    }
#endif
    std::memcpy(target, &value, line);
}

// Whole lines, at addresses that are multiples of a line. `fixed` sources and targets when it is
// not 0.
template <bool streams, size_t fixed_sources, size_t fixed_targets>
[[gnu::always_inline]] inline void move_lines(const MemoryLimit::Move& move) {
    const std::byte* const* sources = move.sources.data();
    std::byte* const* targets = move.targets.data();
    const size_t source_count = fixed_sources ? fixed_sources : move.sources.size();
    const size_t target_count = fixed_targets ? fixed_targets : move.targets.size();
    for (size_t at = 0; at < move.bytes; at += line) {
        Line sum;
        std::memcpy(&sum, sources[0] + at, line);
        for (size_t i = 1; i < source_count; ++i) {
            Line more;
            std::memcpy(&more, sources[i] + at, line);
            sum += more;
        }
        for (size_t i = 0; i < target_count; ++i) store<streams>(targets[i] + at, sum);
    }
}

template <bool streams>
[[gnu::always_inline]] inline void move_any(const MemoryLimit::Move& move) {
    const size_t sources = move.sources.size();
    const size_t targets = move.targets.size();
    if (sources == 1 && targets == 1) return move_lines<streams, 1, 1>(move);
    if (sources == 1 && targets == 2) return move_lines<streams, 1, 2>(move);
    if (sources == 2 && targets == 1) return move_lines<streams, 2, 1>(move);
    if (sources == 2 && targets == 2) return move_lines<streams, 2, 2>(move);
    move_lines<streams, 0, 0>(move);
}

void move_plain(const MemoryLimit::Move& move, bool streams) {
    streams ? move_any<true>(move) : move_any<false>(move);
}

#if defined(__x86_64__)
__attribute__((target("avx2"))) void move_avx2(const MemoryLimit::Move& move, bool streams) {
    streams ? move_any<true>(move) : move_any<false>(move);
}

// A whole line in one store need not fetch the line first.
__attribute__((target("avx512f"))) void move_avx512(const MemoryLimit::Move& move, bool streams) {
    streams ? move_any<true>(move) : move_any<false>(move);
}
#endif

auto widest_move() {
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx512f")) return move_avx512;
    if (__builtin_cpu_supports("avx2")) return move_avx2;
#endif
    return move_plain;
}

void carry_out(const std::vector<MemoryLimit::Move>& moves, bool streams) {
    static const auto move_one = widest_move();
    for (const auto& move : moves) move_one(move, streams);
#if defined(__SSE2__)
    if (streams) _mm_sfence();
#endif
}

}  // namespace

MemoryLimit::MemoryLimit(Communicator& comm, int64_t bytes, const Engine::InterruptHook& hook)
    : rank_(comm.rank()),
      size_(comm.size()),
      // The halves of a message are rounded up to lines, too.
      room_(slice_room(bytes) * static_cast<size_t>(comm.size()) + 2048),
      own_(comm.symmetric(static_cast<int64_t>(2 * room_), hook)) {
    // Pages that were never written could all be the one page of zeros.
    std::memset(own_.get(), 1, 2 * room_);
    find_others(comm, hook);
}

// Every rank learns where it has mapped the memory of the others; where one has not, all keep to
// their own.
void MemoryLimit::find_others(Communicator& comm, const Engine::InterruptHook& hook) {
    struct Entry {
        uint64_t mapped = 0;
        uint64_t window = 0;
        uint64_t offset = 0;
    };
    Entry own;
    if (const auto place = comm.transport_->locate(own_.get(), 2 * room_)) {
        own = {1, place->window, place->offset};
    }
    constexpr int64_t words = sizeof(Entry) / sizeof(uint64_t);
    std::vector<Entry> entries(static_cast<size_t>(size_));
    CollectiveRequest request;
    request.kind = OpKind::all_gather;
    request.input = {&own, words, DataType::uint64};
    request.output = {entries.data(), words * size_, DataType::uint64};
    request.counts.assign(entries.size(), words);
    comm.run_now(std::move(request), std::nullopt, hook);

    shared_ = std::all_of(entries.begin(), entries.end(),
                          [](const Entry& entry) { return entry.mapped != 0; });
    for (int rank = 0; rank < size_; ++rank) {
        const Entry& entry = entries[static_cast<size_t>(rank)];
        const MappedPlace place{static_cast<uint32_t>(entry.window), entry.offset};
        const bool reachable = shared_ && rank != rank_;
        of_ranks_.push_back(reachable ? comm.transport_->peer_memory(rank, place) : own_.get());
    }
}

bool MemoryLimit::applies(OpKind kind) {
    return kind >= OpKind::all_reduce && kind <= OpKind::send;
}

std::function<void()> MemoryLimit::bind(const Traffic& traffic, Stores stores) const {
    return [moves = moves(traffic), streams = stores == Stores::streaming, memory = own_] {
        carry_out(moves, streams);
    };
}

// Slices lie on lines of their own, whatever their length.
size_t MemoryLimit::slice_room(int64_t bytes) const {
    const auto ranks = static_cast<size_t>(size_);
    return in_lines((static_cast<size_t>(bytes) + ranks - 1) / ranks);
}

// With S bytes and n ranks, each rank moves a slice of S/n bytes, which all of them together make
// the operation with the fewest reads and writes, evenly spread:
//
//                   rank r reads                      and writes                    S/n in   out
//   all_reduce      slice r of every input            slice r of every output          n      n
//   reduce_scatter  slice r of every input            its output                       n      1
//   reduce          slice r of every input            slice r of the root's output     n      1
//   all_gather      its input                         slice r of every output          1      n
//   gather          its input                         slice r of the root's output     1      1
//   scatter         slice r of the root's input       its output                       1      1
//   broadcast       slice r of the root's buffer      slice r of every other buffer    1     n-1
//   all_to_all      its input, slice by slice         slice r of output i              n      n
//
// A message of S bytes: each of the two ranks copies half of it.
std::vector<MemoryLimit::Move> MemoryLimit::moves(const Traffic& traffic) const {
    const size_t slice = slice_room(traffic.bytes);
    const auto output = [&](int rank, int part) {
        // Within its own memory a rank takes as many different slices.
        const int at = shared_ ? part : (part + rank) % size_;
        return of_ranks_[static_cast<size_t>(rank)] + room_ + slice * static_cast<size_t>(at);
    };
    const auto input = [&](int rank, int part) -> const std::byte* {
        return output(rank, part) - room_;
    };
    std::vector<const std::byte*> inputs;
    std::vector<std::byte*> outputs;
    for (int rank = 0; rank < size_; ++rank) {
        inputs.push_back(input(rank, rank_));
        outputs.push_back(output(rank, rank_));
    }
    const auto root = static_cast<size_t>(traffic.root);
    switch (traffic.kind) {
        case OpKind::all_reduce:
            return {{inputs, outputs, slice}};
        case OpKind::reduce_scatter:
            return {{inputs, {output(rank_, 0)}, slice}};
        case OpKind::reduce:
            return {{inputs, {outputs[root]}, slice}};
        case OpKind::all_gather:
            return {{{input(rank_, 0)}, outputs, slice}};
        case OpKind::gather:
            return {{{input(rank_, 0)}, {outputs[root]}, slice}};
        case OpKind::scatter:
            return {{{inputs[root]}, {output(rank_, 0)}, slice}};
        case OpKind::broadcast:
            outputs.erase(outputs.begin() + traffic.root);
            return {{{inputs[root]}, outputs, outputs.empty() ? 0 : slice}};
        case OpKind::all_to_all: {
            std::vector<Move> all;
            for (int i = 0; i < size_; ++i)
                all.push_back({{input(rank_, i)}, {output(i, rank_)}, slice});
            return all;
        }
        case OpKind::send: {
            const auto& [from, to] = traffic.pair;
            if (rank_ != from && rank_ != to) return {};
            const size_t half = in_lines((static_cast<size_t>(traffic.bytes) + 1) / 2);
            const size_t start = rank_ == from ? 0 : half;
            return {{{input(from, 0) + start}, {output(to, 0) + start}, half}};
        }
        default:
            break;
    }
    PYCOMM_FAIL(argument, kind_name(traffic.kind), " moves no data");
}

}  // namespace pycomm
