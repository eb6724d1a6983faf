// Exchange of who runs where.
#include "comm/topology.h"

#include <sched.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <fstream>
#include <memory>

#include "base/error.h"

namespace pycomm {
namespace {

constexpr int protocol_version = 3;

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

// The processors that this thread may run on, as text: character i is 1 for processor i. Their
// number would not do: many a launcher pins each rank to a core of its own.
std::string usable_processors() {
    for (size_t processors = CPU_SETSIZE; processors <= size_t{1} << 20; processors *= 2) {
        const size_t bytes = CPU_ALLOC_SIZE(processors);
        const std::unique_ptr<cpu_set_t, void (*)(cpu_set_t*)> set(
            CPU_ALLOC(processors), [](cpu_set_t* mask) { CPU_FREE(mask); });
        if (!set) break;
        CPU_ZERO_S(bytes, set.get());
        if (sched_getaffinity(0, bytes, set.get()) != 0) {
            if (errno == EINVAL) continue;  // the kernel knows more processors than that
            break;
        }
        std::string text;
        for (size_t i = 0; i < processors; ++i) {
            text += CPU_ISSET_S(i, bytes, set.get()) ? '1' : '0';
        }
        return text.substr(0, text.find_last_of('1') + 1);
    }
    return "1";
}

void unite(std::string& all, const std::string& more) {
    all.resize(std::max(all.size(), more.size()), '0');
    for (size_t i = 0; i < more.size(); ++i) {
        if (more[i] == '1') all[i] = '1';
    }
}

std::string settings_text(const Env& env) {
    return concat("protocol ", protocol_version, ", PYCOMM_TRANSPORT=", env.transport,
                  ", PYCOMM_ALGO=", env.algorithm, ", PYCOMM_CHECK=", env.check ? 1 : 0,
                  ", PYCOMM_BUFFER_BYTES=", env.buffer_bytes, ", PYCOMM_CMA=", env.cma);
}

}  // namespace

Topology discover_topology(Bootstrap& bootstrap, const Env& env, const Deadline& deadline) {
    const int rank = bootstrap.rank();
    const auto identities = bootstrap.all_gather(node_identity(), deadline);
    const auto processes = bootstrap.all_gather(std::to_string(getpid()), deadline);
    const auto settings = bootstrap.all_gather(settings_text(env), deadline);
    const auto processors = bootstrap.all_gather(usable_processors(), deadline);

    Topology topology;
    std::vector<std::string> nodes;
    topology.local_size = 0;
    topology.one_process = true;
    std::string node_processors;
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
        unite(node_processors, processors[i]);
    }
    topology.cores =
        static_cast<int>(std::count(node_processors.begin(), node_processors.end(), '1'));
    const auto own_node =
        std::find(nodes.begin(), nodes.end(), identities[static_cast<size_t>(rank)]);
    topology.node = static_cast<int>(own_node - nodes.begin());
    topology.num_nodes = static_cast<int>(nodes.size());
    return topology;
}

}  // namespace pycomm
