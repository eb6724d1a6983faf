// Collectives on mapped memory: every rank reads what it needs where the others keep it.
//
// With its envelope a rank says where its input lies: a short one in the board line itself, a small
// one copied to its staging memory, a large one in memory that all have mapped. When all ranks
// have arrived, all inputs are there, so there is nothing more to send:
//
//   one shot     every input is in or beside a line or staged. Each rank computes its result, and
//                nobody waits again: lines and staging memory are used in turn (see Board).
//   shared       some input is a caller's array in mapped memory, or, where data only moves, in
//                memory that the operating system copies from. Results are computed or copied
//                straight from array to array; then the ranks wait until all are done, since the
//                arrays go back to their owners. Reductions to one or all ranks are split by
//                slices, each computed once and written to every rank that wants it. With more
//                ranks than cores, long ones go in pieces that ranks take as they are free, so that
//                a rank without a core holds up nobody.
//   chunked      some input of an all-reduce is in private memory: see chunked_reduction.h.
//   none         the same for other operations: the caller runs a schedule instead.
//
// All ranks choose alike, since all see all lines. A sum is the tree of reduce.h over ranks
// whatever the way, the piece and the rank that computes it.
//
// One-shot: one arrival, (p - 1) n bytes read per rank. Shared all-reduce: two arrivals, n bytes
// read and n written per rank.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "base/buffer.h"
#include "base/deadline.h"
#include "base/size_limits.h"
#include "base/types.h"
#include "transport/transport.h"

namespace pycomm {

// One collective as the calling rank sees it. Buffers are as in algorithms.h, and overlap only when
// in_place; the counts must outlive the runner.
struct DirectCall {
    OpKind kind = OpKind::none;
    ReduceOp op = ReduceOp::none;
    int root = 0;
    uint64_t sequence = 0;
    Buffer input;
    Buffer output;
    bool in_place = false;
    // Elements per rank of reduce_scatter, all_gather, gather and scatter; for all_to_all what goes
    // to each rank.
    std::span<const int64_t> counts;
    // Scatter away from the root: where the own part begins in the root's input.
    int64_t first = 0;
    // all_to_all: what comes from each rank.
    std::span<const int64_t> recv_counts;
    // There are more ranks than cores on the node.
    bool shares_cores = false;
    // Private arrays of this size go the direct way, too, unless they fit into a line anyway.
    bool stages = true;
    SizeLimits limits;  // the same on all ranks
    // all_to_all: the ranks' counts differ, so each stages its own, when there is room for them.
    bool tells_counts = false;

    // Bytes of such counts, of both kinds.
    size_t told_bytes(int size) const {
        return tells_counts ? 2 * static_cast<size_t>(size) * sizeof(int64_t) : 0;
    }
};

// Stages what is small, or puts it into `parcel`, and says in `envelope` where the input is and
// whether peers can write the output.
void make_offer(Transport& transport, const DirectCall& call, Envelope& envelope, Parcel& parcel);

enum class Route : uint8_t { none, one_shot, shared, chunked };

// The way that all ranks take, once all have arrived.
Route choose_route(Transport& transport, const DirectCall& call);

// all_to_all with tells_counts: how many elements `from` sends to `to`, and how many `to` expects
// from `from`, once they have arrived.
int64_t told_send(Transport& transport, const DirectCall& call, int from, int to);
int64_t told_recv(Transport& transport, const DirectCall& call, int from, int to);

// One piece of an input that goes to the output as it is.
struct DirectCopy {
    std::byte* to;
    const std::byte* from;
    size_t bytes;
    int process = -1;  // the rank in whose process `from` is an address; -1: in this one
};

// Memory that calls use one after the other, so that small ones allocate nothing.
struct DirectScratch {
    std::vector<const void*> sources;
    std::vector<const void*> at;
    std::vector<std::byte*> targets;
    std::vector<DirectCopy> copies;
};

// A call whose ranks have all arrived, on its way.
class DirectWork {
  public:
    virtual ~DirectWork() = default;
    // Works for some ten microseconds at most; returns whether anything moved.
    virtual bool progress() = 0;
    virtual bool done() const = 0;
    // The ranks that this one cannot go on without.
    virtual std::vector<int> waiting_on() const = 0;
};

std::unique_ptr<DirectWork> make_work(Transport& transport, const DirectCall& call, Route route,
                                      DirectScratch& scratch);

// One-shot and shared calls.
class DirectRunner final : public DirectWork {
  public:
    DirectRunner(Transport& transport, const DirectCall& call, Route route, DirectScratch& scratch);

    bool progress() override;
    bool done() const override { return stage_ == Stage::done; }
    std::vector<int> waiting_on() const override;

  private:
    enum class Stage : uint8_t { working, closing, done };

    const std::byte* source(int peer);
    std::byte* target(int peer);
    bool writable(int peer);
    void plan_reduction();
    void split_reduction();
    void plan_copies();
    void copy_from(int peer, size_t from_element, size_t to_element, int64_t count);
    bool work_copies();
    bool copy(const DirectCopy& copy, size_t bytes);
    bool work_reduction();
    void reduce_piece(int64_t begin, int64_t end);
    void enter_closing();
    bool close();

    Transport& transport_;
    Board& board_;
    DirectCall call_;
    const bool shared_;
    const int rank_;
    const int size_;
    const size_t element_;
    Stage stage_ = Stage::working;
    int closing_peer_ = 0;

    // A reduction: sources in rank order, the copies of the result, and the elements of this rank.
    bool reduces_ = false;
    bool streams_ = false;  // past the caches
    bool claims_ = false;   // pieces are taken as ranks are free, until all are
    std::vector<const void*>& sources_;
    std::vector<const void*>& at_;  // the same at the current piece
    std::vector<std::byte*>& targets_;
    int64_t piece_ = 0;
    int64_t begin_ = 0;
    int64_t end_ = 0;

    std::vector<DirectCopy>& copies_;
    size_t next_copy_ = 0;
    std::optional<Deadline> refused_;  // when an input could not be read, until it must be
};

}  // namespace pycomm
