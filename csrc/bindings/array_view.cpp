// NumPy arrays as Buffers.
#include "base/error.h"
#include "bindings/bindings.h"

namespace pycomm::bindings {
namespace {

// NumPy's built-in type numbers are part of its ABI; bfloat16 is registered at run time by
// ml_dtypes.
DataType dtype_of(const py::dtype& type) {
    switch (type.num()) {
        case 0:
            return DataType::boolean;
        case 23:
            return DataType::float16;
        case 11:
            return DataType::float32;
        case 12:
            return DataType::float64;
        case 14:
            return DataType::complex64;
        case 15:
            return DataType::complex128;
        default:
            break;
    }
    const auto bytes = type.itemsize();
    if (type.kind() == 'i') {
        return bytes == 1   ? DataType::int8
               : bytes == 2 ? DataType::int16
               : bytes == 4 ? DataType::int32
                            : DataType::int64;
    }
    if (type.kind() == 'u') {
        return bytes == 1   ? DataType::uint8
               : bytes == 2 ? DataType::uint16
               : bytes == 4 ? DataType::uint32
                            : DataType::uint64;
    }
    return parse_dtype(py::str(static_cast<const py::object&>(type)));
}

}  // namespace

Buffer buffer_of(const py::object& object, bool writable, DataType fallback, const char* role) {
    if (object.is_none()) return {nullptr, 0, fallback};
    PYCOMM_CHECK(py::isinstance<py::array>(object), argument, role, " must be a NumPy array, not ",
                 Py_TYPE(object.ptr())->tp_name);
    const auto array = py::reinterpret_borrow<py::array>(object);
    PYCOMM_CHECK((array.flags() & py::array::c_style) != 0, argument, role,
                 " must be C-contiguous here");
    constexpr int aligned = py::detail::npy_api::NPY_ARRAY_ALIGNED_;
    PYCOMM_CHECK((array.flags() & aligned) != 0, argument, role, " is not aligned to its dtype");
    PYCOMM_CHECK(!writable || array.writeable(), argument, role, " is read-only");
    const py::dtype type = array.dtype();
    PYCOMM_CHECK(type.byteorder() != '>', argument, role, " has dtype ",
                 std::string(py::str(static_cast<const py::object&>(type))),
                 " in foreign byte order");
    return {const_cast<void*>(array.data()), static_cast<int64_t>(array.size()), dtype_of(type)};
}

}  // namespace pycomm::bindings
