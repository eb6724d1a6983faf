// Expressions with unique ids, and run-length symbolic memory.
#include "schedule/symbolic.h"

#include <algorithm>
#include <array>
#include <bit>

#include "base/error.h"

namespace pycomm {

Expressions::Expressions(int size)
    : size_(size),
      words_((static_cast<size_t>(size) + 63) / 64),
      nodes_(static_cast<size_t>(size)),
      ranks_(static_cast<size_t>(size) * words_, 0) {
    for (int rank = 0; rank < size; rank++) {
        ranks_[static_cast<size_t>(rank) * words_ + static_cast<size_t>(rank) / 64] |=
            uint64_t{1} << (rank % 64);
    }
}

Expressions::Id Expressions::combine(Id left, Id right) {
    const uint64_t key = static_cast<uint64_t>(left) << 32 | static_cast<uint32_t>(right);
    const auto found = ids_.find(key);
    if (found != ids_.end()) return found->second;
    for (size_t word = 0; word < words_; word++) {
        if (ranks(left)[word] & ranks(right)[word]) return invalid;
    }
    const Id id = static_cast<Id>(nodes_.size());
    nodes_.push_back({left, right});
    for (size_t word = 0; word < words_; word++) {
        const uint64_t both = ranks(left)[word] | ranks(right)[word];
        ranks_.push_back(both);
    }
    ids_.emplace(key, id);
    return id;
}

Expressions::Id Expressions::balanced(std::span<const Id> ids) {
    if (ids.size() == 1) return ids[0];
    const size_t left = std::bit_floor(ids.size() - 1);
    const Id first = balanced(ids.first(left));
    const Id second = balanced(ids.subspan(left));
    return first == invalid || second == invalid ? invalid : combine(first, second);
}

bool Expressions::complete(Id id) const {
    int contributors = 0;
    for (size_t word = 0; word < words_; word++) contributors += std::popcount(ranks(id)[word]);
    return contributors == size_;
}

std::string Expressions::text(Id id) const {
    if (is_leaf(id)) return std::to_string(id);
    const Node& node = nodes_[static_cast<size_t>(id)];
    return concat("(", text(node.left), "+", text(node.right), ")");
}

std::vector<Run>::const_iterator SymbolicMemory::find(int64_t position) const {
    // Most accesses are to the last runs or to memory of few runs.
    if (runs_.empty() || runs_.back().end <= position) return runs_.end();
    return std::partition_point(runs_.begin(), runs_.end(),
                                [&](const Run& run) { return run.end <= position; });
}

void SymbolicMemory::write(Run run) {
    const auto joins = [](const Run& first, const Run& second) {
        return first.end == second.begin && first.value == second.value &&
               first.index + (first.end - first.begin) == second.index;
    };
    // From `first` to `last`: the runs that this one replaces, in whole or in part, and its
    // neighbours.
    auto first = find(run.begin - 1);
    auto last = first;
    std::array<Run, 3> now;
    size_t pieces = 0;
    Run head, tail;
    bool has_head = false, has_tail = false;
    for (; last != runs_.end() && last->begin <= run.end; ++last) {
        if (last->begin < run.begin) {
            head = {last->begin, std::min(last->end, run.begin), last->value, last->index};
            has_head = true;
        }
        if (last->end > run.end) {
            const int64_t from = std::max(last->begin, run.end);
            tail = {from, last->end, last->value, last->index + (from - last->begin)};
            has_tail = true;
        }
    }
    if (has_head && joins(head, run)) {
        run = {head.begin, run.end, head.value, head.index};
    } else if (has_head) {
        now[pieces++] = head;
    }
    if (has_tail && joins(run, tail)) {
        run.end = tail.end;
        has_tail = false;
    }
    now[pieces++] = run;
    if (has_tail) now[pieces++] = tail;
    const auto at = runs_.begin() + (first - runs_.cbegin());
    const auto replaced = static_cast<size_t>(last - first);
    const size_t kept = std::min(replaced, pieces);
    std::copy_n(now.begin(), kept, at);
    const auto rest = at + static_cast<std::ptrdiff_t>(kept);
    if (replaced > kept) {
        runs_.erase(rest, rest + static_cast<std::ptrdiff_t>(replaced - kept));
    } else {
        runs_.insert(rest, now.begin() + static_cast<std::ptrdiff_t>(kept),
                     now.begin() + static_cast<std::ptrdiff_t>(pieces));
    }
}

int64_t SymbolicMemory::read(int64_t begin, int64_t end, std::vector<Run>* runs) const {
    int64_t position = begin;
    for (auto run = find(begin); run != runs_.end() && position < end; ++run) {
        if (run->begin > position) break;
        const int64_t until = std::min(run->end, end);
        runs->push_back({position, until, run->value, run->index + (position - run->begin)});
        position = until;
    }
    return position;
}

bool SymbolicMemory::overlaps(int64_t begin, int64_t end) const {
    const auto run = find(begin);
    return run != runs_.end() && run->begin < end;
}

}  // namespace pycomm
