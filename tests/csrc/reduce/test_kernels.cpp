// Every kernel on every dtype, op, number of inputs and length against scalar arithmetic, bit by
// bit.
#include <doctest/doctest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "base/env.h"
#include "base/error.h"
#include "reduce/kernels.h"
#include "reduce/reduce.h"
#include "reduce/reference.h"

using pycomm::DataType;
using pycomm::KernelTable;
using pycomm::ReduceOp;

namespace {

constexpr unsigned char kSentinel = 0xa5;
constexpr size_t kMargin = 64;

std::vector<ReduceOp> ops_of(DataType type) {
    std::vector<ReduceOp> ops;
    for (int i = 0; i < pycomm::kOps; ++i) {
        const auto op = static_cast<ReduceOp>(i);
        try {
            pycomm::check_op(op, type);
            ops.push_back(op);
        } catch (const pycomm::Error&) {
        }
    }
    return ops;
}

// Inputs and output of one reduction. Buffer k starts `shift * k` elements past a 64-byte boundary.
struct Operands {
    Operands(DataType dtype, int sources, size_t elements, size_t shift)
        : type(dtype), count(elements), size(pycomm::dtype_size(dtype)) {
        for (int k = 0; k <= sources; ++k) {
            storage.emplace_back(
                (elements + shift * static_cast<size_t>(k)) * size + 2 * kMargin + 64, kSentinel);
            auto address = reinterpret_cast<uintptr_t>(storage.back().data()) + kMargin;
            address = (address + 63) / 64 * 64 + shift * static_cast<size_t>(k) * size;
            buffers.push_back(reinterpret_cast<unsigned char*>(address));
            const auto seed = static_cast<uint32_t>(1000 * k + static_cast<int>(dtype));
            if (k < sources) reference::fill(buffers.back(), elements, dtype, seed);
        }
        out = buffers.back();
        inputs.assign(buffers.begin(), buffers.end() - 1);
    }

    bool margins_intact(const void* target) const {
        const auto* begin = static_cast<const unsigned char*>(target);
        const auto* end = begin + count * size;
        const auto is_sentinel = [](unsigned char byte) { return byte == kSentinel; };
        return std::all_of(begin - kMargin, begin, is_sentinel) &&
               std::all_of(end, end + kMargin, is_sentinel);
    }

    DataType type;
    size_t count;
    size_t size;
    std::vector<reference::Bytes> storage;
    std::vector<unsigned char*> buffers;
    std::vector<const void*> inputs;
    unsigned char* out;
};

reference::Bytes expected(const Operands& operands, ReduceOp op, int64_t divisor) {
    reference::Bytes result(operands.count * operands.size + 1);
    reference::reduce(result.data(), operands.inputs.data(), operands.inputs.size(), operands.count,
                      operands.type, op, divisor);
    result.pop_back();
    return result;
}

// The index of the first wrong element, or -1.
int64_t first_wrong(const unsigned char* out, const reference::Bytes& want, size_t size) {
    for (size_t i = 0; i < want.size(); ++i) {
        if (out[i] != want[i]) return static_cast<int64_t>(i / size);
    }
    return -1;
}

std::string describe(const KernelTable* table, const Operands& operands, ReduceOp op) {
    return pycomm::concat(table->name, " ", pycomm::dtype_name(operands.type), " ",
                          pycomm::op_name(op), " inputs ", operands.inputs.size(), " count ",
                          operands.count);
}

void check_all_kernels(DataType type, int sources, size_t count, size_t shift) {
    for (const ReduceOp op : ops_of(type)) {
        Operands operands(type, sources, count, shift);
        const int64_t divisor = sources + 2;
        const auto want = expected(operands, op, divisor);
        for (const KernelTable* table : pycomm::usable_kernels()) {
            std::fill_n(operands.out, count * operands.size, kSentinel);
            pycomm::reduce_with(*table, operands.out, operands.inputs.data(), sources, count, type,
                                op, divisor);
            INFO(describe(table, operands, op));
            CHECK(first_wrong(operands.out, want, operands.size) == -1);
            CHECK(operands.margins_intact(operands.out));
        }
    }
}

}  // namespace

TEST_CASE("every dtype, op, number of inputs and length equals scalar arithmetic") {
    for (const DataType type : reference::all_types()) {
        for (const int sources : {1, 2, 3, 4, 5, 6, 7, 8, 9, 13}) {
            for (const size_t count : {0, 1, 15, 16, 17, 31, 63, 64, 65, 1000, 5000}) {
                check_all_kernels(type, sources, count, count % 2);
            }
        }
    }
}

TEST_CASE("many inputs keep the order of the tree") {
    for (const DataType type : {DataType::float32, DataType::float16, DataType::complex64}) {
        for (const int sources : {16, 17, 100, 1000, 1023, 1024}) {
            check_all_kernels(type, sources, 70, 0);
        }
        check_all_kernels(type, 33, 2500, 1);
    }
}

TEST_CASE("the output may be any of the inputs") {
    for (const DataType type : reference::all_types()) {
        for (const int sources : {1, 2, 3, 4, 5, 8, 9, 13}) {
            for (int alias = 0; alias < sources; ++alias) {
                for (const KernelTable* table : pycomm::usable_kernels()) {
                    const ReduceOp op = alias % 2 == 0 ? ReduceOp::sum : ReduceOp::prod;
                    Operands operands(type, sources, 2600, 1);
                    const auto want = expected(operands, op, 1);
                    unsigned char* out = operands.buffers[static_cast<size_t>(alias)];
                    pycomm::reduce_with(*table, out, operands.inputs.data(), sources,
                                        operands.count, type, op, 1);
                    INFO(describe(table, operands, op) << " out is input " << alias);
                    CHECK(first_wrong(out, want, operands.size) == -1);
                    CHECK(operands.margins_intact(out));
                }
            }
        }
    }
}

TEST_CASE("one buffer given twice, as output as well") {
    for (const KernelTable* table : pycomm::usable_kernels()) {
        std::vector<float> data(777);
        for (size_t i = 0; i < data.size(); ++i) data[i] = static_cast<float>(i) - 300.0f;
        const void* const inputs[] = {data.data(), data.data(), data.data()};
        pycomm::reduce_with(*table, data.data(), inputs, 3, data.size(), DataType::float32,
                            ReduceOp::sum, 1);
        size_t wrong = 0;
        for (size_t i = 0; i < data.size(); ++i) wrong += data[i] != 3.0f * (i - 300.0f);
        CHECK(wrong == 0);
    }
}

TEST_CASE("the public functions use the chosen kernel") {
    // Whatever PYCOMM_SIMD says when this test runs.
    const auto usable = pycomm::usable_kernels();
    const std::string forced = pycomm::read_env().simd;
    CHECK(std::string(pycomm::reduce_kernel_name()) == pycomm::select_kernels(forced, usable).name);

    const float a[] = {1, 2, 3};
    const float b[] = {10, 20, 30};
    const void* const inputs[] = {a, b};
    float out[] = {-1, -1, -1};
    pycomm::reduce(out, inputs, 2, 3, DataType::float32, ReduceOp::avg, 4);
    CHECK(out[0] == 2.75f);
    CHECK(out[1] == 5.5f);
    CHECK(out[2] == 8.25f);
    pycomm::divide(out, 3, DataType::float32, 11);
    CHECK(out[0] == 0.25f);
    CHECK(out[1] == 0.5f);
    CHECK(out[2] == 0.75f);
}

TEST_CASE("divide handles every floating-point type and refuses others") {
    for (const DataType type : reference::all_types()) {
        int64_t storage[64] = {};
        const auto ops = ops_of(type);
        if (std::find(ops.begin(), ops.end(), ReduceOp::avg) == ops.end()) {
            CHECK_THROWS_AS(pycomm::divide(storage, 4, type, 3), pycomm::Error);
            continue;
        }
        reference::fill(storage, 13, type, 7);
        reference::Bytes want(13 * pycomm::dtype_size(type));
        const void* const inputs[] = {storage};
        reference::reduce(want.data(), inputs, 1, 13, type, ReduceOp::avg, 3);
        pycomm::divide(storage, 13, type, 3);
        INFO(pycomm::dtype_name(type));
        CHECK(std::equal(want.begin(), want.end(), reinterpret_cast<unsigned char*>(storage)));
    }
}

TEST_CASE("calls without meaning are argument errors") {
    float data[4] = {1, 2, 3, 4};
    const void* const inputs[] = {data, data};
    const auto call = [&](int sources, DataType type, ReduceOp op, int64_t divisor) {
        pycomm::reduce(data, inputs, sources, 4, type, op, divisor);
    };
    CHECK_THROWS_AS(call(0, DataType::float32, ReduceOp::sum, 1), pycomm::Error);
    CHECK_THROWS_AS(call(2, DataType::float32, ReduceOp::band, 1), pycomm::Error);
    CHECK_THROWS_AS(call(2, DataType::float32, ReduceOp::none, 1), pycomm::Error);
    CHECK_THROWS_AS(call(2, DataType::float32, ReduceOp::avg, 0), pycomm::Error);
    CHECK_THROWS_AS(call(2, DataType::int32, ReduceOp::avg, 2), pycomm::Error);
    CHECK(data[0] == 1);
    CHECK(data[3] == 4);
}
