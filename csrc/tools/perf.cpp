// pycomm-perf: times of pycomm's operations without Python, and of MPI's beside them.
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <new>

#include "base/error.h"
#include "tools/launch.h"
#include "tools/report.h"

namespace pycomm::tools {
namespace {

enum ExitCode { ok = 0, failed = 1, wrong_arguments = 2, timed_out = 3 };

// MPI's waits have no deadline, so the program has one.
extern "C" void on_alarm(int /*signal*/) {
    constexpr char text[] = "pycomm-perf: one size took longer than --timeout; giving up\n";
    [[maybe_unused]] const ssize_t written = write(STDERR_FILENO, text, sizeof text - 1);
    _exit(timed_out);
}

void restart_alarm(const Options& options) {
    alarm(static_cast<unsigned>(std::ceil(std::min(options.timeout, 1e6))));
}

// Input and output of one system, large enough for every case.
struct Memory {
    std::shared_ptr<std::byte> input;
    std::shared_ptr<std::byte> output;
    int64_t bytes = 0;

    Buffers buffers() const {
        return {{input.get(), bytes, DataType::uint8}, {output.get(), bytes, DataType::uint8}};
    }
};

constexpr size_t huge_pages_from = 4 << 20;

Memory ordinary_memory(int64_t bytes) {
    const auto make = [bytes] {
        constexpr size_t page = 4096;
        const size_t whole = (static_cast<size_t>(bytes) + page - 1) / page * page;
        auto* data = static_cast<std::byte*>(std::aligned_alloc(page, whole));
        if (data == nullptr) throw std::bad_alloc();
        // As NumPy does for its large arrays.
        if (whole >= huge_pages_from) madvise(data, whole, MADV_HUGEPAGE);
        return std::shared_ptr<std::byte>(data, [](std::byte* pointer) { std::free(pointer); });
    };
    return {make(), make(), bytes};
}

Memory symmetric_memory(Communicator& comm, int64_t bytes) {
    return {comm.symmetric(bytes, nullptr), comm.symmetric(bytes, nullptr), bytes};
}

void write_json(const Report& report, const Options& options) {
    const std::string text = to_json(report, options);
    if (options.json == "-") {
        std::fputs(text.c_str(), stdout);
        return;
    }
    std::ofstream file(options.json);
    file << text << std::flush;
    PYCOMM_CHECK(file.good(), argument, "cannot write ", options.json);
}

// All operations and sizes on one rank; rank 0 prints.
class Run {
  public:
    Run(Communicator& comm, System* peer, const Options& options)
        : comm_(comm),
          options_(options),
          own_(make_pycomm_system(comm)),
          stopwatch_(comm, options) {
        // A whole slice more than the size for the case with the coarsest rounding.
        const int64_t bytes =
            options.sizes().back() + static_cast<int64_t>(comm.size() * dtype_size(options.dtype));
        if (options.symmetric) own_memory_ = symmetric_memory(comm, bytes);
        if (!options.symmetric || peer) shared_memory_ = ordinary_memory(bytes);
        const Memory& mine = options.symmetric ? own_memory_ : shared_memory_;
        contestants_.push_back({*own_, mine.buffers()});
        if (peer) contestants_.push_back({*peer, shared_memory_.buffers()});
        for (const auto& contestant : contestants_) {
            report_.systems.push_back(contestant.system.name());
        }
        report_.transport = comm.transport_name();
        report_.cores = comm.topology().cores;
        if (!options.limit) return;
        limit_ = std::make_unique<MemoryLimit>(comm, bytes, nullptr);
        for (const Stores stores : {Stores::ordinary, Stores::streaming}) {
            limit_systems_.push_back(make_limit_system(*limit_, stores));
            limits_.push_back(limit_systems_.back().get());
        }
    }

    int operator()() {
        for (const OpKind kind : options_.operations) {
            if (kind == OpKind::send && comm_.size() < 2) {
                print("# sendrecv: not measured, it needs two ranks\n");
                continue;
            }
            operation(kind);
        }
        if (comm_.rank() == 0 && !options_.json.empty() && !report_.rows.empty()) {
            write_json(report_, options_);
        }
        if (report_.wrong() == 0) return ok;
        print(concat("# FAILED: ", report_.wrong(), " elements were wrong\n"));
        return failed;
    }

  private:
    void print(const std::string& text) const {
        // With JSON on stdout the table goes where it does not mix.
        std::FILE* stream = options_.json == "-" ? stderr : stdout;
        if (comm_.rank() != 0) return;
        std::fputs(text.c_str(), stream);
        std::fflush(stream);
    }

    void operation(OpKind kind) {
        bool first = true;
        for (const int64_t bytes : options_.sizes()) {
            const Case c = make_case(kind, options_.dtype, bytes, comm_.rank(), comm_.size());
            restart_alarm(options_);
            if (first) print(table_header(report_, c, options_));
            report_.rows.push_back(stopwatch_.measure(c, contestants_, limits_));
            if (first) print(table_remarks(report_, report_.rows.back()));
            print(table_line(report_.rows.back()));
            first = false;
            if (kind == OpKind::barrier) return;
        }
    }

    Communicator& comm_;
    const Options& options_;
    std::unique_ptr<System> own_;
    Stopwatch stopwatch_;
    Memory own_memory_;
    Memory shared_memory_;
    std::vector<Contestant> contestants_;
    std::unique_ptr<MemoryLimit> limit_;
    std::vector<std::unique_ptr<System>> limit_systems_;
    std::vector<System*> limits_;
    Report report_;
};

int run_rank(Bootstrap& bootstrap, System* peer, const Options& options) {
    restart_alarm(options);
    Env env = read_env();
    env.timeout = options.timeout;
    const auto comm = Communicator::create(bootstrap, env);
    return Run(*comm, peer, options)();
}

int run_under_mpi(const Options& options) {
    const auto session = start_mpi();
    if (!session) {
        std::fputs("pycomm-perf was built without MPI: give --ranks N\n", stderr);
        return wrong_arguments;
    }
    try {
        return run_rank(session->bootstrap(), options.compare ? &session->system() : nullptr,
                        options);
    } catch (const std::exception& error) {
        std::fprintf(stderr, "pycomm-perf: rank %d: %s\n", session->bootstrap().rank(),
                     error.what());
        session->abort(failed);
        return failed;
    }
}

int run(const Options& options) {
    if (options.help) {
        std::fputs(usage(), stdout);
        return ok;
    }
    std::signal(SIGALRM, on_alarm);
    restart_alarm(options);
    if (options.ranks == 0) return run_under_mpi(options);
    const RankBody body = [&options](Bootstrap& bootstrap) {
        return run_rank(bootstrap, nullptr, options);
    };
    if (options.threads) return launch_threads(options.ranks, body);
    alarm(0);  // each rank has its own, and the parent waits for them
    return launch_processes(options.ranks, body);
}

}  // namespace
}  // namespace pycomm::tools

int main(int argc, char** argv) {
    using namespace pycomm;
    tools::Options options;
    try {
        options = tools::parse_options({argv + 1, argv + argc});
    } catch (const Error& error) {
        std::fprintf(stderr, "pycomm-perf: %s\n", error.what());
        return tools::wrong_arguments;
    }
    try {
        return tools::run(options);
    } catch (const std::exception& error) {
        std::fprintf(stderr, "pycomm-perf: %s\n", error.what());
        return tools::failed;
    }
}
