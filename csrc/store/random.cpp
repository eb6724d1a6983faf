// Hexadecimal digits from getrandom.
#include "store/random.h"

#include <sys/random.h>

#include <cerrno>

#include "base/error.h"

namespace pycomm {

std::string random_hex(size_t bytes) {
    static const char digits[] = "0123456789abcdef";
    std::string raw(bytes, '\0');
    for (size_t done = 0; done < bytes;) {
        const ssize_t count = ::getrandom(raw.data() + done, bytes - done, 0);
        if (count == -1 && errno == EINTR) continue;
        PYCOMM_CHECK(count > 0, transport, "getrandom: ", errno_text(errno));
        done += static_cast<size_t>(count);
    }
    std::string text;
    for (const char byte : raw) {
        text += digits[static_cast<unsigned char>(byte) >> 4];
        text += digits[static_cast<unsigned char>(byte) & 15];
    }
    return text;
}

}  // namespace pycomm
