// Encoding and checking of fault frames.
#include "transport/tcp/fault_wire.h"

#include <algorithm>

#include "store/little_endian.h"

namespace pycomm {
namespace {

constexpr size_t max_ranks = 1024;
constexpr size_t max_text = 8192;
constexpr size_t head_bytes = 12;
constexpr size_t max_body = head_bytes + 4 * max_ranks + max_text;

bool known_code(uint32_t code) {
#define PYCOMM_KNOWN(name, number, python, text) \
    if (code == number) return true;
    PYCOMM_ERROR_LIST(PYCOMM_KNOWN)
#undef PYCOMM_KNOWN
    return false;
}

}  // namespace

std::string encode_fault(const Fault& fault) {
    const size_t ranks = std::min(fault.ranks.size(), max_ranks);
    const std::string text = fault.text.substr(0, max_text);
    std::string frame;
    put_u32(frame, static_cast<uint32_t>(head_bytes + 4 * ranks + text.size()));
    put_u32(frame, static_cast<uint32_t>(fault.code));
    put_u32(frame, static_cast<uint32_t>(fault.reporter));
    put_u32(frame, static_cast<uint32_t>(ranks));
    for (size_t i = 0; i < ranks; ++i) put_u32(frame, static_cast<uint32_t>(fault.ranks[i]));
    return frame + text;
}

std::optional<Fault> decode_fault(std::string* bytes, bool* malformed) {
    if (bytes->size() < 4) return std::nullopt;
    const char* body = bytes->data() + 4;
    const size_t length = get_u32(bytes->data());
    *malformed = length < head_bytes || length > max_body;
    if (*malformed || bytes->size() < 4 + length) return std::nullopt;
    const uint32_t code = get_u32(body);
    const size_t ranks = get_u32(body + 8);
    *malformed = !known_code(code) || ranks > max_ranks || head_bytes + 4 * ranks > length;
    if (*malformed) return std::nullopt;
    Fault fault;
    fault.code = static_cast<ErrorCode>(code);
    fault.reporter = static_cast<int>(get_u32(body + 4));
    for (size_t i = 0; i < ranks; ++i) {
        fault.ranks.push_back(static_cast<int>(get_u32(body + head_bytes + 4 * i)));
    }
    fault.text.assign(body + head_bytes + 4 * ranks, length - head_bytes - 4 * ranks);
    bytes->erase(0, 4 + length);
    return fault;
}

}  // namespace pycomm
