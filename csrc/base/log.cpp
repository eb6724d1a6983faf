// Formatting of log lines.
#include "base/log.h"

#include <unistd.h>

#include "base/env.h"
#include "base/error.h"

namespace pycomm {
namespace {

LogLevel level_from_env() {
    try {
        const std::string name = read_env().log;
        if (name == "silent") return LogLevel::silent;
        if (name == "info") return LogLevel::info;
        if (name == "debug") return LogLevel::debug;
    } catch (const Error&) {
        // A malformed variable is reported by the call that reads the whole environment.
    }
    return LogLevel::warn;
}

}  // namespace

bool log_enabled(LogLevel level) {
    static const LogLevel enabled = level_from_env();
    return level <= enabled && level != LogLevel::silent;
}

void log_line(LogLevel level, int rank, int size, const std::string& text) {
    if (!log_enabled(level)) return;
    char host[256] = "?";
    gethostname(host, sizeof(host) - 1);
    const char* prefix = level == LogLevel::warn ? "warning: " : "";
    const std::string line =
        concat("[pycomm ", host, ' ', getpid(), ' ', rank, '/', size, "] ", prefix, text, '\n');
    const ssize_t written = ::write(STDERR_FILENO, line.data(), line.size());
    (void)written;  // nothing sensible can be done when stderr is closed
}

}  // namespace pycomm
