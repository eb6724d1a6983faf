// How a fault travels on a control socket.
#pragma once

#include <optional>
#include <string>

#include "transport/transport.h"

namespace pycomm {

// length:u32 of what follows, code:u32 reporter:u32 rank_count:u32 ranks:u32[] text. Long lists and
// texts are cut, so that a frame fits into an empty socket.
std::string encode_fault(const Fault& fault);

// Takes one frame from the front of `bytes`: nothing when it has not arrived in full. Sets
// `malformed` when the bytes cannot be a frame.
std::optional<Fault> decode_fault(std::string* bytes, bool* malformed);

}  // namespace pycomm
