// What pycomm-perf measures: libraries that carry out a Case.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "comm/communicator.h"
#include "comm/memory_limit.h"
#include "store/store.h"
#include "tools/case.h"

namespace pycomm::tools {

class System {
  public:
    virtual ~System() = default;
    virtual const std::string& name() const = 0;
    // Why this library cannot carry out `c`; empty when it can.
    virtual std::string obstacle(const Case& c) const = 0;
    // The call to time, with everything looked up beforehand. A rank that takes no part calls
    // nothing.
    virtual std::function<void()> bind(const Case& c, const Buffers& buffers) = 0;
    // After a run of calls: what this library still has under way is done when it returns.
    virtual void settle() = 0;
};

std::unique_ptr<System> make_pycomm_system(Communicator& comm);
// The machine's limit (comm/memory_limit.h) as if it were a library. Its results mean nothing.
// `limit` outlives it.
std::unique_ptr<System> make_limit_system(const MemoryLimit& limit, Stores stores);

// The job's membership in MPI, from MPI_Init to MPI_Finalize.
class MpiSession {
  public:
    virtual ~MpiSession() = default;
    virtual Bootstrap& bootstrap() = 0;
    virtual System& system() = 0;
    // Ends all ranks, this one included.
    virtual void abort(int code) = 0;
};

// Null when this program was built without MPI.
std::unique_ptr<MpiSession> start_mpi();

}  // namespace pycomm::tools
