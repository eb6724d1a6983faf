// Small collectives on mapped memory, done on the spot: without a task, a queue or a clock.
#pragma once

#include "comm/collective.h"

namespace pycomm {

enum class QuickResult : uint8_t {
    unsuited,  // nothing has happened
    posted,  // it is on the board, but did not finish soon, or there is something to complain about
    finished,
};

// `request` has passed check_request, and nothing else is under way on this communicator. When it
// is `posted`, a CollectiveTask made of `posted` goes on with it.
QuickResult run_quick(CollectiveContext& context, const CollectiveRequest& request, Posted& posted);

}  // namespace pycomm
