// NumPy arrays as Buffers.
#include <iterator>

#include "base/error.h"
#include "bindings/bindings.h"
#include "bindings/quick_call.h"

namespace pycomm::bindings {
namespace {

// The type number that bfloat16 has in this process, once an array of it has come by.
int bfloat16_number = -1;

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
    const DataType parsed = parse_dtype(py::str(static_cast<const py::object&>(type)));
    if (parsed == DataType::bfloat16) bfloat16_number = type.num();
    return parsed;
}

// By NumPy's type number, for those that never change.
constexpr std::optional<DataType> unknown;
constexpr std::optional<DataType> builtin_dtypes[] = {
    DataType::boolean,
    DataType::int8,
    DataType::uint8,
    DataType::int16,
    DataType::uint16,
    DataType::int32,
    DataType::uint32,
    sizeof(long) == 8 ? DataType::int64 : DataType::int32,
    sizeof(long) == 8 ? DataType::uint64 : DataType::uint32,
    DataType::int64,
    DataType::uint64,
    DataType::float32,
    DataType::float64,
    unknown,  // long double
    DataType::complex64,
    DataType::complex128,
    unknown,  // complex long double, objects, strings, structures, times
    unknown,
    unknown,
    unknown,
    unknown,
    unknown,
    unknown,
    DataType::float16,
};

PyTypeObject* plain_array = nullptr;

std::optional<DataType> native_dtype(PyObject* descriptor) {
    const auto* proxy = py::detail::array_descriptor_proxy(descriptor);
    if (proxy->byteorder != '=' && proxy->byteorder != '|') return std::nullopt;
    const int number = proxy->type_num;
    if (number >= 0 && number < std::ssize(builtin_dtypes)) return builtin_dtypes[number];
    if (number == bfloat16_number) return DataType::bfloat16;
    return std::nullopt;
}

}  // namespace

void find_numpy() {
    plain_array = py::detail::npy_api::get().PyArray_Type_;
}

bool view_array(PyObject* object, bool writable, ArrayView& view) {
    using py::detail::npy_api;
    if (object == nullptr || Py_TYPE(object) != plain_array) return false;
    const auto* array = py::detail::array_proxy(object);
    const int needed = npy_api::NPY_ARRAY_C_CONTIGUOUS_ | npy_api::NPY_ARRAY_ALIGNED_ |
                       (writable ? npy_api::NPY_ARRAY_WRITEABLE_ : 0);
    if ((array->flags & needed) != needed) return false;
    const auto dtype = native_dtype(array->descr);
    if (!dtype) return false;
    view.shape = {array->dimensions, static_cast<size_t>(array->nd)};
    int64_t count = 1;
    for (const ssize_t extent : view.shape) count *= extent;
    view.buffer = {array->data, count, *dtype};
    return true;
}

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
