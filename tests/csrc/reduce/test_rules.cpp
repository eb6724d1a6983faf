// The rules users rely on, each with numbers written out: wrapping, bool, NaN, zeros, rounding.
#include <doctest/doctest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "base/error.h"
#include "reduce/kernels.h"
#include "reduce/reference.h"

using pycomm::DataType;
using pycomm::KernelTable;
using pycomm::ReduceOp;

namespace {

// Reduces rows[k], each repeated over `count` elements, and returns the elements.
template <class T>
std::vector<T> reduce_rows(const KernelTable* table, const std::vector<T>& rows, size_t count,
                           DataType type, ReduceOp op) {
    std::vector<std::vector<T>> inputs;
    std::vector<const void*> pointers;
    for (const T value : rows) inputs.emplace_back(count, value);
    for (const auto& input : inputs) pointers.push_back(input.data());
    std::vector<T> out(count, T(77));
    pycomm::reduce_with(*table, out.data(), pointers.data(), static_cast<int>(rows.size()), count,
                        type, op, static_cast<int64_t>(rows.size()));
    return out;
}

template <class T>
void check_rows(const std::vector<T>& rows, DataType type, ReduceOp op, T want) {
    for (const KernelTable* table : pycomm::usable_kernels()) {
        for (const size_t count : {1, 15, 16, 17, 1000}) {
            INFO(table->name << " " << pycomm::dtype_name(type) << " " << pycomm::op_name(op)
                             << " count " << count);
            CHECK(reduce_rows(table, rows, count, type, op) == std::vector<T>(count, want));
        }
    }
}

}  // namespace

TEST_CASE("integers wrap") {
    check_rows<int8_t>({120, 100}, DataType::int8, ReduceOp::sum, -36);
    check_rows<int8_t>({100, 100}, DataType::int8, ReduceOp::prod, 16);
    check_rows<uint8_t>({200, 100}, DataType::uint8, ReduceOp::sum, 44);
    check_rows<int16_t>({30000, 30000}, DataType::int16, ReduceOp::sum, -5536);
    check_rows<int32_t>({2147483647, 1}, DataType::int32, ReduceOp::sum,
                        std::numeric_limits<int32_t>::min());
    check_rows<int64_t>({std::numeric_limits<int64_t>::max(), 2}, DataType::int64, ReduceOp::prod,
                        -2);
}

TEST_CASE("min and max know signed from unsigned") {
    check_rows<int8_t>({-1, 1}, DataType::int8, ReduceOp::max, 1);
    check_rows<uint8_t>({255, 1}, DataType::uint8, ReduceOp::max, 255);
    check_rows<uint32_t>({0x80000000u, 5}, DataType::uint32, ReduceOp::min, 5);
    check_rows<uint64_t>({uint64_t{1} << 63, 5}, DataType::uint64, ReduceOp::max,
                         uint64_t{1} << 63);
    check_rows<int64_t>({std::numeric_limits<int64_t>::min(), 5}, DataType::int64, ReduceOp::max,
                        5);
}

TEST_CASE("bool: any byte but 0 is true, results are 0 or 1") {
    struct Row {
        ReduceOp op;
        uint8_t both, one, none;
    };
    const Row rows[] = {{ReduceOp::sum, 1, 1, 0},  {ReduceOp::prod, 1, 0, 0},
                        {ReduceOp::min, 1, 0, 0},  {ReduceOp::max, 1, 1, 0},
                        {ReduceOp::band, 1, 0, 0}, {ReduceOp::bor, 1, 1, 0},
                        {ReduceOp::bxor, 0, 1, 0}};
    for (const Row& row : rows) {
        check_rows<uint8_t>({2, 128}, DataType::boolean, row.op, row.both);
        check_rows<uint8_t>({0, 255}, DataType::boolean, row.op, row.one);
        check_rows<uint8_t>({6, 0}, DataType::boolean, row.op, row.one);
        check_rows<uint8_t>({0, 0}, DataType::boolean, row.op, row.none);
    }
    check_rows<uint8_t>({4}, DataType::boolean, ReduceOp::sum, 1);
    check_rows<uint8_t>({1, 2, 4}, DataType::boolean, ReduceOp::bxor, 1);
}

TEST_CASE("bool normalises a single input in place") {
    for (const KernelTable* table : pycomm::usable_kernels()) {
        uint8_t data[] = {0, 1, 2, 255, 128};
        const void* const inputs[] = {data};
        pycomm::reduce_with(*table, data, inputs, 1, 5, DataType::boolean, ReduceOp::max, 1);
        CHECK(std::vector<uint8_t>(data, data + 5) == std::vector<uint8_t>{0, 1, 1, 1, 1});
    }
}

TEST_CASE("a NaN in any input shows in min and max") {
    for (const KernelTable* table : pycomm::usable_kernels()) {
        for (const ReduceOp op : {ReduceOp::min, ReduceOp::max}) {
            for (const size_t sources : {2, 3, 4, 5, 7, 8, 13}) {
                for (size_t with_nan = 0; with_nan < sources; ++with_nan) {
                    INFO(table->name << " " << pycomm::op_name(op) << " input " << with_nan
                                     << " of " << sources);
                    std::vector<float> rows(sources);
                    std::vector<double> wide(sources);
                    std::vector<uint16_t> half(sources), brain(sources);
                    for (size_t k = 0; k < sources; ++k) {
                        wide[k] = k == with_nan ? std::nan("") : 1.0 + static_cast<double>(k);
                        rows[k] = static_cast<float>(wide[k]);
                        half[k] = reference::Float16::encode(rows[k]);
                        brain[k] = reference::Bfloat16::encode(rows[k]);
                    }
                    half[with_nan] |= 0x8000;  // a negative NaN is one as well
                    const auto f32 = reduce_rows(table, rows, 35, DataType::float32, op);
                    const auto f64 = reduce_rows(table, wide, 35, DataType::float64, op);
                    const auto f16 = reduce_rows(table, half, 35, DataType::float16, op);
                    const auto b16 = reduce_rows(table, brain, 35, DataType::bfloat16, op);
                    size_t numbers = 0;
                    for (size_t i = 0; i < 35; ++i) {
                        numbers += !std::isnan(f32[i]) + !std::isnan(f64[i]);
                        numbers += (f16[i] != 0x7e00) + (b16[i] != 0x7fc0);
                    }
                    CHECK(numbers == 0);
                }
            }
        }
    }
}

TEST_CASE("-0 is less than +0 in either order") {
    for (const KernelTable* table : pycomm::usable_kernels()) {
        for (const auto& rows :
             {std::vector<float>{0.0f, -0.0f}, std::vector<float>{-0.0f, 0.0f}}) {
            const auto low = reduce_rows(table, rows, 19, DataType::float32, ReduceOp::min);
            const auto high = reduce_rows(table, rows, 19, DataType::float32, ReduceOp::max);
            size_t wrong = 0;
            for (size_t i = 0; i < 19; ++i) wrong += !std::signbit(low[i]) + std::signbit(high[i]);
            CHECK(wrong == 0);
        }
    }
}

TEST_CASE("the NaN of a result does not depend on those of the inputs") {
    const auto signalling = reference::bits_as<float>(0xff812345u);
    const auto other = reference::bits_as<float>(0x7fabcdefu);
    for (const KernelTable* table : pycomm::usable_kernels()) {
        for (const ReduceOp op :
             {ReduceOp::sum, ReduceOp::prod, ReduceOp::min, ReduceOp::max, ReduceOp::avg}) {
            const auto out =
                reduce_rows<float>(table, {signalling, other}, 21, DataType::float32, op);
            CHECK(reference::bits_as<uint32_t>(out[0]) == 0x7fc00000u);
            CHECK(reference::bits_as<uint32_t>(out[20]) == 0x7fc00000u);
        }
        const float infinity = std::numeric_limits<float>::infinity();
        const auto out =
            reduce_rows<float>(table, {infinity, -infinity}, 21, DataType::float32, ReduceOp::sum);
        CHECK(reference::bits_as<uint32_t>(out[20]) == 0x7fc00000u);
    }
}

TEST_CASE("float16 avg of 30000 on four ranks is 30000") {
    const uint16_t value = reference::Float16::encode(30000.0f);
    check_rows<uint16_t>({value, value, value, value}, DataType::float16, ReduceOp::avg, value);
    check_rows<uint16_t>(std::vector<uint16_t>(13, value), DataType::float16, ReduceOp::avg, value);
}

TEST_CASE("float16 overflow is infinite") {
    const uint16_t value = reference::Float16::encode(40000.0f);
    check_rows<uint16_t>({value, value}, DataType::float16, ReduceOp::sum, 0x7c00);
    const uint16_t negative = reference::Float16::encode(-40000.0f);
    check_rows<uint16_t>({negative, negative}, DataType::float16, ReduceOp::sum, 0xfc00);
    // The sum passes 65504 on the way and comes back.
    check_rows<uint16_t>({value, value, negative, 0}, DataType::float16, ReduceOp::sum, value);
}

TEST_CASE("bfloat16 {256, 1, 1, 1} sums to 260 wherever the 256 stands") {
    // 259 lies between 258 and 260 and rounds to even; rounding at each addition would give 256.
    const uint16_t want = reference::Bfloat16::encode(260.0f);
    for (size_t place = 0; place < 4; ++place) {
        std::vector<uint16_t> rows(4, reference::Bfloat16::encode(1.0f));
        rows[place] = reference::Bfloat16::encode(256.0f);
        check_rows<uint16_t>(rows, DataType::bfloat16, ReduceOp::sum, want);
    }
}

TEST_CASE("a kernel that the processor lacks is refused by name") {
    const std::vector<const KernelTable*> only_plain{&pycomm::kernels_plain};
    CHECK(&pycomm::select_kernels("plain", only_plain) == &pycomm::kernels_plain);
    CHECK(&pycomm::select_kernels("auto", only_plain) == &pycomm::kernels_plain);
    try {
        pycomm::select_kernels("avx512", only_plain);
        FAIL("avx512 was accepted");
    } catch (const pycomm::Error& error) {
        CHECK(error.code() == pycomm::ErrorCode::argument);
        const std::string text = error.what();
        CHECK(text.find("PYCOMM_SIMD=avx512") != std::string::npos);
        CHECK(text.find("only plain;") != std::string::npos);
    }
    const auto usable = pycomm::usable_kernels();
    CHECK(&pycomm::select_kernels("auto", usable) == usable.back());
    for (const KernelTable* table : usable) {
        CHECK(&pycomm::select_kernels(table->name, usable) == table);
    }
}
