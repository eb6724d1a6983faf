// Unpredictable names for things that must not clash or be guessed.
#pragma once

#include <cstddef>
#include <string>

namespace pycomm {

// `bytes` bytes from the kernel's generator, as twice as many hexadecimal digits.
std::string random_hex(size_t bytes);

}  // namespace pycomm
