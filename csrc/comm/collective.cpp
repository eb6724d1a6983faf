// The stages of a collective: roll call, schedule, finish.
#include "comm/collective.h"

#include <algorithm>
#include <cstring>
#include <numeric>

#include "base/error.h"
#include "reduce/reduce.h"

namespace pycomm {
namespace {

// Of the ranks before `rank`.
int64_t total(const std::vector<int64_t>& counts, int rank) {
    return std::accumulate(counts.begin(), counts.begin() + rank, int64_t{0});
}

bool same_problem(const Problem& a, const Problem& b) {
    return a.kind == b.kind && a.root == b.root && a.element_size == b.element_size &&
           a.count == b.count && a.in_place == b.in_place && a.counts == b.counts &&
           a.send_counts == b.send_counts && a.recv_counts == b.recv_counts;
}

}  // namespace

std::shared_ptr<const Schedule> PlanCache::get(const Problem& problem, Algorithm algorithm) {
    constexpr size_t capacity = 32;
    const std::lock_guard lock(mutex_);
    for (const Entry& entry : entries_) {
        if (entry.algorithm == algorithm && same_problem(entry.problem, problem)) {
            return entry.schedule;
        }
    }
    auto schedule = std::make_shared<const Schedule>(build_schedule(problem, algorithm));
    Entry entry{problem, algorithm, schedule};
    if (entries_.size() < capacity) {
        entries_.push_back(std::move(entry));
    } else {
        entries_[next_victim_] = std::move(entry);
        next_victim_ = (next_victim_ + 1) % capacity;
    }
    return schedule;
}

bool goes_direct(const CollectiveContext& context, OpKind kind) {
    if (context.transport.board() == nullptr) return false;
    const Algorithm forced = forced_algorithm(kind, context.forced_algorithms);
    return forced == Algorithm::automatic || forced == Algorithm::direct;
}

std::span<const Threshold> measured_choices(const CollectiveContext& context, OpKind kind) {
    if (forced_algorithm(kind, context.forced_algorithms) != Algorithm::automatic) return {};
    return context.measured.thresholds;
}

DirectCall direct_call(const CollectiveContext& context, const CollectiveRequest& request,
                       uint64_t sequence) {
    return make_direct(request, sequence, context.transport.rank(),
                       measured_choices(context, request.kind), context.measured.limits);
}

CollectiveTask::CollectiveTask(CollectiveContext& context, CollectiveRequest request,
                               const Deadline& deadline)
    : Task(deadline), context_(context), request_(std::move(request)) {}

CollectiveTask::CollectiveTask(CollectiveContext& context, CollectiveRequest request,
                               const Deadline& deadline, const Posted& posted)
    : CollectiveTask(context, std::move(request), deadline) {
    sequence_ = posted.envelope.sequence;
    algorithm_ = Algorithm::direct;
    direct_ = direct_call(context, request_, sequence_);
    direct_->shares_cores = context.yields;
    roll_call_.emplace(context.transport, posted.envelope, posted.parcel, true);
    stage_ = Stage::roll_call;
}

void CollectiveTask::choose_plan() {
    Problem problem = make_problem(request_, context_.transport.rank(), context_.transport.size());
    // What does not go the direct way although it may, goes the way that fits its size.
    const bool may_go_direct = algorithm_ == Algorithm::direct;
    const Algorithm algorithm =
        select_algorithm(problem, may_go_direct ? std::string() : context_.forced_algorithms,
                         measured_choices(context_, request_.kind));
    PYCOMM_CHECK(algorithm != Algorithm::direct, argument,
                 "PYCOMM_ALGO: ", kind_name(request_.kind),
                 " has no algorithm 'direct' on transport ", context_.transport.name());
    if (!may_go_direct) algorithm_ = algorithm;
    plan_ = context_.plans.get(problem, algorithm);
    widened_ = reduces(request_) && is_half(request_.input.dtype) && !plan_->reduces_at_once &&
               problem.size > 1;
    if (!widened_) return;
    problem.in_place = false;
    problem.element_size = sizeof(float);
    plan_ = context_.plans.get(problem, algorithm);
}

void CollectiveTask::start() {
    sequence_ = ++context_.sequence;
    if (may_go_direct()) return start_direct();
    choose_plan();
    if (context_.check) {
        roll_call_.emplace(context_.transport, make_envelope(request_, sequence_, algorithm_));
        stage_ = Stage::roll_call;
    } else {
        enter_counts();
    }
}

bool CollectiveTask::may_go_direct() const {
    if (!goes_direct(context_, request_.kind)) return false;
    // The counts of an all_to_all have to fit into staging memory.
    Transport& transport = context_.transport;
    const DirectCall call = direct_call(context_, request_, sequence_);
    return call.told_bytes(transport.size()) <= transport.board()->largest_staged();
}

void CollectiveTask::start_direct() {
    algorithm_ = Algorithm::direct;
    part_overlapping();
    direct_ = direct_call(context_, request_, sequence_);
    direct_->shares_cores = context_.yields;
    Envelope envelope = make_envelope(request_, sequence_, algorithm_);
    Parcel parcel{};
    make_offer(context_.transport, *direct_, envelope, parcel);
    roll_call_.emplace(context_.transport, envelope, parcel);
    stage_ = Stage::roll_call;
}

// All ranks have arrived, and so has all that they say.
void CollectiveTask::enter_direct() {
    Transport& transport = context_.transport;
    const int size = transport.size();
    for (int from = 0; direct_->tells_counts && from < size; ++from) {
        for (int to = 0; to < size; ++to) {
            check_counts(from, to, told_send(transport, *direct_, from, to),
                         told_recv(transport, *direct_, from, to));
        }
    }
    if (request_.kind == OpKind::scatter) {
        const int64_t rows = transport.board()->call(direct_->root, sequence_).count;
        direct_->first = request_.explicit_counts
                             ? total(request_.counts, transport.rank())
                             : slice_offset(rows, size, transport.rank()) * request_.row_elements;
    }
    const Route route = choose_route(transport, *direct_);
    if (route == Route::none) {
        choose_plan();
        return enter_running();
    }
    direct_work_ = make_work(transport, *direct_, route, context_.scratch);
    stage_ = direct_work_->done() ? Stage::complete : Stage::direct;
}

bool CollectiveTask::progress() {
    bool moved = false;
    if (stage_ == Stage::queued) {
        start();
        moved = true;
    }
    if (stage_ == Stage::roll_call) {
        moved |= roll_call_->progress();
        if (!roll_call_->done()) return moved;
        direct_ ? enter_direct() : enter_counts();
    }
    if (stage_ == Stage::direct) {
        moved |= direct_work_->progress();
        if (direct_work_->done()) stage_ = Stage::complete;
        return moved;
    }
    if (stage_ == Stage::counts) {
        moved |= runner_->progress();
        if (!runner_->done()) return moved;
        check_announced();
        enter_running();
    }
    if (stage_ == Stage::running) {
        moved |= runner_->progress();
        if (runner_->done()) enter_complete();
    }
    return moved;
}

// all_to_all with explicit counts: every rank tells each peer how much it will send.
void CollectiveTask::enter_counts() {
    if (request_.kind != OpKind::all_to_all || !request_.explicit_counts || !context_.check) {
        return enter_running();
    }
    Problem problem = make_problem(request_, context_.transport.rank(), context_.transport.size());
    problem.element_size = sizeof(int64_t);
    problem.send_counts.assign(static_cast<size_t>(problem.size), 1);
    problem.recv_counts = problem.send_counts;
    counts_plan_ = context_.plans.get(problem, Algorithm::pairwise);
    announced_.assign(static_cast<size_t>(problem.size), 0);
    Operands operands;
    operands.input = {request_.send_counts.data(), problem.size, DataType::int64};
    operands.output = {announced_.data(), problem.size, DataType::int64};
    runner_.emplace(context_.transport, Stream::collective, *counts_plan_, operands);
    stage_ = Stage::counts;
}

void CollectiveTask::check_announced() const {
    const int rank = context_.transport.rank();
    for (size_t peer = 0; peer < announced_.size(); ++peer) {
        check_counts(static_cast<int>(peer), rank, announced_[peer], request_.recv_counts[peer]);
    }
}

void CollectiveTask::check_counts(int from, int to, int64_t sent, int64_t expected) const {
    if (sent == expected) return;
    throw Error(ErrorCode::mismatch,
                concat(describe(), ": rank ", from, " sends ", sent, " elements to rank ", to,
                       ", which expects ", expected, " from it"),
                {from == context_.transport.rank() ? to : from});
}

// An input that shares part of its memory with the output is copied aside.
void CollectiveTask::part_overlapping() {
    if (!overlaps(request_, context_.transport.rank())) return;
    input_copy_ = std::make_unique_for_overwrite<std::byte[]>(request_.input.bytes());
    std::memcpy(input_copy_.get(), request_.input.data, request_.input.bytes());
    request_.input.data = input_copy_.get();
}

void CollectiveTask::enter_running() {
    if (!plan_) return enter_complete();
    Operands operands{request_.input, request_.output, request_.op, 1};
    if (request_.op == ReduceOp::avg) operands.divisor = context_.transport.size();
    if (request_.kind == OpKind::broadcast) operands.input = request_.output;
    if (widened_) {
        const auto in_count = static_cast<size_t>(request_.input.count);
        const auto out_count = static_cast<size_t>(request_.output.count);
        wide_input_ = std::make_unique_for_overwrite<float[]>(in_count);
        wide_output_ = std::make_unique_for_overwrite<float[]>(out_count);
        widen(wide_input_.get(), request_.input.data, in_count, request_.input.dtype);
        operands.input = {wide_input_.get(), request_.input.count, DataType::float32};
        operands.output = {wide_output_.get(), request_.output.count, DataType::float32};
    } else {
        part_overlapping();
        if (request_.kind != OpKind::broadcast) operands.input = request_.input;
    }
    runner_.emplace(context_.transport, Stream::collective, *plan_, operands);
    stage_ = Stage::running;
}

void CollectiveTask::enter_complete() {
    stage_ = Stage::complete;
    const auto count = static_cast<size_t>(request_.output.count);
    const int size = context_.transport.size();
    const bool has_result =
        request_.kind != OpKind::reduce || request_.root == context_.transport.rank();
    if (!plan_ || !has_result) return;
    const bool divides = request_.op == ReduceOp::avg && !plan_->reduces_at_once && size > 1;
    if (widened_) {
        if (divides) divide(wide_output_.get(), count, DataType::float32, size);
        narrow(request_.output.data, wide_output_.get(), count, request_.output.dtype);
    } else if (divides) {
        divide(request_.output.data, count, request_.output.dtype, size);
    }
}

std::vector<int> CollectiveTask::waiting_on() const {
    if (stage_ == Stage::roll_call) return roll_call_->absent();
    if (stage_ == Stage::direct) return direct_work_->waiting_on();
    return runner_ ? runner_->waiting_on() : std::vector<int>{};
}

std::string CollectiveTask::describe() const {
    return to_string(make_envelope(request_, sequence_, algorithm_), sequence_);
}

std::string CollectiveTask::timeout_hint() const {
    if (stage_ == Stage::roll_call) {
        return "it has not called this operation; check that all ranks make the same calls, "
               "or give a longer timeout";
    }
    return "it called the operation but stopped taking part in it";
}

}  // namespace pycomm
