// Memory shared by processes of one node: a memfd that rank 0 creates and passes to the others over
// a Unix socket. It has no name, so nothing can clash and nothing is left behind.
#pragma once

#include <memory>

#include "base/deadline.h"
#include "base/free_memory.h"
#include "store/store.h"
#include "transport/mapped/region.h"

namespace pycomm {

class SharedRegion : public Region {
  public:
    // For sparse regions. Makes sure that the pages are there, or throws OutOfMemoryError that says
    // how much was wanted and how much is free; `shared` as for Heap::allocate.
    virtual void reserve(size_t offset, size_t bytes, const SharedOut* shared) = 0;
    // Gives pages back; they are zero when they are reserved again.
    virtual void give_back(size_t offset, size_t bytes) = 0;
};

// Both are collective over `bootstrap`; the ranks must be processes or threads of one node. They
// throw TransportError, the same on all ranks, saying how much was wanted and how much is free.
//
// The pages are reserved before this returns, so that a full memory is an error here and not a
// signal later.
std::shared_ptr<SharedRegion> make_shared_region(Bootstrap& bootstrap, size_t bytes,
                                                 const Deadline& deadline);
// Address space only: pages have to be reserved before they are used.
std::shared_ptr<SharedRegion> make_sparse_region(Bootstrap& bootstrap, size_t bytes,
                                                 const Deadline& deadline);

}  // namespace pycomm
