// The one list of error kinds: X(enumerator, number, Python class, one-line meaning).
// Every table that needs a code, a name or a text of an error is generated from it.
#pragma once

// clang-format off
#define PYCOMM_ERROR_LIST(X)                                                             \
    X(comm,      1, CommError,        "communication failed")                            \
    X(argument,  2, ArgumentError,    "an argument is not acceptable")                   \
    X(mismatch,  3, MismatchError,    "ranks called different operations")               \
    X(timeout,   4, CommTimeoutError, "a peer did not arrive before the deadline")       \
    X(peer_lost, 5, PeerLostError,    "a peer's process has ended")                      \
    X(transport, 6, TransportError,   "the operating system refused a resource")         \
    X(aborted,   7, AbortedError,     "the communicator was aborted or interrupted")     \
    X(memory,    8, OutOfMemoryError, "memory for an array cannot be had")
// clang-format on
