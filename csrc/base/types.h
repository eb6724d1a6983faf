// Element types, reduction operations and operation kinds, with their names and the rules
// for which reduction is defined on which type.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace pycomm {

// clang-format off
// X(enumerator, NumPy name, bytes per element)
#define PYCOMM_DTYPE_LIST(X)                                              \
    X(boolean,    "bool",       1)                                        \
    X(int8,       "int8",       1)  X(int16,   "int16",   2)              \
    X(int32,      "int32",      4)  X(int64,   "int64",   8)              \
    X(uint8,      "uint8",      1)  X(uint16,  "uint16",  2)              \
    X(uint32,     "uint32",     4)  X(uint64,  "uint64",  8)              \
    X(float16,    "float16",    2)  X(bfloat16,"bfloat16",2)              \
    X(float32,    "float32",    4)  X(float64, "float64", 8)              \
    X(complex64,  "complex64",  8)  X(complex128, "complex128", 16)

#define PYCOMM_OP_LIST(X) \
    X(sum) X(prod) X(min) X(max) X(avg) X(band) X(bor) X(bxor)

// X(enumerator)
#define PYCOMM_KIND_LIST(X)                                                       \
    X(none) X(barrier) X(all_reduce) X(reduce_scatter) X(all_gather) X(broadcast) \
    X(reduce) X(gather) X(scatter) X(all_to_all) X(send) X(recv) X(close)   \
    X(split) X(empty)
// clang-format on

enum class DataType : uint8_t {
#define PYCOMM_ENUM(name, text, bytes) name,
    PYCOMM_DTYPE_LIST(PYCOMM_ENUM)
#undef PYCOMM_ENUM
};

// `none` marks operations that do not reduce.
enum class ReduceOp : uint8_t {
#define PYCOMM_ENUM(name) name,
    PYCOMM_OP_LIST(PYCOMM_ENUM)
#undef PYCOMM_ENUM
        none,
};

// What a rank called: a collective or a point-to-point operation.
enum class OpKind : uint8_t {
#define PYCOMM_ENUM(name) name,
    PYCOMM_KIND_LIST(PYCOMM_ENUM)
#undef PYCOMM_ENUM
};

size_t dtype_size(DataType type);
const char* dtype_name(DataType type);
const char* op_name(ReduceOp op);
const char* kind_name(OpKind kind);

// Both throw ArgumentError that lists the known names.
DataType parse_dtype(const std::string& name);
ReduceOp parse_op(const std::string& name);

// Throws ArgumentError when `op` has no meaning on `type`: avg on integers or bool, min and max on
// complex numbers, bitwise operations on floating-point numbers.
void check_op(ReduceOp op, DataType type);

// float16 and bfloat16, which accumulate in float32 and round once.
inline bool is_half(DataType type) {
    return type == DataType::float16 || type == DataType::bfloat16;
}

}  // namespace pycomm
