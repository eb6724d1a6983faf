// Names and texts of errors.
#include "base/error.h"

#include <system_error>

namespace pycomm {

const char* error_name(ErrorCode code) {
    switch (code) {
#define PYCOMM_NAME(name, number, python, text) \
    case ErrorCode::name:                       \
        return #python;
        PYCOMM_ERROR_LIST(PYCOMM_NAME)
#undef PYCOMM_NAME
    }
    return "CommError";
}

std::string join_ranks(const std::vector<int>& ranks) {
    std::string text;
    for (const int rank : ranks) {
        if (!text.empty()) text += ", ";
        text += std::to_string(rank);
    }
    return text;
}

std::string errno_text(int number) {
    return concat(std::generic_category().message(number), " (errno ", number, ")");
}

}  // namespace pycomm
