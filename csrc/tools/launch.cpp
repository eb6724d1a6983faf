// Forked ranks that meet in a directory, and threads.
#include "tools/launch.h"

#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <filesystem>
#include <system_error>
#include <thread>
#include <vector>

#include "base/error.h"
#include "store/bootstrap.h"
#include "store/file_store.h"
#include "store/random.h"

namespace pycomm::tools {
namespace {

constexpr auto grace = std::chrono::seconds(5);  // for the others to notice a rank that failed

class Directory {
  public:
    Directory() : path_(std::filesystem::temp_directory_path() / ("pycomm-perf-" + random_hex(8))) {
        std::filesystem::create_directory(path_);
        std::filesystem::permissions(path_, std::filesystem::perms::owner_all);
    }
    ~Directory() {
        std::error_code ignored;
        std::filesystem::remove_all(path_, ignored);
    }
    Directory(const Directory&) = delete;
    Directory& operator=(const Directory&) = delete;
    std::string path() const { return path_.string(); }

  private:
    std::filesystem::path path_;
};

[[noreturn]] void run_child(const RankBody& body, const std::string& directory, int rank,
                            int ranks) {
    int code = 1;
    try {
        StoreBootstrap bootstrap(std::make_shared<FileStore>(directory), rank, ranks, "perf");
        code = body(bootstrap);
    } catch (const std::exception& error) {
        std::fprintf(stderr, "pycomm-perf: rank %d: %s\n", rank, error.what());
    }
    std::fflush(nullptr);
    _exit(code);
}

int exit_code(int status) {
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

// The highest exit code. Once one has failed the others get `grace` to end by themselves.
int wait_for(std::vector<pid_t> children) {
    int worst = 0;
    std::chrono::steady_clock::time_point failed_at{};
    while (!children.empty()) {
        std::erase_if(children, [&](pid_t child) {
            int status = 0;
            if (waitpid(child, &status, WNOHANG) != child) return false;
            if (exit_code(status) != 0 && worst == 0) {
                failed_at = std::chrono::steady_clock::now();
            }
            worst = std::max(worst, exit_code(status));
            return true;
        });
        if (worst != 0 && std::chrono::steady_clock::now() - failed_at > grace) {
            for (const pid_t child : children) kill(child, SIGKILL);
        }
        std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    return worst;
}

}  // namespace

int launch_processes(int ranks, const RankBody& body) {
    const Directory directory;
    const pid_t parent = getpid();
    std::vector<pid_t> children;
    std::fflush(nullptr);
    for (int rank = 0; rank < ranks; ++rank) {
        const pid_t child = fork();
        if (child == 0) {
            prctl(PR_SET_PDEATHSIG, SIGKILL);
            if (getppid() != parent) _exit(1);
            run_child(body, directory.path(), rank, ranks);
        }
        if (child < 0) {
            const std::string reason = errno_text(errno);
            for (const pid_t other : children) kill(other, SIGKILL);
            wait_for(children);
            PYCOMM_FAIL(transport, "cannot start rank ", rank, ": ", reason);
        }
        children.push_back(child);
    }
    return wait_for(std::move(children));
}

int launch_threads(int ranks, const RankBody& body) {
    const auto bootstraps = InprocGroup::create(ranks);
    std::vector<int> codes(bootstraps.size(), 1);
    std::vector<std::thread> threads;
    for (size_t rank = 0; rank < codes.size(); ++rank) {
        threads.emplace_back([&, rank] {
            try {
                codes[rank] = body(*bootstraps[rank]);
            } catch (const std::exception& error) {
                std::fprintf(stderr, "pycomm-perf: rank %zu: %s\n", rank, error.what());
            }
        });
    }
    for (auto& thread : threads) thread.join();
    return *std::max_element(codes.begin(), codes.end());
}

}  // namespace pycomm::tools
