// Tables and rules for element types and operations.
#include "base/types.h"

#include "base/error.h"

namespace pycomm {

size_t dtype_size(DataType type) {
    switch (type) {
#define PYCOMM_SIZE(name, text, bytes) \
    case DataType::name:               \
        return bytes;
        PYCOMM_DTYPE_LIST(PYCOMM_SIZE)
#undef PYCOMM_SIZE
    }
    return 1;
}

const char* dtype_name(DataType type) {
    switch (type) {
#define PYCOMM_NAME(name, text, bytes) \
    case DataType::name:               \
        return text;
        PYCOMM_DTYPE_LIST(PYCOMM_NAME)
#undef PYCOMM_NAME
    }
    return "?";
}

const char* op_name(ReduceOp op) {
    switch (op) {
#define PYCOMM_NAME(name) \
    case ReduceOp::name:  \
        return #name;
        PYCOMM_OP_LIST(PYCOMM_NAME)
#undef PYCOMM_NAME
        case ReduceOp::none:
            return "none";
    }
    return "?";
}

const char* kind_name(OpKind kind) {
    switch (kind) {
#define PYCOMM_NAME(name) \
    case OpKind::name:    \
        return #name;
        PYCOMM_KIND_LIST(PYCOMM_NAME)
#undef PYCOMM_NAME
    }
    return "?";
}

DataType parse_dtype(const std::string& name) {
    std::string known;
#define PYCOMM_PARSE(enumerator, text, bytes)        \
    if (name == (text)) return DataType::enumerator; \
    known += known.empty() ? text : std::string(", ") + (text);
    PYCOMM_DTYPE_LIST(PYCOMM_PARSE)
#undef PYCOMM_PARSE
    PYCOMM_FAIL(argument, "dtype ", name, " is not supported; supported are ", known);
}

ReduceOp parse_op(const std::string& name) {
#define PYCOMM_PARSE(enumerator) \
    if (name == #enumerator) return ReduceOp::enumerator;
    PYCOMM_OP_LIST(PYCOMM_PARSE)
#undef PYCOMM_PARSE
    PYCOMM_FAIL(argument, "unknown op '", name,
                "'; expected one of sum, prod, min, max, avg, band, bor, bxor");
}

void check_op(ReduceOp op, DataType type) {
    const bool is_complex = type == DataType::complex64 || type == DataType::complex128;
    const bool is_float = is_half(type) || type == DataType::float32 || type == DataType::float64;
    bool defined = true;
    switch (op) {
        case ReduceOp::sum:
        case ReduceOp::prod:
        case ReduceOp::none:
            break;
        case ReduceOp::avg:
            defined = is_float || is_complex;
            break;
        case ReduceOp::min:
        case ReduceOp::max:
            defined = !is_complex;
            break;
        case ReduceOp::band:
        case ReduceOp::bor:
        case ReduceOp::bxor:
            defined = !is_float && !is_complex;
            break;
    }
    PYCOMM_CHECK(defined, argument, "op ", op_name(op), " is not defined for dtype ",
                 dtype_name(type));
}

}  // namespace pycomm
