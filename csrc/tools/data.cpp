// Periods of data by source, written and compared in runs.
#include "tools/data.h"

#include <algorithm>
#include <cstring>

#include "base/error.h"
#include "reduce/reduce.h"

namespace pycomm::tools {
namespace {

constexpr int64_t period = 8191;  // a prime
constexpr unsigned char sentinel = 0xA5;

template <typename T>
void store(std::byte* at, int value) {
    const T typed = static_cast<T>(value);
    std::memcpy(at, &typed, sizeof typed);
}

void store_as(DataType dtype, std::byte* at, int value) {
    const auto real = static_cast<float>(value);
    switch (dtype) {
        case DataType::int8:
        case DataType::uint8:
            return store<uint8_t>(at, value);
        case DataType::int16:
        case DataType::uint16:
            return store<uint16_t>(at, value);
        case DataType::int32:
        case DataType::uint32:
            return store<uint32_t>(at, value);
        case DataType::int64:
        case DataType::uint64:
            return store<uint64_t>(at, value);
        case DataType::float32:
            return store<float>(at, value);
        case DataType::float64:
            return store<double>(at, value);
        case DataType::float16:
        case DataType::bfloat16:
            return narrow(at, &real, 1, dtype);
        default:
            PYCOMM_FAIL(argument, "no data of type ", dtype_name(dtype),
                        "; take an integer or real type");
    }
}

}  // namespace

Data::Data(int ranks, DataType dtype) : ranks_(ranks), dtype_(dtype) {
    period_of(Block::sum);
}

int Data::number(int source, int64_t element) const {
    // A sum over all ranks stays below 128: exact in bfloat16, and no overflow of int8.
    const auto values = static_cast<uint32_t>(std::clamp(120 / ranks_, 2, 13));
    uint32_t mixed = static_cast<uint32_t>(element) * 2654435761u +
                     static_cast<uint32_t>(source + 1) * 2246822519u;
    mixed ^= mixed >> 15;
    mixed *= 3266489917u;
    return static_cast<int>((mixed >> 13) % values);
}

const std::vector<std::byte>& Data::period_of(int source) {
    auto& bytes = periods_[source];
    if (!bytes.empty()) return bytes;
    const size_t size = dtype_size(dtype_);
    bytes.resize(static_cast<size_t>(period) * size);
    for (int64_t i = 0; i < period; ++i) {
        int value = source == Block::sum ? 0 : number(source, i);
        for (int rank = 0; source == Block::sum && rank < ranks_; ++rank) value += number(rank, i);
        store_as(dtype_, bytes.data() + static_cast<size_t>(i) * size, value);
    }
    return bytes;
}

void Data::fill(const Buffer& buffer, int source) {
    const auto& bytes = period_of(source);
    for (int64_t at = 0; at < buffer.count; at += period) {
        const auto count = static_cast<size_t>(std::min(period, buffer.count - at));
        std::memcpy(buffer.at(at), bytes.data(), count * dtype_size(dtype_));
    }
}

void Data::prepare(const Case& c, const Buffers& buffers) {
    fill(buffers.input, c.rank);
    if (c.kind == OpKind::broadcast && c.is_root()) return fill(buffers.output, c.rank);
    if (buffers.output.count > 0)
        std::memset(buffers.output.data, sentinel, buffers.output.bytes());
}

int64_t Data::compare(const std::byte* data, const Block& block) {
    const size_t size = dtype_size(dtype_);
    const auto& bytes = period_of(block.source);
    int64_t wrong = 0;
    for (int64_t at = 0; at < block.count;) {
        const int64_t phase = (block.start + at) % period;
        const int64_t count = std::min(period - phase, block.count - at);
        const std::byte* want = bytes.data() + static_cast<size_t>(phase) * size;
        const std::byte* have = data + static_cast<size_t>(at) * size;
        if (std::memcmp(have, want, static_cast<size_t>(count) * size) != 0) {
            for (size_t i = 0; i < static_cast<size_t>(count); ++i) {
                wrong += std::memcmp(have + i * size, want + i * size, size) != 0;
            }
        }
        at += count;
    }
    return wrong;
}

int64_t Data::count_wrong(const Case& c, const Buffers& buffers) {
    int64_t wrong = 0;
    int64_t at = 0;
    for (const Block& block : expected(c)) {
        if (block.count > 0) wrong += compare(buffers.output.at(at), block);
        at += block.count;
    }
    return wrong;
}

}  // namespace pycomm::tools
