// Log lines on stderr, one write per line: "[pycomm host pid rank/size] warning: text".
#pragma once

#include <string>

namespace pycomm {

enum class LogLevel { silent = 0, warn = 1, info = 2, debug = 3 };

// The level of PYCOMM_LOG, read at the first use; warnings only by default.
bool log_enabled(LogLevel level);
void log_line(LogLevel level, int rank, int size, const std::string& text);

}  // namespace pycomm
