// Results as text.
#include "tools/report.h"

#include <cstdarg>
#include <cstdio>

#include "base/error.h"

namespace pycomm::tools {
namespace {

__attribute__((format(printf, 1, 2))) std::string format(const char* pattern, ...) {
    char text[256];
    va_list values;
    va_start(values, pattern);
    std::vsnprintf(text, sizeof text, pattern, values);
    va_end(values);
    return text;
}

// Microseconds with about four digits.
std::string time_text(double seconds) {
    const double us = seconds * 1e6;
    return format("%10.*f", us < 100 ? 3 : us < 10000 ? 1 : 0, us);
}

double algbw(const Case& c, double seconds) {
    return seconds > 0 ? static_cast<double>(c.bytes()) / seconds / 1e9 : 0;
}

double busbw(const Case& c, double seconds) {
    return algbw(c, seconds) * bus_factor(c.kind, c.ranks);
}

double ratio(double peer, double own) {
    return own > 0 ? peer / own : 0;
}

// How near pycomm comes.
double percent_of_limit(const Row& row) {
    return 100 * ratio(row.limit.median(), row.timings[0].median());
}

std::string quoted(const std::string& text) {
    std::string result = "\"";
    for (const char letter : text) {
        if (letter == '"' || letter == '\\') result += '\\';
        result += static_cast<unsigned char>(letter) < 0x20 ? ' ' : letter;
    }
    return result + '"';
}

std::string timing_json(const Case& c, const std::string& system, const Timing& timing) {
    std::string text = concat("{\"system\": ", quoted(system));
    if (!timing.obstacle.empty()) {
        return concat(text, ", \"not_measured\": ", quoted(timing.obstacle), "}");
    }
    text += format(", \"min_us\": %.6g, \"median_us\": %.6g", timing.min() * 1e6,
                   timing.median() * 1e6);
    text += format(", \"algbw\": %.6g, \"busbw\": %.6g", algbw(c, timing.median()),
                   busbw(c, timing.median()));
    return text + concat(", \"iterations\": ", timing.iterations,
                         ", \"blocks\": ", timing.blocks.size(), ", \"wrong\": ", timing.wrong,
                         "}");
}

std::string row_json(const Report& report, const Row& row) {
    const Case& c = row.c;
    std::string text =
        concat("{\"operation\": ", quoted(operation_name(c.kind)), ", \"size\": ", c.bytes(),
               ", \"count\": ", c.elements, ", \"systems\": [");
    for (size_t i = 0; i < row.timings.size(); ++i) {
        text += (i ? ", " : "") + timing_json(c, report.systems[i], row.timings[i]);
    }
    text += "]";
    if (row.timings.size() > 1 && row.timings[1].obstacle.empty()) {
        text += format(", \"ratio_min\": %.6g, \"ratio_median\": %.6g",
                       ratio(row.timings[1].min(), row.timings[0].min()),
                       ratio(row.timings[1].median(), row.timings[0].median()));
    }
    if (row.limit.obstacle.empty()) {
        text += concat(", \"limit\": {\"stores\": ", quoted(row.limit_name));
        text += format(", \"min_us\": %.6g, \"median_us\": %.6g}", row.limit.min() * 1e6,
                       row.limit.median() * 1e6);
        text += format(", \"percent_of_limit\": %.4g", percent_of_limit(row));
    }
    return text + "}";
}

}  // namespace

int64_t Report::wrong() const {
    int64_t sum = 0;
    for (const Row& row : rows) {
        for (const Timing& timing : row.timings) sum += timing.wrong;
    }
    return sum;
}

std::string table_header(const Report& report, const Case& c, const Options& options) {
    std::string text =
        concat("# ", operation_name(c.kind), ", ", dtype_name(c.dtype),
               reduces(c.kind) ? " sum" : "", ": ", c.ranks, " ranks over ", report.transport,
               " on ", report.cores, " cores, ", options.symmetric ? "symmetric" : "private",
               " arrays", options.separate && rooted(c.kind) ? ", calls one by one" : "", "\n");
    std::string names = format("#%30s", "");
    std::string columns = format("#%13s%12s%5s", "size (B)", "count", "");
    for (const auto& system : report.systems) {
        names += format(" %35.35s", system.c_str());
        columns += format("%10s%10s%9s%7s", "min (us)", "median", "busbw", "wrong");
    }
    if (report.systems.size() > 1) columns += format("%9s%9s", "r.min", "r.median");
    if (options.limit) columns += format("%11s%9s", "limit (us)", "% limit");
    return text + names + "\n" + columns + "\n";
}

std::string table_line(const Row& row) {
    std::string text = format("%14lld%12lld%5s", static_cast<long long>(row.c.bytes()),
                              static_cast<long long>(row.c.elements), "");
    for (const Timing& timing : row.timings) {
        if (!timing.obstacle.empty()) {
            text += format("%36s", "not measured");
            continue;
        }
        text += time_text(timing.min()) + time_text(timing.median());
        text += format("%9.3f%7lld", busbw(row.c, timing.median()),
                       static_cast<long long>(timing.wrong));
    }
    if (row.timings.size() > 1 && row.timings[1].obstacle.empty()) {
        text += format("%8.2fx%8.2fx", ratio(row.timings[1].min(), row.timings[0].min()),
                       ratio(row.timings[1].median(), row.timings[0].median()));
    }
    // Where one system cannot do an operation, the columns of the ratio are missing.
    if (row.timings.size() > 1 && !row.timings[1].obstacle.empty()) text += format("%18s", "");
    if (row.limit.obstacle.empty()) {
        text +=
            concat(" ", time_text(row.limit.median()), format("%8.1f%%", percent_of_limit(row)));
    }
    return text + "\n";
}

std::string table_remarks(const Report& report, const Row& row) {
    std::string text;
    for (size_t i = 0; i < row.timings.size(); ++i) {
        if (row.timings[i].obstacle.empty()) continue;
        text += concat("# ", report.systems[i], " not measured: ", row.timings[i].obstacle, "\n");
    }
    return text;
}

std::string to_json(const Report& report, const Options& options) {
    const Row& first = report.rows.at(0);
    std::string text = concat("{\"ranks\": ", first.c.ranks, ", \"cores\": ", report.cores,
                              ", \"transport\": ", quoted(report.transport),
                              ", \"memory\": ", quoted(options.symmetric ? "symmetric" : "private"),
                              ", \"dtype\": ", quoted(dtype_name(first.c.dtype)),
                              ", \"checked\": ", options.check ? "true" : "false",
                              ", \"separate\": ", options.separate ? "true" : "false",
                              ", \"wrong\": ", report.wrong(), ",\n \"rows\": [\n");
    for (size_t i = 0; i < report.rows.size(); ++i) {
        text += concat(i ? ",\n" : "", "  ", row_json(report, report.rows[i]));
    }
    return text + "\n ]}\n";
}

}  // namespace pycomm::tools
