// Conversion of 16-bit floats: every bit pattern, every tie of rounding, NaN and infinity.
#include <doctest/doctest.h>

#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "base/error.h"
#include "reduce/kernels.h"
#include "reduce/reduce.h"
#include "reduce/reference.h"

using pycomm::DataType;
using pycomm::KernelTable;

namespace {

constexpr size_t kPatterns = 65536;

uint32_t bits_of(float value) {
    return reference::bits_as<uint32_t>(value);
}

std::vector<uint16_t> all_patterns() {
    std::vector<uint16_t> patterns(kPatterns);
    for (size_t i = 0; i < kPatterns; ++i) patterns[i] = static_cast<uint16_t>(i);
    return patterns;
}

// A NaN keeps its sign and payload; that of float16 becomes quiet on the way.
uint32_t widened(uint16_t half, DataType type) {
    if (type == DataType::bfloat16) return uint32_t{half} << 16;
    const float value = reference::Float16::decode(half);
    if (!std::isnan(value)) return bits_of(value);
    return (half & 0x8000u) << 16 | 0x7fc00000u | (half & 0x3ffu) << 13;
}

uint16_t narrowed(float value, DataType type) {
    const uint32_t bits = bits_of(value);
    if (std::isnan(value)) {
        return static_cast<uint16_t>(type == DataType::bfloat16
                                         ? bits >> 16 | 0x40
                                         : (bits >> 16 & 0x8000) | 0x7e00 | (bits >> 13 & 0x3ff));
    }
    return type == DataType::bfloat16 ? reference::Bfloat16::encode(value)
                                      : reference::Float16::encode(value);
}

void check_narrow(const std::vector<float>& values, DataType type) {
    for (const KernelTable* table : pycomm::usable_kernels()) {
        std::vector<uint16_t> out(values.size() + 1, 0xabcd);
        pycomm::narrow_with(*table, out.data(), values.data(), values.size(), type);
        size_t wrong = 0;
        float example = 0;
        for (size_t i = 0; i < values.size(); ++i) {
            if (out[i] == narrowed(values[i], type)) continue;
            ++wrong;
            example = values[i];
        }
        INFO(table->name << " " << pycomm::dtype_name(type) << " for example " << example);
        CHECK(wrong == 0);
        CHECK(out.back() == 0xabcd);
    }
}

}  // namespace

TEST_CASE("widening is right for every pattern") {
    const auto patterns = all_patterns();
    for (const DataType type : {DataType::float16, DataType::bfloat16}) {
        for (const KernelTable* table : pycomm::usable_kernels()) {
            std::vector<float> out(kPatterns, -7.0f);
            pycomm::widen_with(*table, out.data(), patterns.data(), kPatterns, type);
            size_t wrong = 0;
            for (size_t i = 0; i < kPatterns; ++i) {
                wrong += bits_of(out[i]) != widened(patterns[i], type);
            }
            INFO(table->name << " " << pycomm::dtype_name(type));
            CHECK(wrong == 0);
        }
    }
}

TEST_CASE("narrowing gives back every pattern, and NaN stays NaN") {
    for (const DataType type : {DataType::float16, DataType::bfloat16}) {
        const auto patterns = all_patterns();
        for (const KernelTable* table : pycomm::usable_kernels()) {
            std::vector<float> wide(kPatterns);
            std::vector<uint16_t> out(kPatterns, 0xabcd);
            pycomm::widen_with(*table, wide.data(), patterns.data(), kPatterns, type);
            pycomm::narrow_with(*table, out.data(), wide.data(), kPatterns, type);
            const uint16_t quiet = type == DataType::float16 ? 0x200 : 0x40;
            size_t wrong = 0;
            for (size_t i = 0; i < kPatterns; ++i) {
                const bool is_nan = std::isnan(wide[i]);
                wrong += out[i] != (is_nan ? patterns[i] | quiet : patterns[i]);
            }
            INFO(table->name << " " << pycomm::dtype_name(type));
            CHECK(wrong == 0);
        }
    }
}

TEST_CASE("narrowing rounds to nearest, ties to even") {
    for (const DataType type : {DataType::float16, DataType::bfloat16}) {
        // The midpoint above each number, the floats next to it, and both neighbours.
        std::vector<float> values;
        for (uint32_t half = 0; half < kPatterns - 1; ++half) {
            const auto low = reference::bits_as<float>(widened(static_cast<uint16_t>(half), type));
            const auto high =
                reference::bits_as<float>(widened(static_cast<uint16_t>(half + 1), type));
            if (!std::isfinite(low) || !std::isfinite(high)) continue;
            const auto middle = static_cast<float>((static_cast<double>(low) + high) / 2);
            values.insert(values.end(),
                          {low, middle, std::nextafter(middle, low), std::nextafter(middle, high)});
        }
        check_narrow(values, type);
    }
    // Written out: 2049 lies between 2048 and 2050, 2051 between 2050 and 2052.
    std::vector<float> ties{2049.0f, 2051.0f, 65519.0f, 65520.0f, 0x1p-25f, 0x1.8p-24f};
    std::vector<uint16_t> want{0x6800, 0x6802, 0x7bff, 0x7c00, 0x0000, 0x0002};
    std::vector<uint16_t> out(ties.size());
    pycomm::narrow(out.data(), ties.data(), ties.size(), DataType::float16);
    CHECK(out == want);
}

TEST_CASE("narrowing any float, subnormal, huge and NaN ones included") {
    std::mt19937 random(5);
    std::vector<float> values;
    for (int i = 0; i < 300000; ++i)
        values.push_back(reference::bits_as<float>(uint32_t(random())));
    // Every exponent with the fractions where rounding changes, both signs.
    for (uint32_t exponent = 0; exponent < 512; ++exponent) {
        for (const uint32_t fraction : {0u, 1u, 0xfffu, 0x1000u, 0x1001u, 0x2fffu, 0x3000u, 0x3001u,
                                        0x7fffu, 0x8000u, 0x8001u, 0x18000u, 0x400000u, 0x7fefffu,
                                        0x7ff000u, 0x7f7fffu, 0x7f8000u, 0x7fffffu}) {
            values.push_back(reference::bits_as<float>(exponent << 23 | fraction));
        }
    }
    check_narrow(values, DataType::float16);
    check_narrow(values, DataType::bfloat16);
}

TEST_CASE("conversion of any length touches nothing beyond, and refuses other types") {
    const std::vector<uint16_t> ones(70, 0x3c00);
    for (const KernelTable* table : pycomm::usable_kernels()) {
        for (size_t count = 0; count <= 69; ++count) {
            std::vector<float> out(71, -7.0f);
            pycomm::widen_with(*table, out.data() + 1, ones.data() + 1, count, DataType::float16);
            size_t wrong = 0;
            for (size_t i = 0; i < 71; ++i) {
                wrong += out[i] != (i >= 1 && i <= count ? 1.0f : -7.0f);
            }
            CHECK(wrong == 0);
        }
    }
    float wide[2] = {};
    CHECK_THROWS_AS(pycomm::widen(wide, ones.data(), 2, DataType::float32), pycomm::Error);
    CHECK_THROWS_AS(pycomm::narrow(wide, wide, 2, DataType::int16), pycomm::Error);
}
