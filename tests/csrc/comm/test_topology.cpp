// What ranks find out about their node: here, on which cores they may run.
#include <sched.h>

#include "comm/rank_threads.h"
#include "comm/topology.h"

using namespace pycomm;
using namespace pycomm::testing;

namespace {

std::vector<int> own_processors() {
    cpu_set_t set;
    CPU_ZERO(&set);
    std::vector<int> found;
    if (sched_getaffinity(0, sizeof set, &set) != 0) return found;
    for (int i = 0; i < CPU_SETSIZE; ++i) {
        if (CPU_ISSET(i, &set)) found.push_back(i);
    }
    return found;
}

// The cores that ranks count when each of them is a thread pinned to the processors of its entry.
std::vector<int> cores_seen(const std::vector<std::vector<int>>& pinned_to) {
    const auto bootstraps = InprocGroup::create(static_cast<int>(pinned_to.size()));
    std::vector<int> cores(pinned_to.size(), -1);
    std::vector<std::thread> threads;
    for (size_t rank = 0; rank < cores.size(); ++rank) {
        threads.emplace_back([&, rank] {
            cpu_set_t set;
            CPU_ZERO(&set);
            for (const int processor : pinned_to[rank]) CPU_SET(processor, &set);
            if (sched_setaffinity(0, sizeof set, &set) != 0) return;
            const auto limit = Deadline::after(30);
            cores[rank] = discover_topology(*bootstraps[rank], quick_env(), limit).cores;
        });
    }
    for (auto& thread : threads) thread.join();
    return cores;
}

}  // namespace

TEST_CASE("cores are those of all ranks of the node together") {
    const auto processors = own_processors();
    REQUIRE(!processors.empty());
    const int first = processors.front();
    const int last = processors.back();
    const auto all = static_cast<int>(processors.size());
    const int both = first == last ? 1 : 2;

    CHECK(cores_seen({processors, processors, processors}) == std::vector<int>(3, all));
    // As launchers pin ranks: each has one core, and together they have several.
    CHECK(cores_seen({{first}, {last}}) == std::vector<int>(2, both));
    CHECK(cores_seen({{last}, {first}, {last}}) == std::vector<int>(3, both));
    CHECK(cores_seen({{first}, {first}}) == std::vector<int>(2, 1));
    CHECK(cores_seen({{first}, processors}) == std::vector<int>(2, all));
}
