// process_vm_readv and process_vm_writev, and whether they are allowed.
#include "transport/shm/process_memory.h"

#include <sys/prctl.h>
#include <sys/uio.h>

#include <cerrno>
#include <cstdlib>
#include <fstream>

namespace pycomm {
namespace {

static_assert(sizeof(HandoverLine::Target) == sizeof(iovec));

// Yama lets only ancestors in unless a process says otherwise.
void admit_peers() {
    int scope = 0;
    std::ifstream("/proc/sys/kernel/yama/ptrace_scope") >> scope;
    if (scope == 1) prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY);
}

// Both ways, on the line of this pair, which this rank sees in its own mapping and `process` has at
// `address`. Empty, or why not.
std::string try_peer(HandoverLine& line, pid_t process, uint64_t address, int rank) {
    const uint64_t mark = 1000 + static_cast<uint64_t>(rank);
    HandoverLine::Target& own = line.target[0];
    own = {mark, 0};
    HandoverLine::Target seen{};
    const auto place = [&](const void* field) {
        return address + static_cast<uint64_t>(static_cast<const std::byte*>(field) -
                                               reinterpret_cast<std::byte*>(&line));
    };
    if (!read_process(process, place(&own), &seen, sizeof(seen))) {
        return concat("process_vm_readv: ", errno_text(errno));
    }
    seen.bytes = mark;
    const HandoverLine::Target target{place(&line.target[1]), sizeof(seen)};
    if (!write_process(process, target, &seen, sizeof(seen))) {
        return concat("process_vm_writev: ", errno_text(errno));
    }
    const volatile HandoverLine::Target& written = line.target[1];
    const bool same = written.base == mark && written.bytes == mark;
    line.target[0] = line.target[1] = {};
    return same ? "" : "process_vm_readv reads other memory";
}

}  // namespace

bool read_process(pid_t process, uint64_t address, void* to, size_t bytes) {
    const iovec local{to, bytes};
    const iovec remote{reinterpret_cast<void*>(static_cast<uintptr_t>(address)), bytes};
    return process_vm_readv(process, &local, 1, &remote, 1, 0) == static_cast<ssize_t>(bytes);
}

bool write_process(pid_t process, const HandoverLine::Target& target, const void* from,
                   size_t bytes) {
    const iovec local{const_cast<void*>(from), bytes};
    const auto* remote = reinterpret_cast<const iovec*>(&target);
    return process_vm_writev(process, &local, 1, remote, 1, 0) == static_cast<ssize_t>(bytes);
}

OneCopy try_one_copy(Bootstrap& bootstrap, Transport& transport, const std::string& wanted,
                     const std::vector<pid_t>& processes, const Deadline& deadline) {
    OneCopy result;
    result.always = wanted == "always";
    if (wanted == "off" || bootstrap.size() == 1) return result;
    admit_peers();
    const int rank = bootstrap.rank();
    // Where this rank has mapped the first line.
    const auto first = reinterpret_cast<uintptr_t>(transport.handover(0, 0));
    const auto addresses = bootstrap.all_gather(std::to_string(first), deadline);
    std::string refusal;
    for (int peer = 0; peer < bootstrap.size() && refusal.empty(); ++peer) {
        if (peer == rank) continue;
        HandoverLine& line = *transport.handover(rank, peer);
        const auto offset = reinterpret_cast<uintptr_t>(&line) - first;
        const auto i = static_cast<size_t>(peer);
        const uint64_t theirs = std::strtoull(addresses[i].c_str(), nullptr, 10);
        refusal = try_peer(line, processes[i], theirs + offset, rank);
    }
    const auto refusals = bootstrap.all_gather(refusal, deadline);
    for (size_t other = 0; other < refusals.size() && result.refusal.empty(); ++other) {
        if (!refusals[other].empty())
            result.refusal = concat("rank ", other, ": ", refusals[other]);
    }
    result.addresses = result.refusal.empty();
    return result;
}

}  // namespace pycomm
