// What the transport contract runs on: ranks as threads or as forked processes, with outer time
// limits, and checks that work on any of them.
#pragma once

#include <doctest/doctest.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <iostream>
#include <stdexcept>
#include <thread>

#include "store/bootstrap.h"
#include "store/file_store.h"
#include "store/socket.h"
#include "transport/transport.h"

namespace pycomm::contract {

// What a transport's test file says about it.
struct Kind {
    // Called on every rank at the same time.
    std::function<std::unique_ptr<Transport>(Bootstrap&)> make;
    bool processes = true;            // false: ranks can only be threads
    size_t max_in_flight = 16 << 20;  // the most bytes a channel may take that nobody has received
};

using Body = std::function<void(Transport&)>;
// By rank; empty when all went well.
using Errors = std::vector<std::string>;

// One line for each rank that failed.
inline std::string report(const Errors& errors) {
    std::string text;
    for (size_t rank = 0; rank < errors.size(); ++rank) {
        if (!errors[rank].empty()) text += concat("rank ", rank, ": ", errors[rank], '\n');
    }
    return text;
}

// The outer time limits: of one operation in a test, and of a whole rank.
inline constexpr double patience = 30;
inline constexpr unsigned rank_seconds = 90;

// A check that may run on any thread or process.
template <typename... Parts>
void expect(bool condition, const Parts&... parts) {
    if (!condition) throw std::runtime_error(concat(parts...));
}

inline std::string run_rank(const Kind& kind, Bootstrap& bootstrap, const Body& body) {
    try {
        const std::unique_ptr<Transport> transport = kind.make(bootstrap);
        body(*transport);
    } catch (const std::exception& error) {
        return error.what();
    }
    return "";
}

inline Errors run_threads(const Kind& kind, int size, const Body& body) {
    const auto group = InprocGroup::create(size);
    Errors errors(static_cast<size_t>(size));
    std::vector<std::thread> threads;
    for (size_t i = 0; i < errors.size(); ++i) {
        threads.emplace_back([&, i] { errors[i] = run_rank(kind, *group[i], body); });
    }
    for (std::thread& thread : threads) thread.join();
    return errors;
}

// One forked process: its number and the pipe on which it tells its error.
struct Child {
    pid_t pid = -1;
    UniqueFd pipe;
};

inline Child start_child(const std::function<std::string()>& work) {
    int ends[2];
    if (::pipe(ends) != 0) std::abort();
    std::cout.flush();  // or the child would hold a second copy of what is buffered
    Child child;
    child.pid = ::fork();
    if (child.pid == 0) {
        ::prctl(PR_SET_PDEATHSIG, SIGKILL);
        ::alarm(rank_seconds);
        const std::string error = work();
        const ssize_t written = ::write(ends[1], error.data(), error.size());
        ::_exit(written == static_cast<ssize_t>(error.size()) ? 0 : 1);
    }
    ::close(ends[1]);
    child.pipe = UniqueFd(ends[0]);
    return child;
}

// The child's own words, or how it ended.
inline std::string finish_child(Child& child) {
    std::string text;
    char bytes[1024];
    while (true) {
        const ssize_t count = ::read(child.pipe.get(), bytes, sizeof(bytes));
        if (count <= 0) break;
        text.append(bytes, static_cast<size_t>(count));
    }
    int status = 0;
    ::waitpid(child.pid, &status, 0);
    if (WIFSIGNALED(status)) return concat("signal ", WTERMSIG(status));
    if (text.empty() && WEXITSTATUS(status) != 0) return concat("exit ", WEXITSTATUS(status));
    return text;
}

inline Errors run_processes(const Kind& kind, int size, const Body& body) {
    char folder[] = "/tmp/pycomm-contract-XXXXXX";
    if (::mkdtemp(folder) == nullptr) std::abort();
    std::vector<Child> children;
    for (int rank = 0; rank < size; ++rank) {
        children.push_back(start_child([&] {
            StoreBootstrap bootstrap(std::make_shared<FileStore>(folder), rank, size, "contract");
            return run_rank(kind, bootstrap, body);
        }));
    }
    Errors errors;
    for (Child& child : children) errors.push_back(finish_child(child));
    std::filesystem::remove_all(folder);
    return errors;
}

inline void check_threads(const Kind& kind, int size, const Body& body) {
    CHECK(report(run_threads(kind, size, body)) == "");
}

// Runs `body` with threads and, where the transport can, with processes.
inline void run_everywhere(const Kind& kind, int size, const Body& body) {
    check_threads(kind, size, body);
    if (kind.processes) CHECK(report(run_processes(kind, size, body)) == "");
}

}  // namespace pycomm::contract
