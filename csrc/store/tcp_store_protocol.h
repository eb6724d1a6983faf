// What the TCP store's client and server say to each other.
//
//   client: hello  = magic[8] version:u32 token_length:u32 token "\r\n\r\n"
//   server: answer = magic[8] version:u32 verdict:u32
//   client: request = length:u32 operation:u8 key_length:u32 key value
//   server: reply   = length:u32 status:u8 value
//
// Integers are little-endian; a length counts the bytes after it. A client sends its next request
// when it has the reply. The hello ends like a header of a text protocol, so that a server of such
// a protocol answers at once and can be named in the error.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "store/little_endian.h"

namespace pycomm::store_protocol {

inline constexpr std::string_view magic("pycommST", 8);
inline constexpr std::string_view hello_end("\r\n\r\n", 4);
inline constexpr uint32_t version = 1;

inline constexpr size_t hello_head = 16;  // before the token
inline constexpr size_t answer_bytes = 16;
inline constexpr size_t request_head = 9;  // length, operation, key length
inline constexpr size_t reply_head = 5;    // length, status
inline constexpr size_t max_token = 256;
inline constexpr size_t max_key = 64 << 10;
inline constexpr size_t max_value = 64 << 20;

enum Verdict : uint32_t { welcome = 0, wrong_version = 1, wrong_token = 2 };
enum Operation : uint8_t { op_set = 1, op_get = 2, op_contains = 3 };
enum Status : uint8_t { ok = 0, absent = 1, refused = 2 };  // refused: the value is the reason

}  // namespace pycomm::store_protocol
