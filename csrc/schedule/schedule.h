// A schedule: what one rank does in one collective, as plain data.
//
// A schedule is lanes of rounds of steps. The steps of a round may overlap in time; a round starts
// when the previous round of its lane is complete on this rank (not on the others). Lanes are
// independent of each other; an executor may run them one after the other in index order. All
// messages from rank i to rank j travel in one ordered stream, so the n-th receive from i posted on
// j must be the n-th send to j issued on i and have the same count. Within one round all sends
// to one peer are issued in step order, and so are all receives from one peer.
//
// Counts and offsets are elements and 64-bit.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace pycomm {

enum class Space : uint8_t {
    input,    // the caller's input; never written
    output,   // the caller's output
    scratch,  // temporary memory of Schedule::scratch_count elements
};

struct Block {
    Space space = Space::input;
    int64_t offset = 0;
    int64_t count = 0;
};

enum class StepKind : uint8_t {
    send,         // src -> peer
    recv,         // peer -> dst
    recv_reduce,  // dst = src op (data of peer), or (data of peer) op src when peer_first; dst may
                  // be the same block as src
    recv_reduce_all,  // dst = tree over all ranks in rank order: the own part is src, the parts of
                      // all other ranks arrive one message each; dst may be the same block as src
    copy,             // src -> dst on this rank; runs before the round's other steps start
};

struct Step {
    StepKind kind = StepKind::copy;
    int peer = -1;
    Block src;
    Block dst;
    // recv_reduce: the peer's data is the left operand. Two ranks that exchange partial results and
    // each combine them then compute the same expression, which matters to the bits of a NaN.
    bool peer_first = false;
};

struct Round {
    std::vector<Step> steps;
};

struct Lane {
    std::vector<Round> rounds;
};

struct Schedule {
    std::vector<Lane> lanes;
    int64_t scratch_count = 0;
    // True when every reduction in it is a recv_reduce_all, that is, each result element is
    // computed once from all contributions. Then the executor rounds once and divides (avg) in that
    // step; otherwise 16-bit floats are widened before and avg divides after the schedule.
    bool reduces_at_once = false;
};

// One line a step: "lane 0 round 2: recv_reduce from 1 output[0:512] -> output[0:512]".
std::string to_string(const Schedule& schedule);
// The part of such a line after the colon.
std::string to_string(const Step& step);

// Splits `count` elements into `parts` slices as numpy.array_split does: the first count % parts
// slices have one element more. Returns the offset of slice `index`; index == parts gives count.
int64_t slice_offset(int64_t count, int parts, int index);
inline int64_t slice_count(int64_t count, int parts, int index) {
    return slice_offset(count, parts, index + 1) - slice_offset(count, parts, index);
}

}  // namespace pycomm
