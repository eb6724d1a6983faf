// The part of a transport that lives in memory mapped by all ranks: channels, board, doorbells,
// faults. Where the memory comes from, and how the end of a peer shows, is up to the subclass.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <vector>

#include "transport/mapped/mapped_channel.h"

namespace pycomm {

class MappedTransport : public Transport, private Board {
  public:
    MappedTransport(int rank, Layout layout, std::byte* base);
    ~MappedTransport() override;

    int rank() const override { return rank_; }
    int size() const override { return layout_.size(); }
    Channel& channel(int peer, Stream stream) override;
    Board* board() override { return this; }

    HandoverLine* handover(int from, int to) override { return &layout_.handover(base_, from, to); }
    ArrayPlace place_of(const void* data, size_t bytes) const override;
    bool read_array(int peer, const ArrayPlace& place, size_t offset, void* to, size_t bytes,
                    bool streams) override;
    bool write_piece(int peer, const HandoverLine& line, int slot, const void* from, size_t bytes,
                     bool streams) override;
    void notify(int peer) override;

    void prepare_wait() override;
    void cancel_wait() override;
    void wait(std::chrono::nanoseconds at_most) override;
    void wake() override;

    void post_waiting(const std::vector<int>& peers) override;
    std::vector<int> trace(const std::vector<int>& waiting) override;
    bool alive(int peer) override;
    void post_fault(const Fault& fault) override;
    const Fault* fault() override;

  protected:
    // Tells the peers that this rank has left; called once, before the memory is unmapped.
    void leave_group();

  private:
    uint64_t stage(const void* data, size_t bytes, Hole hole) override;
    const std::byte* staged(int rank, uint64_t offset) const override;
    size_t largest_staged() const override;
    size_t area_bytes() const override { return layout_.stage_bytes(); }
    void write(uint64_t offset, const void* data, size_t bytes) override;
    void post_progress(Phase phase, uint64_t value) override;
    uint64_t progress(int peer, Phase phase) const override;
    void wake_sleepers() override;
    void post_finished(uint64_t sequence) override;
    bool finished(int peer, uint64_t sequence) const override;
    std::atomic<uint64_t>& claims(uint64_t sequence) override;
    bool enter() override;
    bool enter(int peer) override;
    void leave() override;
    void withdraw() override;
    void wake_rank(int rank, bool only_if_sleeping);

    int rank_;
    Layout layout_;
    std::byte* base_;
    std::vector<std::unique_ptr<MappedChannel>> channels_;  // [peer * stream_count + stream]
    size_t stage_next_ = 0;  // offset of the next piece of staging memory
    RingCopy stage_copy_;
    uint32_t ticket_ = 0;  // doorbell sequence seen by prepare_wait
    std::mutex fault_mutex_;
    std::optional<Fault> fault_;  // the record once it is ready, or what this rank could not record
    std::atomic<bool> fault_known_{false};
};

}  // namespace pycomm
