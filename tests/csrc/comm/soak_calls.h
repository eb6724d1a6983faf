// The random calls of a soak, which all ranks draw alike, and what each means for one rank.
#pragma once

#include <numeric>

#include "comm/soak_arrays.h"
#include "schedule/schedule.h"

namespace pycomm::testing::soak {

struct Letter {
    int from = 0;
    int to = 0;
    int64_t count = 0;
    int64_t start = 0;  // of its data in the sender's pattern
    int tag = 0;
};

// What all ranks know of one call. A call of the kind `send` is several messages among them, one of
// the kind `empty` new symmetric memory.
struct Call {
    int64_t number = 0;
    OpKind kind = OpKind::none;
    DataType dtype = DataType::int32;
    ReduceOp op = ReduceOp::none;
    int root = -1;
    int64_t count = 0;  // of the whole; for `empty` bytes
    int64_t start = 0;  // of this call's data in the patterns
    bool explicit_counts = false;
    std::vector<int64_t> counts;
    std::vector<std::vector<int64_t>> matrix;  // all_to_all: by sender and receiver
    std::vector<Letter> letters;
    bool one_tag = false;  // for all letters, whose order then matters

    std::string describe() const {
        return concat(kind_name(kind), ", ", dtype_name(dtype),
                      op == ReduceOp::none ? "" : concat(", ", op_name(op)), ", ", count,
                      " elements, root ", root, explicit_counts ? ", explicit counts" : "", ", ",
                      letters.size(), " messages");
    }
};

inline int64_t draw_bytes(Random& random) {
    // Where operations change their way, among others.
    constexpr std::array<int64_t, 10> boundaries{32,       4 << 10,   8 << 10,   16 << 10, 32 << 10,
                                                 64 << 10, 256 << 10, 512 << 10, 1 << 20,  largest};
    const int64_t way = below(random, 100);
    if (way < 35) return below(random, 256);
    if (way < 65) return int64_t{1} << below(random, 21);
    if (way < 75) return below(random, int64_t{2} << below(random, 21));
    const auto first = below(random, std::ssize(boundaries));
    return boundaries[static_cast<size_t>(std::min(first, below(random, std::ssize(boundaries))))];
}

inline int64_t draw_count(Random& random, DataType dtype) {
    const auto size = static_cast<int64_t>(dtype_size(dtype));
    const int64_t count = draw_bytes(random) / size + below(random, 3) - 1;
    return std::clamp(count, int64_t{0}, largest / size);
}

inline std::vector<int64_t> draw_parts(Random& random, int64_t count) {
    std::vector<int64_t> parts(ranks);
    for (int cut = 0; cut < ranks - 1; ++cut) {
        const int64_t part = chance(random, 20) ? 0 : below(random, count + 1);
        parts[static_cast<size_t>(below(random, ranks))] += part;
        count -= part;
    }
    parts[static_cast<size_t>(below(random, ranks))] += count;
    return parts;
}

inline void draw_letters(Random& random, Call& call) {
    call.one_tag = chance(random, 30);
    const auto base = static_cast<int>(call.number % 100'000'000) * 8;
    const auto letters = static_cast<int>(1 + below(random, 8));
    for (int index = 0; index < letters; ++index) {
        Letter letter;
        letter.from = static_cast<int>(below(random, ranks));
        letter.to = static_cast<int>(below(random, ranks));
        letter.count = draw_count(random, call.dtype);
        letter.start = below(random, period);
        letter.tag = call.one_tag ? base : base + index;
        call.letters.push_back(letter);
        call.count += letter.count;
    }
}

inline void draw_counts(Random& random, Call& call) {
    call.explicit_counts = chance(random, 50);
    const bool slices = call.kind == OpKind::reduce_scatter || call.kind == OpKind::scatter;
    // Without a list: nearly equal slices of the whole, or as much from each.
    if (!slices && !call.explicit_counts) call.count -= call.count % ranks;
    const auto draw = [&] {
        if (call.explicit_counts) return draw_parts(random, call.count);
        std::vector<int64_t> counts;
        for (int rank = 0; rank < ranks; ++rank) {
            counts.push_back(slice_count(call.count, ranks, rank));
        }
        return counts;
    };
    if (call.kind != OpKind::all_to_all) {
        call.counts = draw();
        return;
    }
    for (int rank = 0; rank < ranks; ++rank) call.matrix.push_back(draw());
}

inline Call draw_call(Random& random, int64_t number) {
    using enum OpKind;
    constexpr std::array kinds{all_reduce, all_reduce, all_reduce, reduce_scatter, reduce_scatter,
                               all_gather, all_gather, broadcast,  broadcast,      reduce,
                               reduce,     gather,     scatter,    all_to_all,     all_to_all,
                               barrier,    send,       send,       send,           send};
    Call call;
    call.number = number;
    call.kind = chance(random, 2) ? empty : pick(random, kinds);
    call.dtype = pick(random, dtypes);
    call.start = below(random, period);
    if (call.kind == barrier) return call;
    if (call.kind == send) {
        draw_letters(random, call);
        return call;
    }
    call.count = draw_count(random, call.dtype);
    if (call.kind == empty) return call;
    if (call.kind == all_reduce || call.kind == reduce_scatter || call.kind == reduce) {
        call.op = pick(random, ops_of(call.dtype));
    }
    if (call.kind == broadcast || call.kind == reduce || call.kind == gather ||
        call.kind == scatter) {
        call.root = static_cast<int>(below(random, ranks));
    }
    if (call.kind != all_reduce && call.kind != broadcast && call.kind != reduce) {
        draw_counts(random, call);
    }
    return call;
}

inline int64_t total(const Segments& segments) {
    int64_t count = 0;
    for (const auto& segment : segments) count += segment.count;
    return count;
}

inline int64_t sum_before(const std::vector<int64_t>& counts, int rank) {
    return std::accumulate(counts.begin(), counts.begin() + rank, int64_t{0});
}

// What `rank` has before the call.
inline Segments input_of(const Call& call, int rank) {
    switch (call.kind) {
        case OpKind::barrier:
        case OpKind::broadcast:
            return {};
        case OpKind::scatter:
            if (rank != call.root) return {};
            break;
        case OpKind::all_gather:
        case OpKind::gather:
            return {{rank, call.start, call.counts[static_cast<size_t>(rank)]}};
        default:
            break;
    }
    return {{rank, call.start, call.count}};
}

// What `rank` has to have after it.
inline Segments output_of(const Call& call, int rank) {
    const auto own = static_cast<size_t>(rank);
    Segments segments;
    switch (call.kind) {
        case OpKind::reduce:
            if (rank != call.root) return {};
            [[fallthrough]];
        case OpKind::all_reduce:
            return {{of_op(call.op), call.start, call.count}};
        case OpKind::broadcast:
            return {{call.root, call.start, call.count}};
        case OpKind::reduce_scatter:
        case OpKind::scatter: {
            const int from = call.kind == OpKind::scatter ? call.root : of_op(call.op);
            return {{from, call.start + sum_before(call.counts, rank), call.counts[own]}};
        }
        case OpKind::gather:
            if (rank != call.root) return {};
            [[fallthrough]];
        case OpKind::all_gather:
            for (int from = 0; from < ranks; ++from) {
                segments.push_back({from, call.start, call.counts[static_cast<size_t>(from)]});
            }
            return segments;
        case OpKind::all_to_all:
            for (int from = 0; from < ranks; ++from) {
                const auto& row = call.matrix[static_cast<size_t>(from)];
                segments.push_back({from, call.start + sum_before(row, rank), row[own]});
            }
            return segments;
        default:
            return {};
    }
}

inline void set_counts(CollectiveRequest& request, const Call& call, int rank) {
    const auto own = static_cast<size_t>(rank);
    request.explicit_counts = call.explicit_counts;
    const bool knows = call.explicit_counts || call.kind != OpKind::scatter || rank == call.root;
    if (knows) request.counts = call.counts;
    if (call.kind == OpKind::all_to_all) {
        request.send_counts = call.matrix[own];
        for (const auto& row : call.matrix) request.recv_counts.push_back(row[own]);
    }
    const bool cuts = call.kind == OpKind::all_to_all || call.kind == OpKind::reduce_scatter ||
                      call.kind == OpKind::scatter;
    if (cuts && !call.explicit_counts) {
        request.rows = knows ? request.input.count : request.output.count;
        request.row_elements = 1;
    }
}

}  // namespace pycomm::testing::soak
