// Symbolic values for the schedule simulator: expressions over the ranks' contributions, and memory
// that holds them as runs of elements.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

namespace pycomm {

// Expressions over the contributions of `size` ranks. Equal expressions have equal ids, so
// comparing two results, their order of reduction included, is comparing two numbers.
class Expressions {
  public:
    using Id = int32_t;
    static constexpr Id invalid = -1;

    explicit Expressions(int size);

    // The contribution of one rank. Its id is the rank.
    Id leaf(int rank) const { return rank; }
    bool is_leaf(Id id) const { return id < size_; }
    // left op right; invalid when a rank contributes to both.
    Id combine(Id left, Id right);
    // The balanced binary tree over `ids`, left part the largest power of two: ((0+1)+(2+3))+4.
    Id balanced(std::span<const Id> ids);
    // True when every rank contributes. (No rank can contribute twice.)
    bool complete(Id id) const;
    // "((0+1)+2)".
    std::string text(Id id) const;

  private:
    struct Node {
        Id left = invalid;
        Id right = invalid;
    };
    const uint64_t* ranks(Id id) const { return &ranks_[static_cast<size_t>(id) * words_]; }

    int size_;
    size_t words_;
    std::vector<Node> nodes_;
    std::vector<uint64_t> ranks_;  // words_ words a node: the set of its contributors
    std::unordered_map<uint64_t, Id> ids_;
};

// `end - begin` elements of which the k-th holds expression `value` of element `index + k` of the
// contributions.
struct Run {
    int64_t begin = 0;
    int64_t end = 0;
    Expressions::Id value = Expressions::invalid;
    int64_t index = 0;
};

// Memory as sorted, disjoint runs; what lies between them was never written.
class SymbolicMemory {
  public:
    void write(Run run);
    // Appends the runs of [begin, end), cut to it. Returns the first element that was never
    // written, or `end` when there is none.
    int64_t read(int64_t begin, int64_t end, std::vector<Run>* runs) const;
    bool overlaps(int64_t begin, int64_t end) const;

  private:
    // The first run that ends after `position`.
    std::vector<Run>::const_iterator find(int64_t position) const;

    std::vector<Run> runs_;
};

}  // namespace pycomm
