// Exchange of who runs where.
#include "comm/topology.h"

#include <sched.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>

#include "base/error.h"

namespace pycomm {
namespace {

constexpr int protocol_version = 1;

// Processes with equal texts can share memory: same boot, process namespace, network namespace (in
// which the socket lives that passes the memory) and user.
std::string node_identity() {
    std::string boot = "unknown-boot";
    std::ifstream("/proc/sys/kernel/random/boot_id") >> boot;
    struct stat pid_namespace{};
    struct stat net_namespace{};
    stat("/proc/self/ns/pid", &pid_namespace);
    stat("/proc/self/ns/net", &net_namespace);
    return concat(boot, '/', pid_namespace.st_ino, '/', net_namespace.st_ino, '/', geteuid());
}

int usable_cores() {
    cpu_set_t set;
    CPU_ZERO(&set);
    if (sched_getaffinity(0, sizeof(set), &set) != 0) return 1;
    return std::max(1, CPU_COUNT(&set));
}

std::string settings_text(const Env& env) {
    return concat("protocol ", protocol_version, ", PYCOMM_TRANSPORT=", env.transport,
                  ", PYCOMM_ALGO=", env.algorithm, ", PYCOMM_CHECK=", env.check ? 1 : 0,
                  ", PYCOMM_BUFFER_BYTES=", env.buffer_bytes);
}

}  // namespace

Topology discover_topology(Bootstrap& bootstrap, const Env& env, const Deadline& deadline) {
    const int rank = bootstrap.rank();
    const auto identities = bootstrap.all_gather(node_identity(), deadline);
    const auto processes = bootstrap.all_gather(std::to_string(getpid()), deadline);
    const auto settings = bootstrap.all_gather(settings_text(env), deadline);
    const auto cores = bootstrap.all_gather(std::to_string(usable_cores()), deadline);

    Topology topology;
    std::vector<std::string> nodes;
    topology.local_size = 0;
    topology.one_process = true;
    topology.cores = 0;
    for (int other = 0; other < bootstrap.size(); ++other) {
        const auto i = static_cast<size_t>(other);
        PYCOMM_CHECK(settings[i] == settings[0], argument, "rank 0 runs with ", settings[0],
                     " but rank ", other, " with ", settings[i], "; they must be alike");
        if (std::find(nodes.begin(), nodes.end(), identities[i]) == nodes.end()) {
            nodes.push_back(identities[i]);
        }
        const auto own = static_cast<size_t>(rank);
        topology.one_process &= identities[i] == identities[own] && processes[i] == processes[own];
        if (identities[i] != identities[own]) continue;
        if (other < rank) ++topology.local_rank;
        ++topology.local_size;
        topology.cores = std::max(topology.cores, std::stoi(cores[i]));
    }
    const auto own_node =
        std::find(nodes.begin(), nodes.end(), identities[static_cast<size_t>(rank)]);
    topology.node = static_cast<int>(own_node - nodes.begin());
    topology.num_nodes = static_cast<int>(nodes.size());
    return topology;
}

}  // namespace pycomm
