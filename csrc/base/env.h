// Every PYCOMM_* variable of the core is read here and nowhere else.
#pragma once

#include <cstdint>
#include <string>

namespace pycomm {

struct Env {
    double timeout = 300.0;          // PYCOMM_TIMEOUT, seconds, of operations and of init
    std::string transport = "auto";  // PYCOMM_TRANSPORT: auto, shm, tcp
    std::string algorithm;           // PYCOMM_ALGO, "all_reduce:ring,broadcast:tree"
    std::string cma = "auto";        // PYCOMM_CMA: auto, always, off: large messages in one copy
    std::string simd = "auto";       // PYCOMM_SIMD: auto, plain, avx2, avx512
    std::string interface;           // PYCOMM_IFNAME: network interface for TCP
    bool check = true;  // PYCOMM_CHECK: 0 leaves out the comparison of calls between ranks
    int64_t buffer_bytes =
        8 << 20;               // PYCOMM_BUFFER_BYTES, internal buffers per rank and communicator
    std::string profile;       // PYCOMM_PROFILE: file of measured choices
    std::string log = "warn";  // PYCOMM_LOG: silent, warn, info, debug
};

// Reads the environment anew. Throws ArgumentError that names the variable, its value and what was
// expected.
Env read_env();

}  // namespace pycomm
