// Before a collective moves data, every rank tells all others what it called, and compares.
//
// On mapped memory each rank posts its envelope on the board and reads the others' lines; otherwise
// each rank sends its envelope to all others over the collective stream. Either way a rank knows
// who has not arrived, and two different calls meet as a MismatchError that shows both.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "transport/transport.h"

namespace pycomm {

// "all_reduce #5 (float32, 1000 elements, sum)".
std::string to_string(const Call& call, uint64_t sequence);

// Whether two ranks called the same; scatters without counts need more than that.
bool same_call(const Call& mine, const Call& theirs);

class RollCall {
  public:
    // `parcel` travels beside the envelope where there is a board. `posted`: they are there
    // already.
    RollCall(Transport& transport, const Envelope& mine, const Parcel& parcel = {},
             bool posted = false);

    // Returns whether anything moved; throws MismatchError.
    bool progress();
    bool done() const { return absent_.empty(); }
    // The ranks whose envelope has not arrived.
    const std::vector<int>& absent() const { return absent_; }

  private:
    struct Wire {  // of one peer, when there is no board
        size_t sent = 0;
        size_t received = 0;
        Envelope theirs;
    };

    bool send_some();
    const Call* arrival(int peer);
    void compare(int peer, const Call& theirs);
    void compare_scatter(int peer, const Call& theirs);
    uint64_t sequence_of(int peer) const;
    [[noreturn]] void fail(int rank, const Call& mine, int peer, const Call& theirs,
                           const std::string& detail) const;

    Transport& transport_;
    Envelope mine_;
    std::vector<int> absent_;
    std::vector<Wire> wires_;
    // A scatter's root knows the whole, the others their part; compared once the root's is here.
    std::vector<std::optional<Call>> scatter_parts_;
};

}  // namespace pycomm
