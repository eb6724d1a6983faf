// The table and the JSON of pycomm-perf.
#pragma once

#include <string>
#include <vector>

#include "tools/measure.h"

namespace pycomm::tools {

struct Report {
    std::vector<std::string> systems;  // pycomm first; in the order of Row::timings
    std::string transport;
    int cores = 1;
    std::vector<Row> rows;

    int64_t wrong() const;
};

// Lines above the rows of one operation.
std::string table_header(const Report& report, const Case& c, const Options& options);
std::string table_line(const Row& row);
// Why systems were not measured, one line each; empty when all were.
std::string table_remarks(const Report& report, const Row& row);
std::string to_json(const Report& report, const Options& options);

}  // namespace pycomm::tools
