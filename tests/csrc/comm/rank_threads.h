// Communicators of ranks that are threads, and short ways to call them.
#pragma once

#include <doctest/doctest.h>

#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "base/error.h"
#include "comm/communicator.h"
#include "store/bootstrap.h"

namespace pycomm::testing {

inline Env quick_env(double timeout = 30) {
    Env env;
    env.timeout = timeout;
    return env;
}

// Calls `body` on a thread for each of `size` ranks; returns what each threw, or "".
inline std::vector<std::string> run_ranks(int size, const Env& env,
                                          const std::function<void(Communicator&)>& body) {
    const auto bootstraps = InprocGroup::create(size);
    std::vector<std::string> errors(static_cast<size_t>(size));
    std::vector<std::thread> threads;
    for (size_t rank = 0; rank < errors.size(); ++rank) {
        threads.emplace_back([&, rank] {
            try {
                const auto comm = Communicator::create(*bootstraps[rank], env);
                body(*comm);
            } catch (const std::exception& error) {
                errors[rank] = error.what();
            }
        });
    }
    for (auto& thread : threads) thread.join();
    return errors;
}

inline void check_all_well(const std::vector<std::string>& errors) {
    for (size_t rank = 0; rank < errors.size(); ++rank) {
        CHECK_MESSAGE(errors[rank].empty(), "rank ", rank, ": ", errors[rank]);
    }
}

// For checks on other threads than doctest's.
template <typename... Parts>
void expect(bool condition, const Parts&... parts) {
    if (!condition) throw std::runtime_error(concat(parts...));
}

inline std::shared_ptr<Task> barrier_task(Communicator& comm,
                                          Communicator::Timeout timeout = std::nullopt) {
    CollectiveRequest request;
    request.kind = OpKind::barrier;
    return comm.collective(std::move(request), timeout);
}

inline void barrier(Communicator& comm, Communicator::Timeout timeout = std::nullopt) {
    const auto task = barrier_task(comm, timeout);
    comm.run({&task, 1}, nullptr);
}

inline std::shared_ptr<Task> all_reduce_task(Communicator& comm, std::vector<int64_t>& data,
                                             Communicator::Timeout timeout = std::nullopt) {
    CollectiveRequest request;
    request.kind = OpKind::all_reduce;
    request.op = ReduceOp::sum;
    request.input = {data.data(), static_cast<int64_t>(data.size()), DataType::int64};
    request.output = request.input;
    return comm.collective(std::move(request), timeout);
}

inline std::shared_ptr<Task> message_task(Communicator& comm, OpKind kind,
                                          std::vector<int64_t>& data, int peer, int tag,
                                          Communicator::Timeout timeout = std::nullopt) {
    return comm.point_to_point(kind,
                               {data.data(), static_cast<int64_t>(data.size()), DataType::int64},
                               peer, tag, timeout);
}

// Waits for a submitted task and throws its error.
inline void finish(Communicator& comm, const Task& task) {
    comm.wait(task, std::nullopt, nullptr);
    if (task.error()) std::rethrow_exception(task.error());
}

// The code of the Error that `call` throws; nothing when there is none.
inline std::optional<ErrorCode> code_of(const std::function<void()>& call) {
    try {
        call();
    } catch (const Error& error) {
        return error.code();
    }
    return std::nullopt;
}

}  // namespace pycomm::testing
