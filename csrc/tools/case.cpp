// What each operation takes, gives and costs.
#include "tools/case.h"

#include <algorithm>

#include "base/error.h"

namespace pycomm::tools {

const std::vector<std::string>& operation_names() {
    static const std::vector<std::string> names{
        "all_reduce", "reduce_scatter", "all_gather", "broadcast", "reduce",
        "gather",     "scatter",        "all_to_all", "barrier",   "sendrecv"};
    return names;
}

OpKind parse_operation(const std::string& name) {
    if (name == "sendrecv") return OpKind::send;
    const auto& names = operation_names();
    if (std::find(names.begin(), names.end(), name) != names.end()) {
#define PYCOMM_ENTRY(kind) \
    if (name == #kind) return OpKind::kind;
        PYCOMM_KIND_LIST(PYCOMM_ENTRY)
#undef PYCOMM_ENTRY
    }
    std::string known;
    for (const auto& entry : names) known += entry + ", ";
    PYCOMM_FAIL(argument, "unknown operation '", name, "'; there are ", known, "all");
}

const char* operation_name(OpKind kind) {
    return kind == OpKind::send ? "sendrecv" : kind_name(kind);
}

bool splits(OpKind kind) {
    return kind == OpKind::reduce_scatter || kind == OpKind::all_gather || kind == OpKind::gather ||
           kind == OpKind::scatter || kind == OpKind::all_to_all;
}

bool reduces(OpKind kind) {
    return kind == OpKind::all_reduce || kind == OpKind::reduce || kind == OpKind::reduce_scatter;
}

bool rooted(OpKind kind) {
    return kind == OpKind::broadcast || kind == OpKind::reduce || kind == OpKind::gather ||
           kind == OpKind::scatter;
}

double bus_factor(OpKind kind, int ranks) {
    const double others = static_cast<double>(ranks - 1) / ranks;
    if (kind == OpKind::all_reduce) return 2 * others;
    return splits(kind) ? others : 1.0;
}

int messages(OpKind kind) {
    return kind == OpKind::send ? 2 : 1;
}

Case make_case(OpKind kind, DataType dtype, int64_t bytes, int rank, int ranks) {
    Case c{.kind = kind, .rank = rank, .ranks = ranks, .dtype = dtype};
    if (kind == OpKind::barrier) return c;
    const int64_t unit =
        static_cast<int64_t>(dtype_size(dtype)) * (splits(kind) ? int64_t{ranks} : 1);
    c.elements = (bytes + unit - 1) / unit * (splits(kind) ? ranks : 1);
    return c;
}

int64_t input_elements(const Case& c) {
    switch (c.kind) {
        case OpKind::all_gather:
        case OpKind::gather:
            return c.slice();
        case OpKind::scatter:
            return c.is_root() ? c.elements : 0;
        case OpKind::broadcast:
            return 0;  // its one buffer is the output
        default:
            return c.takes_part() ? c.elements : 0;
    }
}

int64_t output_elements(const Case& c) {
    switch (c.kind) {
        case OpKind::reduce_scatter:
        case OpKind::scatter:
            return c.slice();
        case OpKind::reduce:
        case OpKind::gather:
            return c.is_root() ? c.elements : 0;
        default:
            return c.takes_part() ? c.elements : 0;
    }
}

std::vector<Block> expected(const Case& c) {
    const int64_t own = c.rank * c.slice();
    std::vector<Block> slices;
    for (int rank = 0; rank < c.ranks; ++rank) {
        slices.push_back({rank, c.kind == OpKind::all_to_all ? own : 0, c.slice()});
    }
    switch (c.kind) {
        case OpKind::all_reduce:
            return {{Block::sum, 0, c.elements}};
        case OpKind::reduce:
            return {{Block::sum, 0, output_elements(c)}};
        case OpKind::reduce_scatter:
            return {{Block::sum, own, c.slice()}};
        case OpKind::broadcast:
            return {{c.root, 0, c.elements}};
        case OpKind::scatter:
            return {{c.root, own, c.slice()}};
        case OpKind::send:
            return {{1 - c.rank, 0, output_elements(c)}};
        case OpKind::gather:
            return c.is_root() ? slices : std::vector<Block>{};
        case OpKind::all_gather:
        case OpKind::all_to_all:
            return slices;
        default:
            return {};
    }
}

}  // namespace pycomm::tools
