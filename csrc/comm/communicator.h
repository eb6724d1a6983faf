// The ranks of one parallel job, or a subset of them, and the operations among them.
#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "base/env.h"
#include "base/fork.h"
#include "comm/collective.h"
#include "comm/topology.h"
#include "exec/engine.h"

namespace pycomm {

class GroupBootstrap;

// Operations are made as tasks, then run (blocking) or submitted (asynchronous). The memory of a
// task's buffers must stay valid until the task is finished. Thread-safe; collectives must be
// issued in the same order on all ranks.
class Communicator {
  public:
    using Timeout = std::optional<double>;  // seconds; none: the communicator's default

    // Collective over `bootstrap`, with env.timeout as default of all operations, and as limit
    // unless there is another.
    static std::unique_ptr<Communicator> create(Bootstrap& bootstrap, const Env& env,
                                                const Deadline& limit);
    static std::unique_ptr<Communicator> create(Bootstrap& bootstrap, const Env& env) {
        return create(bootstrap, env, Deadline::after(env.timeout));
    }
    ~Communicator();

    int rank() const { return rank_; }
    int size() const { return size_; }
    const Topology& topology() const { return topology_; }
    const std::string& transport_name() const { return transport_name_; }
    double timeout() const { return env_.timeout; }

    // Throws ArgumentError before anything is sent.
    std::shared_ptr<Task> collective(CollectiveRequest request, Timeout timeout);
    // `kind` is send or recv. `tag` is 0 or more.
    std::shared_ptr<Task> point_to_point(OpKind kind, const Buffer& buffer, int peer, int tag,
                                         Timeout timeout);

    void run(Engine::TaskList tasks, const Engine::InterruptHook& hook);
    // A blocking collective: as collective() and run(), with less on the way for small ones.
    void run_now(CollectiveRequest request, Timeout timeout, const Engine::InterruptHook& hook);
    // The same for a message.
    struct Message {
        OpKind kind;  // send or recv
        Buffer buffer;
        int peer;
        int tag;
    };
    void run_now(const Message& message, Timeout timeout, const Engine::InterruptHook& hook);
    void submit(const std::shared_ptr<Task>& task);
    bool wait(const Task& task, Timeout seconds, const Engine::InterruptHook& hook);
    std::vector<int> waiting_on(const Task& task) const { return engine_->waiting_on(task); }

    // Ranks with the same color form a new communicator, ordered by (key, rank); null for ranks
    // without color. Collective and blocking.
    std::unique_ptr<Communicator> split(std::optional<int> color, int key,
                                        const Engine::InterruptHook& hook);
    // Zeroed memory of `bytes` bytes that all ranks of the node have mapped; private memory when
    // the transport has none. Every rank passes the same `bytes`. Collective and blocking. Throws
    // OutOfMemoryError on all ranks when one cannot have it; the communicator stays usable.
    std::shared_ptr<std::byte> symmetric(int64_t bytes, const Engine::InterruptHook& hook);

    // Where symmetric memory comes from, for more of it without the others; null when there is none
    // of its own (TCP; threads, whose memory is all reachable), or when it cannot be had, on all
    // ranks then. Collective and blocking.
    std::shared_ptr<Heap> heap(const Engine::InterruptHook& hook);

    // The algorithm of `kind` for private arrays of `bytes` bytes in the whole.
    Algorithm choice(OpKind kind, int64_t bytes) const;
    // From now on `text` is the profile, of whatever machine; empty: none. The same on all ranks,
    // while nothing is under way. For measuring. Throws ArgumentError.
    void use_profile(const std::string& text);

    // Whether peers can reach this memory, so that it takes part without copies.
    bool is_symmetric(const void* data, size_t bytes);

    void abort(const std::string& reason);
    // Operations in flight fail with AbortedError; later ones too. Idempotent. In a forked process
    // it leaves everything, the peers' view of this rank included, as it is.
    void close();
    // The same for a program that is ending: over shared memory the peers see that this rank has
    // left when its process has ended, so that a launcher learns its exit code before they fail,
    // too.
    void close_with_process();

  private:
    static std::unique_ptr<Communicator> make(Bootstrap& bootstrap, const Env& env,
                                              const Deadline& limit, bool may_spin,
                                              std::shared_ptr<const Profile> profile);
    Communicator(const Env& env, const Topology& topology, std::unique_ptr<Transport> transport,
                 bool may_spin, std::shared_ptr<const Profile> profile);
    void check_process() const;
    bool forked() const { return fork_generation() != generation_; }
    std::function<void()> watch(std::vector<int> members, const Engine::InterruptHook& hook);
    double seconds(Timeout timeout) const;
    void check_message(const Message& message) const;
    Deadline deadline(Timeout timeout) const { return Deadline::after(seconds(timeout)); }
    std::shared_ptr<Task> internal_message(OpKind kind, const Buffer& buffer, int peer);
    GroupBootstrap meet_for_memory(int64_t bytes, const Engine::InterruptHook& hook);
    std::shared_ptr<Heap> open_heap(Bootstrap& bootstrap);
    friend class GroupBootstrap;
    friend class MemoryLimit;

    Env env_;
    std::shared_ptr<const Profile> profile_;  // null when there is none
    Topology topology_;
    int rank_;
    int size_;
    std::string transport_name_;
    std::unique_ptr<Transport> transport_;
    CollectiveContext context_;
    std::atomic<uint64_t> messages_{0};
    std::mutex close_mutex_;
    bool ends_with_process_ = false;
    bool heap_opened_ = false;
    const uint64_t generation_ = fork_generation();
    const bool spin_;                 // every rank of the node has a core of its own
    std::unique_ptr<Engine> engine_;  // after what its tasks use
};

}  // namespace pycomm
