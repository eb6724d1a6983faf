// All-reduce of private arrays through staging memory, chunk by chunk.
//
// Every rank owns one slice of every chunk. For each chunk it does three things, in this order:
//
//   stage    copy the others' slices of the own input to the own staging memory
//   reduce   add up the own slice from the staging memory of all; stage the result
//   consume  copy the results of the others to the output
//
//   rank 0   stage 0   stage 1   reduce 0   stage 2   consume 0   reduce 1 ...
//   rank 1   stage 0   reduce 0  stage 1    consume 0 ...
//
// Each rank publishes how many chunks it has staged, reduced and consumed, and runs ahead as far as
// the others' counts allow: reduce c needs stage c of all, consume c reduce c of all, and stage c
// consume c - depth of all, whose memory it takes. There is no lock step.
//
// For p ranks and n bytes a rank stages n, reads 2 n (p - 1) / p and writes n, in one pass; a rank
// writes its results once, whereas with a ring per pair of ranks it would write them p - 1 times.
#pragma once

#include "direct/direct.h"

namespace pycomm {

class ChunkedReduction final : public DirectWork {
  public:
    // Whether it can be done this way, and is better than a schedule. Alike on all ranks.
    static bool suits(const Transport& transport, const DirectCall& call);

    ChunkedReduction(Transport& transport, const DirectCall& call, DirectScratch& scratch);

    bool progress() override;
    bool done() const override { return done_; }
    std::vector<int> waiting_on() const override;

  private:
    using Phase = Board::Phase;

    // Elements [begin, end) of the whole array.
    struct Range {
        int64_t begin;
        int64_t end;
        int64_t count() const { return end - begin; }
    };
    Range chunk(uint64_t index) const;
    Range slice(const Range& chunk, int rank) const;
    size_t slot(uint64_t index) const { return (index % depth) * slot_bytes_; }
    bool streams() const { return call_.output.bytes() >= smallest_streamed; }
    size_t bytes(int64_t count) const { return static_cast<size_t>(count) * element_; }

    uint64_t stamp(uint64_t chunks) const { return (call_.sequence << chunk_bits) + chunks; }
    bool reached(int peer, Phase phase, uint64_t chunks) const;
    bool all_reached(Phase phase, uint64_t chunks) const;
    void publish(Phase phase, uint64_t chunks);
    bool may_stage() const;
    void stage_chunk();
    void reduce_chunk();
    void reduce_block(const Range& own, int64_t first, int64_t count);
    void consume_chunk();

    static constexpr unsigned chunk_bits = 24;
    static constexpr uint64_t depth = 4;

    Transport& transport_;
    Board& board_;
    const DirectCall call_;
    DirectScratch& scratch_;
    const int rank_;
    const int size_;
    const size_t element_;
    size_t slot_bytes_;
    int64_t slice_count_;  // elements of one rank in a full chunk
    size_t results_;       // where a slot's result begins
    uint64_t chunks_;
    uint64_t staged_ = 0;
    uint64_t reduced_ = 0;
    uint64_t consumed_ = 0;
    bool done_ = false;
};

}  // namespace pycomm
