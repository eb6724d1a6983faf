// Typed exceptions: every failure in the core is an Error with a code from error_list.h.
#pragma once

#include <cstdint>
#include <sstream>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "base/error_list.h"

namespace pycomm {

enum class ErrorCode : uint8_t {
#define PYCOMM_ENUM(name, number, python, text) name = number,
    PYCOMM_ERROR_LIST(PYCOMM_ENUM)
#undef PYCOMM_ENUM
};

// The Python class name that belongs to a code, for example "MismatchError".
const char* error_name(ErrorCode code);

class Error : public std::runtime_error {
  public:
    Error(ErrorCode code, const std::string& text) : std::runtime_error(text), code_(code) {}
    Error(ErrorCode code, const std::string& text, std::vector<int> ranks)
        : std::runtime_error(text), code_(code), ranks_(std::move(ranks)) {}

    ErrorCode code() const { return code_; }
    // The ranks the error is about: the missing ones of a timeout, the lost one of a lost peer.
    const std::vector<int>& ranks() const { return ranks_; }

  private:
    ErrorCode code_;
    std::vector<int> ranks_;
};

template <typename... Parts>
std::string concat(const Parts&... parts) {
    std::ostringstream out;
    (out << ... << parts);
    return out.str();
}

// "2" or "1, 3, 4": how messages list ranks.
std::string join_ranks(const std::vector<int>& ranks);

// Text of errno value `number`, thread-safe: "No such file or directory (errno 2)".
std::string errno_text(int number);

}  // namespace pycomm

// The three check macros. Each takes the message as parts that are concatenated.
#define PYCOMM_FAIL(code_name, ...) \
    throw ::pycomm::Error(::pycomm::ErrorCode::code_name, ::pycomm::concat(__VA_ARGS__))
#define PYCOMM_CHECK(condition, code_name, ...)                \
    do {                                                       \
        if (!(condition)) PYCOMM_FAIL(code_name, __VA_ARGS__); \
    } while (0)
// For system calls that return -1 and set errno.
#define PYCOMM_CHECK_SYSCALL(expression, ...)                                              \
    do {                                                                                   \
        if ((expression) == -1) {                                                          \
            const int pycomm_errno = errno;                                                \
            PYCOMM_FAIL(transport, __VA_ARGS__, ": ", ::pycomm::errno_text(pycomm_errno)); \
        }                                                                                  \
    } while (0)
