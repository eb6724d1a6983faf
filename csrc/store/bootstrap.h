// The two ways in which ranks exchange small blobs before channels exist.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "store/store.h"

namespace pycomm {

// Over any store. `prefix` keeps the groups that share a store apart; it must be the same on all
// ranks of the group and used by no other group. A rank that gives up leaves a note for those that
// come later.
class StoreBootstrap : public Bootstrap {
  public:
    StoreBootstrap(std::shared_ptr<Store> store, int rank, int size, std::string prefix);

    int rank() const override { return rank_; }
    int size() const override { return size_; }
    std::vector<std::string> all_gather(const std::string& blob, const Deadline& deadline) override;

  private:
    std::string key(int rank) const;
    std::string claim(int rank) const;
    void claim_place(const Deadline& deadline);
    void compare_size(const Deadline& deadline) const;
    [[noreturn]] void fail_missing(const Deadline& deadline) const;
    void check_not_failed(const Deadline& deadline) const;

    std::shared_ptr<Store> store_;
    int rank_;
    int size_;
    std::string prefix_;
    uint64_t calls_ = 0;
};

// Among threads of one process.
class InprocGroup {
  public:
    // One Bootstrap for each of `size` threads, in rank order. They share the group's memory, which
    // lives as long as any of them.
    static std::vector<std::shared_ptr<Bootstrap>> create(int size);
};

}  // namespace pycomm
