// Bootstrap among some ranks of an existing communicator, over its point-to-point messages.
#pragma once

#include <string>
#include <vector>

#include "comm/communicator.h"
#include "store/store.h"

namespace pycomm {

// The first member gathers the blobs and sends all of them to everyone. `members` are ranks of
// `parent`, the own one among them; their order gives the new ranks.
class GroupBootstrap final : public Bootstrap {
  public:
    GroupBootstrap(Communicator& parent, std::vector<int> members, Engine::InterruptHook hook);

    int rank() const override { return rank_; }
    const std::vector<int>& members() const { return members_; }
    int size() const override { return static_cast<int>(members_.size()); }
    std::vector<std::string> all_gather(const std::string& blob, const Deadline& deadline) override;

  private:
    void send(int member, const std::string& text);
    std::string receive(int member);
    void transfer(OpKind kind, int member, const Buffer& buffer);

    Communicator& parent_;
    std::vector<int> members_;
    Engine::InterruptHook hook_;
    int rank_ = 0;
};

}  // namespace pycomm
