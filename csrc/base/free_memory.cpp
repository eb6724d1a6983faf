// How much memory may still be reserved, from the machine, the control groups and the limits.
#include "base/free_memory.h"

#include <sys/resource.h>

#include <algorithm>
#include <fstream>
#include <limits>
#include <string>

namespace pycomm {
namespace {

constexpr uint64_t unlimited = std::numeric_limits<uint64_t>::max();

uint64_t read_number(const std::string& path, uint64_t missing) {
    std::ifstream file(path);
    uint64_t value = 0;
    return file >> value ? value : missing;
}

uint64_t machine_available() {
    std::ifstream file("/proc/meminfo");
    std::string key;
    uint64_t kibibytes = 0;
    std::string rest;
    while (file >> key >> kibibytes && std::getline(file, rest)) {
        if (key == "MemAvailable:") return kibibytes * 1024;
    }
    return unlimited;
}

// What a control group and its ancestors leave. `limit` and `usage` are the file names.
uint64_t group_available(const std::string& mount, std::string group, const char* limit,
                         const char* usage) {
    uint64_t least = unlimited;
    while (true) {
        const std::string folder = mount + group + "/";
        const uint64_t maximum = read_number(folder + limit, unlimited);  // "max" is no number
        if (maximum != unlimited) {
            const uint64_t used = read_number(folder + usage, 0);
            least = std::min(least, maximum > used ? maximum - used : 0);
        }
        if (group.empty()) return least;
        group.resize(group.find_last_of('/'));
    }
}

// Lines of /proc/self/cgroup: "0::/path" (version 2) or "4:memory:/path" (version 1).
uint64_t groups_available() {
    std::ifstream file("/proc/self/cgroup");
    std::string line;
    uint64_t least = unlimited;
    while (std::getline(file, line)) {
        const size_t first = line.find(':');
        const size_t second = line.find(':', first + 1);
        if (first == std::string::npos || second == std::string::npos) continue;
        const std::string controllers = line.substr(first + 1, second - first - 1);
        std::string group = line.substr(second + 1);
        if (group == "/" || group.find('/') != 0) group.clear();
        if (controllers.empty()) {
            least = std::min(
                least, group_available("/sys/fs/cgroup", group, "memory.max", "memory.current"));
        } else if (controllers.find("memory") != std::string::npos) {
            least =
                std::min(least, group_available("/sys/fs/cgroup/memory", group,
                                                "memory.limit_in_bytes", "memory.usage_in_bytes"));
        }
    }
    return least;
}

}  // namespace

FreeMemory free_memory() {
    FreeMemory free{machine_available(), "MemAvailable"};
    const uint64_t groups = groups_available();
    if (groups < free.bytes) free = {groups, "control group"};
    rlimit file_size{};
    if (getrlimit(RLIMIT_FSIZE, &file_size) == 0 && file_size.rlim_cur < free.bytes) {
        free = {file_size.rlim_cur, "RLIMIT_FSIZE"};
    }
    return free;
}

std::string mebibytes(uint64_t bytes) {
    return std::to_string((bytes + (1 << 20) - 1) >> 20) + " MiB";
}

std::string wanted_and_free(uint64_t wanted, const FreeMemory& free) {
    return wanted_and_free(wanted, SharedOut{free, 1});
}

std::string wanted_and_free(uint64_t wanted, const SharedOut& shared) {
    std::string text = "wanted " + mebibytes(wanted) + " of shared memory";
    if (shared.ranks > 1) text += " on each of " + std::to_string(shared.ranks) + " ranks";
    return text + ", free are " + mebibytes(shared.free.bytes) + " (" + shared.free.source + ")";
}

}  // namespace pycomm
