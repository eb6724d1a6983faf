// Parsing of the PYCOMM_* variables.
#include "base/env.h"

#include <cmath>
#include <cstdlib>
#include <initializer_list>

#include "base/error.h"

namespace pycomm {
namespace {

const char* value_of(const char* name) {
    const char* value = std::getenv(name);
    return value != nullptr && *value != '\0' ? value : nullptr;
}

void read_choice(const char* name, std::string& target, std::initializer_list<const char*> known) {
    const char* value = value_of(name);
    if (value == nullptr) return;
    std::string list;
    for (const char* choice : known) {
        if (std::string(value) == choice) {
            target = choice;
            return;
        }
        list += list.empty() ? choice : std::string(", ") + choice;
    }
    PYCOMM_FAIL(argument, name, "=", value, " is not one of ", list);
}

}  // namespace

Env read_env() {
    Env env;
    if (const char* value = value_of("PYCOMM_TIMEOUT")) {
        char* end = nullptr;
        env.timeout = std::strtod(value, &end);
        PYCOMM_CHECK(*end == '\0' && std::isfinite(env.timeout) && env.timeout > 0, argument,
                     "PYCOMM_TIMEOUT=", value, " is not a positive number of seconds");
    }
    if (const char* value = value_of("PYCOMM_BUFFER_BYTES")) {
        char* end = nullptr;
        env.buffer_bytes = std::strtoll(value, &end, 10);
        PYCOMM_CHECK(*end == '\0' && env.buffer_bytes >= 65536 && env.buffer_bytes <= (1LL << 34),
                     argument, "PYCOMM_BUFFER_BYTES=", value,
                     " is not a number of bytes from 65536 to 2^34");
    }
    if (const char* value = value_of("PYCOMM_ALGO")) env.algorithm = value;
    if (const char* value = value_of("PYCOMM_PROFILE")) env.profile = value;
    if (const char* value = value_of("PYCOMM_IFNAME")) env.interface = value;
    std::string check = "1";
    read_choice("PYCOMM_CHECK", check, {"0", "1"});
    env.check = check == "1";
    read_choice("PYCOMM_TRANSPORT", env.transport, {"auto", "shm", "tcp"});
    read_choice("PYCOMM_CMA", env.cma, {"auto", "always", "off"});
    read_choice("PYCOMM_SIMD", env.simd, {"auto", "plain", "avx2", "avx512"});
    read_choice("PYCOMM_LOG", env.log, {"silent", "warn", "info", "debug"});
    return env;
}

}  // namespace pycomm
