// 32-bit integers in messages, independent of the machine's byte order.
#pragma once

#include <cstdint>
#include <string>

namespace pycomm {

inline void put_u32(std::string& out, uint32_t value) {
    for (int shift = 0; shift < 32; shift += 8) out += static_cast<char>(value >> shift & 255);
}

inline uint32_t get_u32(const char* bytes) {
    uint32_t value = 0;
    for (int i = 3; i >= 0; --i) value = value << 8 | static_cast<unsigned char>(bytes[i]);
    return value;
}

}  // namespace pycomm
