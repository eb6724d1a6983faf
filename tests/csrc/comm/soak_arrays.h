// Arrays of a soak whose every element is known, with margins that nobody may write.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <functional>
#include <iterator>
#include <memory>
#include <random>
#include <vector>

#include "comm/rank_threads.h"
#include "reduce/reduce.h"

namespace pycomm::testing::soak {

inline constexpr int ranks = 4;
inline constexpr int64_t largest = 2 << 20;  // bytes of a whole array

// The standard library's distributions differ between implementations; a seed should not.
using Random = std::mt19937_64;
inline int64_t below(Random& random, int64_t end) {
    return static_cast<int64_t>(random() % static_cast<uint64_t>(end));
}
inline bool chance(Random& random, int percent) {
    return below(random, 100) < percent;
}
template <typename Range>
auto pick(Random& random, const Range& range) {
    return std::begin(range)[below(random, std::ssize(range))];
}

// What rank r contributes is pattern r; what an op makes of all contributions is pattern of_op().
inline constexpr int64_t period = 8191;  // a prime, so that a displaced block shows

inline int of_op(ReduceOp op) {
    return ranks + static_cast<int>(op);
}

// Sums and products of these over the ranks are exact in every type and order.
inline int contribution(int rank, int64_t element) {
    constexpr std::array values{1, 2, 3, 4, 6, 8, 12};
    uint64_t mixed = static_cast<uint64_t>(element * ranks + rank + 1) * 0x9E3779B97F4A7C15u;
    mixed = (mixed ^ (mixed >> 32)) * 0xD6E8FEB86659FD93u;
    mixed ^= mixed >> 29;
    const int value = values[mixed % values.size()];
    return (mixed >> 40) % 2 == 0 ? value : -value;
}

inline double combined(ReduceOp op, int64_t element) {
    int result = contribution(0, element);
    for (int rank = 1; rank < ranks; ++rank) {
        const int other = contribution(rank, element);
        switch (op) {
            case ReduceOp::prod:
                result *= other;
                break;
            case ReduceOp::min:
                result = std::min(result, other);
                break;
            case ReduceOp::max:
                result = std::max(result, other);
                break;
            case ReduceOp::band:
                result &= other;
                break;
            case ReduceOp::bor:
                result |= other;
                break;
            case ReduceOp::bxor:
                result ^= other;
                break;
            default:
                result += other;
        }
    }
    return op == ReduceOp::avg ? result / double{ranks} : result;
}

inline constexpr std::array dtypes{DataType::int32, DataType::float32, DataType::float64,
                                   DataType::bfloat16};

inline std::vector<ReduceOp> ops_of(DataType dtype) {
    using enum ReduceOp;
    if (dtype == DataType::int32) return {sum, sum, prod, min, max, band, bor, bxor};
    return {sum, sum, prod, min, max, avg};
}

inline void store(std::byte* at, DataType dtype, double value) {
    const auto put = [at](auto typed) { std::memcpy(at, &typed, sizeof(typed)); };
    const auto real = static_cast<float>(value);
    if (dtype == DataType::int32) return put(static_cast<int32_t>(value));
    if (dtype == DataType::float32) return put(real);
    if (dtype == DataType::float64) return put(value);
    narrow(at, &real, 1, dtype);
}

// One period of a pattern.
inline const std::vector<std::byte>& pattern(DataType dtype, int number) {
    using Table = std::array<std::vector<std::byte>, ranks + static_cast<int>(ReduceOp::none)>;
    static const auto tables = [] {
        std::array<Table, dtypes.size()> all;
        const auto make = [&](size_t type, int index, const std::function<double(int64_t)>& value) {
            auto& bytes = all[type][static_cast<size_t>(index)];
            const size_t size = dtype_size(dtypes[type]);
            bytes.resize(static_cast<size_t>(period) * size);
            for (int64_t i = 0; i < period; ++i) {
                store(bytes.data() + static_cast<size_t>(i) * size, dtypes[type], value(i));
            }
        };
        for (size_t type = 0; type < dtypes.size(); ++type) {
            for (int rank = 0; rank < ranks; ++rank) {
                make(type, rank, [=](int64_t i) { return contribution(rank, i); });
            }
            for (const ReduceOp op : ops_of(dtypes[type])) {
                make(type, of_op(op), [=](int64_t i) { return combined(op, i); });
            }
        }
        return all;
    }();
    const auto type = std::find(dtypes.begin(), dtypes.end(), dtype) - dtypes.begin();
    return tables[static_cast<size_t>(type)][static_cast<size_t>(number)];
}

// A run of elements of a pattern. `start` differs from call to call, or old results would look
// right.
struct Segment {
    int pattern = 0;
    int64_t start = 0;
    int64_t count = 0;
};
using Segments = std::vector<Segment>;

// Calls `visit(element of the segment, bytes in the array, bytes of the pattern, length)`.
template <typename Visit>
void for_each_run(const Buffer& buffer, const Segments& segments, Visit&& visit) {
    const auto size = static_cast<int64_t>(dtype_size(buffer.dtype));
    int64_t at = 0;
    for (const auto& segment : segments) {
        const std::byte* bytes = pattern(buffer.dtype, segment.pattern).data();
        for (int64_t done = 0; done < segment.count;) {
            const int64_t phase = (segment.start + done) % period;
            const int64_t count = std::min(period - phase, segment.count - done);
            visit(at, buffer.at(at), bytes + phase * size, static_cast<size_t>(count * size));
            at += count;
            done += count;
        }
    }
    expect(at == buffer.count, "the soak itself: ", at, " elements described of ", buffer.count);
}

inline void fill(const Buffer& buffer, const Segments& segments) {
    for_each_run(buffer, segments,
                 [](int64_t, std::byte* to, const std::byte* from, size_t length) {
                     std::memcpy(to, from, length);
                 });
}

inline void check(const Buffer& buffer, const Segments& segments, const char* role) {
    for_each_run(buffer, segments,
                 [&](int64_t at, const std::byte* have, const std::byte* want, size_t length) {
                     if (std::memcmp(have, want, length) == 0) return;
                     const auto wrong = std::mismatch(have, have + length, want).first - have;
                     const auto size = static_cast<int64_t>(dtype_size(buffer.dtype));
                     expect(false, role, " of ", buffer.count, " elements at ",
                            static_cast<const void*>(buffer.data), ": element ", at + wrong / size,
                            " is wrong");
                 });
}

// Elements with a margin on either side that nobody may write.
class Array {
  public:
    static size_t bytes_for(DataType dtype, int64_t count) {
        return static_cast<size_t>(count) * dtype_size(dtype) + 2 * margin + most_skipped;
    }

    Array() = default;
    // `memory` has bytes_for() bytes. Elements begin `skipped` bytes after the margin.
    Array(std::shared_ptr<std::byte> memory, DataType dtype, int64_t count, size_t skipped)
        : memory_(std::move(memory)),
          elements_{memory_.get() + margin + skipped, count, dtype},
          bytes_(bytes_for(dtype, count)) {
        std::memset(memory_.get(), untouched, bytes_);
    }

    Buffer part(int64_t first, int64_t count) const {
        return {elements_.at(first), count, elements_.dtype};
    }
    void check_margins() const {
        if (!memory_) return;
        const auto is_touched = [](std::byte byte) { return byte != std::byte{untouched}; };
        std::byte* begin = memory_.get();
        std::byte* first = elements_.at(0);
        expect(std::none_of(begin, first, is_touched), "written before an array");
        expect(std::none_of(first + elements_.bytes(), begin + bytes_, is_touched),
               "written behind an array");
    }

    static constexpr size_t most_skipped = 64;

  private:
    static constexpr size_t margin = 64;
    static constexpr unsigned char untouched = 0xA5;

    std::shared_ptr<std::byte> memory_;
    Buffer elements_;
    size_t bytes_ = 0;
};

}  // namespace pycomm::testing::soak
