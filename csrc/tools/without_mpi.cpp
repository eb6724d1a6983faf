// Stands in for mpi_session.cpp where there is no MPI to build against.
#include "tools/system.h"

namespace pycomm::tools {

std::unique_ptr<MpiSession> start_mpi() {
    return nullptr;
}

}  // namespace pycomm::tools
