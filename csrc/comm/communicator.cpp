// Making communicators, and turning calls into tasks.
#include "comm/communicator.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <numeric>

#include "base/free_memory.h"
#include "base/interrupt.h"
#include "base/log.h"
#include "comm/group_bootstrap.h"
#include "comm/quick_collective.h"
#include "transport/registry.h"

namespace pycomm {
namespace {

// How long a quick call waits before the engine, which knows deadlines and signals, waits on.
constexpr int quick_spins = 400;
constexpr int quick_yields = 20;

// Whoever allocates less than this with the others need not know what they all take together.
constexpr int64_t smallest_shared_out = 1 << 20;

// Zeroed; null when there is none, and then `why` says so.
std::shared_ptr<std::byte> ordinary_memory(size_t bytes, const SharedOut* shared,
                                           std::string& why) {
    constexpr size_t page = 4096;
    const SharedOut free = shared != nullptr ? *shared : SharedOut{free_memory(), 1};
    void* memory = nullptr;
    // Memory that is promised but not there would end the process at its first use.
    if (free.allows(bytes)) memory = std::aligned_alloc(page, (bytes / page + 1) * page);
    if (memory == nullptr) {
        why = wanted_and_free(bytes, free);
        return nullptr;
    }
    std::memset(memory, 0, bytes);
    return {static_cast<std::byte*>(memory), [](std::byte* pointer) { std::free(pointer); }};
}

std::shared_ptr<std::byte> from_heap(const std::shared_ptr<Heap>& heap, size_t bytes,
                                     const SharedOut* shared, std::string& why) {
    void* memory = heap->allocate(bytes, true, shared, why);
    if (memory == nullptr) return nullptr;
    return {static_cast<std::byte*>(memory),
            [heap](std::byte* pointer) { heap->deallocate(pointer); }};
}

std::unique_ptr<Transport> connect(Bootstrap& bootstrap, const Env& env, const Topology& topology,
                                   const Deadline& deadline) {
    if (env.transport == "tcp") return make_transport("tcp", bootstrap, env, deadline);
    const bool one_node = topology.num_nodes == 1;
    PYCOMM_CHECK(one_node || env.transport == "auto", argument,
                 "PYCOMM_TRANSPORT=shm, but the ranks are on ", topology.num_nodes, " nodes");
    if (!one_node) return make_transport("tcp", bootstrap, env, deadline);
    if (topology.one_process && env.transport == "auto") {
        return make_transport("inproc", bootstrap, env, deadline);
    }
    try {
        return make_transport("shm", bootstrap, env, deadline);
    } catch (const Error& error) {
        if (env.transport != "auto" || error.code() != ErrorCode::transport) throw;
        if (bootstrap.rank() == 0) {
            log_line(LogLevel::warn, 0, bootstrap.size(),
                     concat("no shared memory (", error.what(), "); using TCP, which is slower"));
        }
    }
    return make_transport("tcp", bootstrap, env, deadline);
}

// What rank 0 makes of its PYCOMM_PROFILE; null when there is none, or one that is no good, of
// which it warns.
std::shared_ptr<const Profile> load_profile(Bootstrap& bootstrap, const Env& env,
                                            const Deadline& deadline) {
    std::string text;
    if (bootstrap.rank() == 0 && !env.profile.empty()) {
        try {
            text = read_profile(env.profile);
            const Profile profile = parse_profile(text);
            const std::string machine = machine_name();
            PYCOMM_CHECK(profile.machine == machine, argument, "it is of another machine (",
                         profile.machine, "), this is ", machine);
            log_line(LogLevel::info, 0, bootstrap.size(), concat("profile ", env.profile));
        } catch (const Error& error) {
            log_line(LogLevel::warn, 0, bootstrap.size(),
                     concat("PYCOMM_PROFILE=", env.profile, " is ignored: ", error.what()));
            text.clear();
        }
    }
    const std::string shared = bootstrap.all_gather(text, deadline)[0];
    return shared.empty() ? nullptr : std::make_shared<const Profile>(parse_profile(shared));
}

}  // namespace

std::unique_ptr<Communicator> Communicator::create(Bootstrap& bootstrap, const Env& env,
                                                   const Deadline& limit) {
    return make(bootstrap, env, limit, true, load_profile(bootstrap, env, limit));
}

std::unique_ptr<Communicator> Communicator::make(Bootstrap& bootstrap, const Env& env,
                                                 const Deadline& deadline, bool may_spin,
                                                 std::shared_ptr<const Profile> profile) {
    check_forced(env.algorithm);
    const Topology topology = discover_topology(bootstrap, env, deadline);
    auto transport = connect(bootstrap, env, topology, deadline);
    const std::string refusal = transport->one_copy().refusal;
    Env own_env = env;
    if (!refusal.empty()) {
        if (bootstrap.rank() == 0) {
            log_line(LogLevel::warn, 0, bootstrap.size(),
                     concat("large messages between processes are copied twice, since the system "
                            "refuses to copy them once (",
                            refusal, "); PYCOMM_CMA=off says that this is fine"));
        }
        own_env.cma = "off";  // said once; communicators split from this one need not try
    }
    std::unique_ptr<Communicator> made(
        new Communicator(own_env, topology, std::move(transport), may_spin, std::move(profile)));
    log_line(LogLevel::info, bootstrap.rank(), bootstrap.size(),
             concat("transport ", made->transport_name(), ", node ", topology.node, " of ",
                    topology.num_nodes, ", local rank ", topology.local_rank, " of ",
                    topology.local_size, ", ", topology.cores, " cores, ",
                    made->context_.measured.thresholds.size(), " measured choices"));
    return made;
}

Communicator::Communicator(const Env& env, const Topology& topology,
                           std::unique_ptr<Transport> transport, bool may_spin,
                           std::shared_ptr<const Profile> profile)
    : env_(env),
      profile_(std::move(profile)),
      topology_(topology),
      rank_(transport->rank()),
      size_(transport->size()),
      transport_name_(transport->name()),
      transport_(std::move(transport)),
      context_{*transport_, {}, env.algorithm, env.check, 0, {}, 0, false, {}},
      spin_(may_spin && topology.local_size <= topology.cores),
      engine_(std::make_unique<Engine>(*transport_, spin_)) {
    context_.spins = spin_ ? quick_spins : quick_yields;
    context_.yields = !spin_;
    if (profile_) context_.measured = profile_->of(transport_name_, size_);
}

Communicator::~Communicator() {
    close();
    if (ends_with_process_) (void)transport_.release();
    if (!forked()) return;
    // Threads that the child does not have may have been inside these; they cannot be ended.
    (void)engine_.release();
    (void)transport_.release();
}

void Communicator::check_process() const {
    PYCOMM_CHECK(!forked(), argument, "this process was forked from rank ", rank_,
                 ", whose communicator it cannot use; start it with the multiprocessing method "
                 "'spawn', or make arrays before and after it only");
}

double Communicator::seconds(Timeout timeout) const {
    const double seconds = timeout.value_or(env_.timeout);
    PYCOMM_CHECK(std::isfinite(seconds) && seconds > 0, argument, "timeout is ", seconds,
                 ", expected a positive number of seconds");
    return seconds;
}

std::shared_ptr<Task> Communicator::collective(CollectiveRequest request, Timeout timeout) {
    check_process();
    check_request(request, rank_, size_);
    return std::make_shared<CollectiveTask>(context_, std::move(request), deadline(timeout));
}

void Communicator::check_message(const Message& message) const {
    check_process();
    PYCOMM_CHECK(message.peer >= 0 && message.peer < size_, argument,
                 message.kind == OpKind::send ? "dst" : "src", " is ", message.peer,
                 ", expected a rank from 0 to ", size_ - 1);
    PYCOMM_CHECK(message.tag >= 0, argument, "tag is ", message.tag, ", expected 0 or more");
}

std::shared_ptr<Task> Communicator::point_to_point(OpKind kind, const Buffer& buffer, int peer,
                                                   int tag, Timeout timeout) {
    check_message({kind, buffer, peer, tag});
    return std::make_shared<PointToPointTask>(kind, buffer, rank_, peer, tag, ++messages_,
                                              deadline(timeout));
}

void Communicator::run_now(const Message& message, Timeout timeout,
                           const Engine::InterruptHook& hook) {
    check_message(message);
    const double limit = seconds(timeout);
    const auto number = ++messages_;
    const auto make_task = [&] {
        return std::make_shared<PointToPointTask>(message.kind, message.buffer, rank_, message.peer,
                                                  message.tag, number, Deadline::after(limit));
    };
    const auto attempt = [&]() -> std::shared_ptr<Task> {
        PointToPoint& messages = engine_->messages();
        if (message.kind == OpKind::send) {
            return messages.send_now(message.buffer, message.peer, message.tag, make_task);
        }
        const Patience patience{context_.spins, context_.yields};
        return messages.recv_now(message.buffer, message.peer, message.tag, patience, make_task);
    };
    if (engine_->run_on_the_spot(attempt, hook)) return;
    const std::shared_ptr<Task> task = make_task();
    engine_->run({&task, 1}, hook);
}

// Messages of the library itself use a tag that callers cannot.
std::shared_ptr<Task> Communicator::internal_message(OpKind kind, const Buffer& buffer, int peer) {
    return std::make_shared<PointToPointTask>(kind, buffer, rank_, peer, -1, ++messages_,
                                              deadline(std::nullopt));
}

void Communicator::run(Engine::TaskList tasks, const Engine::InterruptHook& hook) {
    check_process();
    engine_->run(tasks, hook);
}

void Communicator::run_now(CollectiveRequest request, Timeout timeout,
                           const Engine::InterruptHook& hook) {
    check_process();
    check_request(request, rank_, size_);
    const double limit = seconds(timeout);
    const auto attempt = [&]() -> std::shared_ptr<Task> {
        Posted posted;
        switch (run_quick(context_, request, posted)) {
            case QuickResult::finished:
                return nullptr;
            case QuickResult::posted:
                return std::make_shared<CollectiveTask>(context_, std::move(request),
                                                        Deadline::after(limit), posted);
            default:
                return std::make_shared<CollectiveTask>(context_, std::move(request),
                                                        Deadline::after(limit));
        }
    };
    if (engine_->run_on_the_spot(attempt, hook)) return;
    const std::shared_ptr<Task> task =
        std::make_shared<CollectiveTask>(context_, std::move(request), Deadline::after(limit));
    engine_->run({&task, 1}, hook);
}

void Communicator::submit(const std::shared_ptr<Task>& task) {
    check_process();
    engine_->submit(task);
}

bool Communicator::wait(const Task& task, Timeout seconds, const Engine::InterruptHook& hook) {
    check_process();
    return engine_->wait(task, seconds, hook);
}

std::unique_ptr<Communicator> Communicator::split(std::optional<int> color, int key,
                                                  const Engine::InterruptHook& hook) {
    struct Choice {
        int64_t has_color;
        int64_t color;
        int64_t key;
    };
    constexpr int64_t fields = 3;
    const Choice mine{color.has_value(), color.value_or(0), key};
    std::vector<Choice> all(static_cast<size_t>(size_));
    CollectiveRequest request;
    request.kind = OpKind::all_gather;
    request.called = OpKind::split;
    request.input = {const_cast<Choice*>(&mine), fields, DataType::int64};
    request.output = {all.data(), fields * size_, DataType::int64};
    request.counts.assign(static_cast<size_t>(size_), fields);
    const auto task = collective(std::move(request), std::nullopt);
    run({&task, 1}, hook);
    if (!color) return nullptr;

    std::vector<int> members;
    for (int other = 0; other < size_; ++other) {
        const Choice& choice = all[static_cast<size_t>(other)];
        if (choice.has_color != 0 && choice.color == *color) members.push_back(other);
    }
    std::stable_sort(members.begin(), members.end(), [&](int a, int b) {
        return all[static_cast<size_t>(a)].key < all[static_cast<size_t>(b)].key;
    });
    const InterruptScope scope(watch(members, hook));
    GroupBootstrap bootstrap(*this, std::move(members), hook);
    try {
        return make(bootstrap, env_, deadline(std::nullopt), spin_, profile_);
    } catch (const Error& error) {
        // Perhaps the others do not know; they would wait for this rank.
        if (error.code() == ErrorCode::transport) {
            engine_->abort(concat("rank ", rank_, " failed in split: ", error.what()));
        }
        throw;
    }
}

// What ends a wait among `members` that the engine does not see: signals, and the loss of a peer.
// Leaving alone would let the others wait, so it breaks this communicator.
std::function<void()> Communicator::watch(std::vector<int> members,
                                          const Engine::InterruptHook& hook) {
    return [this, members = std::move(members), hook] {
        try {
            if (hook) hook();
        } catch (...) {
            engine_->abort(concat("rank ", rank_,
                                  " was interrupted while it set up a communicator "
                                  "or memory"));
            throw;
        }
        engine_->check_peers(members);
    };
}

// Compares a call that sets something up, and returns a bootstrap among all ranks.
GroupBootstrap Communicator::meet_for_memory(int64_t bytes, const Engine::InterruptHook& hook) {
    std::vector<int> everyone(static_cast<size_t>(size_));
    std::iota(everyone.begin(), everyone.end(), 0);
    check_process();
    engine_->check_usable();
    CollectiveRequest request;
    request.kind = OpKind::barrier;
    request.called = OpKind::empty;
    request.input = {nullptr, bytes, DataType::uint8};
    run_now(std::move(request), std::nullopt, hook);
    return GroupBootstrap(*this, std::move(everyone), hook);
}

std::shared_ptr<Heap> Communicator::open_heap(Bootstrap& bootstrap) {
    if (!heap_opened_) {
        transport_->open_heap(bootstrap, deadline(std::nullopt));
        heap_opened_ = true;
    }
    return transport_->heap();
}

std::shared_ptr<Heap> Communicator::heap(const Engine::InterruptHook& hook) {
    GroupBootstrap bootstrap = meet_for_memory(0, hook);
    const InterruptScope scope(watch(bootstrap.members(), hook));
    try {
        return open_heap(bootstrap);
    } catch (const Error& error) {
        if (error.code() != ErrorCode::transport) throw;
        return nullptr;
    }
}

std::shared_ptr<std::byte> Communicator::symmetric(int64_t bytes,
                                                   const Engine::InterruptHook& hook) {
    PYCOMM_CHECK(bytes >= 0, argument, "size is ", bytes, " bytes, expected 0 or more");
    // What is free is looked at before the ranks meet, thus before any of them takes its part.
    std::optional<SharedOut> before;
    if (bytes >= smallest_shared_out) {
        before = {free_memory(), static_cast<uint64_t>(topology_.local_size)};
    }
    const SharedOut* shared = before ? &*before : nullptr;
    GroupBootstrap bootstrap = meet_for_memory(bytes, hook);
    const InterruptScope scope(watch(bootstrap.members(), hook));
    std::shared_ptr<Heap> heap;
    try {
        heap = open_heap(bootstrap);
    } catch (const Error& error) {
        if (error.code() != ErrorCode::transport) throw;
        throw Error(ErrorCode::memory, concat("empty: ", bytes, " bytes: ", error.what()));
    }
    std::string why;
    auto memory = heap ? from_heap(heap, static_cast<size_t>(bytes), shared, why)
                       : ordinary_memory(static_cast<size_t>(bytes), shared, why);
    // Sizes are compared again for those who leave the check of calls out.
    const std::string size = std::to_string(bytes);
    const auto reports = bootstrap.all_gather(concat(size, ' ', why), deadline(std::nullopt));
    for (size_t other = 0; other < reports.size(); ++other) {
        const size_t space = reports[other].find(' ');
        const std::string theirs = reports[other].substr(0, space);
        if (theirs != size) {
            throw Error(ErrorCode::mismatch,
                        concat("empty: rank ", rank_, " asked for ", size, " bytes but rank ",
                               other, " for ", theirs, "; all ranks must ask for the same"),
                        {static_cast<int>(other)});
        }
        if (space + 1 < reports[other].size()) {
            throw Error(ErrorCode::memory,
                        concat("empty: rank ", other, " cannot have ", size,
                               " bytes: ", reports[other].substr(space + 1)),
                        {static_cast<int>(other)});
        }
    }
    return memory;
}

Algorithm Communicator::choice(OpKind kind, int64_t bytes) const {
    const Algorithm forced = forced_algorithm(kind, context_.forced_algorithms);
    if (forced != Algorithm::automatic) return forced;
    const Algorithm measured = profile_algorithm(kind, bytes, context_.measured.thresholds);
    if (measured != Algorithm::automatic) return measured;
    if (goes_direct(context_, kind)) return Algorithm::direct;
    Problem problem;
    problem.kind = kind;
    problem.size = size_;
    problem.element_size = 1;
    problem.count = bytes;
    problem.counts = {bytes};
    return select_algorithm(problem, "");
}

void Communicator::use_profile(const std::string& text) {
    auto profile = text.empty() ? nullptr : std::make_shared<const Profile>(parse_profile(text));
    const std::lock_guard lock(close_mutex_);
    profile_ = std::move(profile);
    context_.measured = profile_ ? profile_->of(transport_name_, size_) : Choices{};
}

bool Communicator::is_symmetric(const void* data, size_t bytes) {
    const std::lock_guard lock(close_mutex_);
    return !forked() && transport_ && transport_->locate(data, bytes).has_value();
}

void Communicator::abort(const std::string& reason) {
    check_process();
    const std::lock_guard lock(close_mutex_);
    engine_->abort(reason);
}

void Communicator::close() {
    if (forked()) return;
    const std::lock_guard lock(close_mutex_);
    engine_->stop();
    if (!ends_with_process_) transport_.reset();  // tells the peers
}

void Communicator::close_with_process() {
    if (forked()) return;
    {
        const std::lock_guard lock(close_mutex_);
        ends_with_process_ = transport_name_ == "shm" && transport_ != nullptr;
    }
    close();
}

}  // namespace pycomm
