// The stages of a collective: roll call, schedule, finish.
#include "comm/collective.h"

#include <algorithm>
#include <cstring>
#include <numeric>

#include "base/error.h"
#include "reduce/reduce.h"

namespace pycomm {
namespace {

int64_t total(const std::vector<int64_t>& counts) {
    return std::accumulate(counts.begin(), counts.end(), int64_t{0});
}

// Of the ranks before `rank`.
int64_t total(const std::vector<int64_t>& counts, int rank) {
    return std::accumulate(counts.begin(), counts.begin() + rank, int64_t{0});
}

// FNV-1a over the counts; never 0, which means "no counts".
uint32_t hash_counts(const std::vector<int64_t>& counts) {
    uint32_t hash = 2166136261u;
    for (const int64_t count : counts) {
        for (int byte = 0; byte < 8; ++byte) {
            hash = (hash ^ static_cast<uint8_t>(static_cast<uint64_t>(count) >> (8 * byte))) *
                   16777619u;
        }
    }
    return hash == 0 ? 1 : hash;
}

bool overlap(const Buffer& a, const Buffer& b) {
    const auto a_begin = reinterpret_cast<uintptr_t>(a.data);
    const auto b_begin = reinterpret_cast<uintptr_t>(b.data);
    return a.count > 0 && b.count > 0 && a_begin < b_begin + b.bytes() &&
           b_begin < a_begin + a.bytes();
}

void check_counts_list(const std::vector<int64_t>& counts, int size, const char* name) {
    PYCOMM_CHECK(counts.size() == static_cast<size_t>(size), argument, name, " has ", counts.size(),
                 " entries, expected one for each of the ", size, " ranks");
    for (const int64_t count : counts) {
        PYCOMM_CHECK(count >= 0, argument, name, " holds the negative count ", count);
    }
}

void check_total(const Buffer& buffer, const char* role, int64_t expected) {
    PYCOMM_CHECK(buffer.count == expected, argument, role, " has ", buffer.count,
                 " elements, expected ", expected);
}

bool same_problem(const Problem& a, const Problem& b) {
    return a.kind == b.kind && a.root == b.root && a.element_size == b.element_size &&
           a.count == b.count && a.in_place == b.in_place && a.counts == b.counts &&
           a.send_counts == b.send_counts && a.recv_counts == b.recv_counts;
}

}  // namespace

void check_request(const CollectiveRequest& request, int rank, int size) {
    const auto own = static_cast<size_t>(rank);
    const bool rooted = request.kind == OpKind::broadcast || request.kind == OpKind::reduce ||
                        request.kind == OpKind::gather || request.kind == OpKind::scatter;
    PYCOMM_CHECK(!rooted || (request.root >= 0 && request.root < size), argument, "root is ",
                 request.root, ", expected a rank from 0 to ", size - 1);
    check_op(request.op, request.input.dtype);
    const bool is_root = rank == request.root;
    switch (request.kind) {
        case OpKind::all_reduce:
            check_total(request.output, "the output", request.input.count);
            break;
        case OpKind::reduce:
            if (is_root) check_total(request.output, "the output", request.input.count);
            break;
        case OpKind::reduce_scatter:
            check_counts_list(request.counts, size, "counts");
            check_total(request.input, "the input", total(request.counts));
            check_total(request.output, "the output", request.counts[own]);
            break;
        case OpKind::all_gather:
        case OpKind::gather:
            check_counts_list(request.counts, size, "counts");
            check_total(request.input, "the input", request.counts[own]);
            if (is_root || request.kind == OpKind::all_gather) {
                check_total(request.output, "the output", total(request.counts));
            }
            break;
        case OpKind::scatter:
            if (!request.counts.empty()) {
                check_counts_list(request.counts, size, "counts");
                if (is_root) check_total(request.input, "the input", total(request.counts));
                check_total(request.output, "the output", request.counts[own]);
            }
            break;
        case OpKind::all_to_all:
            check_counts_list(request.send_counts, size, "send_counts");
            check_counts_list(request.recv_counts, size, "recv_counts");
            check_total(request.input, "the input", total(request.send_counts));
            check_total(request.output, "the output", total(request.recv_counts));
            PYCOMM_CHECK(request.send_counts[own] == request.recv_counts[own], argument,
                         "send_counts and recv_counts differ for the own rank ", rank, ": ",
                         request.send_counts[own], " and ", request.recv_counts[own]);
            break;
        default:
            break;
    }
}

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

CollectiveTask::CollectiveTask(CollectiveContext& context, CollectiveRequest request,
                               const Deadline& deadline)
    : Task(deadline), context_(context), request_(std::move(request)) {}

bool CollectiveTask::reduces() const {
    return request_.kind == OpKind::all_reduce || request_.kind == OpKind::reduce_scatter ||
           request_.kind == OpKind::reduce;
}

Problem CollectiveTask::make_problem() const {
    Problem problem;
    problem.kind = request_.kind;
    problem.rank = context_.transport.rank();
    problem.size = context_.transport.size();
    problem.root = std::max(0, request_.root);
    problem.element_size = dtype_size(request_.input.dtype);
    problem.count = request_.input.count;
    problem.counts = request_.counts;
    problem.send_counts = request_.send_counts;
    problem.recv_counts = request_.recv_counts;
    if (request_.kind == OpKind::scatter && problem.counts.empty()) {
        // Away from root only the own part is known, and only it matters.
        problem.counts.assign(static_cast<size_t>(problem.size), 0);
        problem.counts[static_cast<size_t>(problem.rank)] = request_.output.count;
    }
    problem.in_place = in_place();
    return problem;
}

bool CollectiveTask::in_place() const {
    const Buffer& in = request_.input;
    const Buffer& out = request_.output;
    if (out.data == nullptr || in.data == nullptr) return false;
    const auto own = static_cast<size_t>(context_.transport.rank());
    const auto& counts = request_.counts;
    switch (request_.kind) {
        case OpKind::all_reduce:
        case OpKind::reduce:
            return in.data == out.data;
        case OpKind::broadcast:
            return true;
        case OpKind::all_to_all:
            return false;
        default:
            break;
    }
    if (counts.empty() || counts[own] == 0) return false;
    const int64_t offset = std::accumulate(
        counts.begin(), counts.begin() + static_cast<std::ptrdiff_t>(own), int64_t{0});
    const bool joins = request_.kind == OpKind::all_gather || request_.kind == OpKind::gather;
    return joins ? out.at(offset) == in.data : in.at(offset) == out.data;
}

Envelope CollectiveTask::make_envelope() const {
    Envelope envelope;
    envelope.sequence = sequence_;
    envelope.kind =
        static_cast<uint8_t>(request_.called == OpKind::none ? request_.kind : request_.called);
    envelope.dtype = static_cast<uint8_t>(request_.input.dtype);
    envelope.op = static_cast<uint8_t>(request_.op);
    envelope.root = request_.root;
    envelope.algorithm = static_cast<uint8_t>(algorithm_);
    envelope.count = request_.input.count;
    if (request_.explicit_counts) {
        // Per-rank buffers differ; the list says it all. all_to_all compares pair by pair later.
        envelope.count = request_.kind == OpKind::all_to_all ? 0 : total(request_.counts);
        envelope.counts_hash = hash_counts(request_.counts);
    } else if (request_.kind == OpKind::scatter) {
        envelope.count = request_.rows;
        envelope.counts_hash = static_cast<uint32_t>(request_.row_elements);
        envelope.rows = 1;
    } else if (request_.row_elements > 0) {
        // The parts follow from rows, so equal counts of unequal rows are different calls.
        envelope.counts_hash = static_cast<uint32_t>(request_.row_elements);
        envelope.rows = 2;
    }
    return envelope;
}

void CollectiveTask::choose_plan() {
    Problem problem = make_problem();
    // What does not go the direct way although it may, goes the way that fits its size.
    const bool may_go_direct = algorithm_ == Algorithm::direct;
    const Algorithm algorithm =
        select_algorithm(problem, may_go_direct ? std::string() : context_.forced_algorithms);
    PYCOMM_CHECK(algorithm != Algorithm::direct, argument,
                 "PYCOMM_ALGO: ", kind_name(request_.kind),
                 " has no algorithm 'direct' on transport ", context_.transport.name());
    if (!may_go_direct) algorithm_ = algorithm;
    plan_ = context_.plans.get(problem, algorithm);
    widened_ =
        reduces() && is_half(request_.input.dtype) && !plan_->reduces_at_once && problem.size > 1;
    if (!widened_) return;
    problem.in_place = false;
    problem.element_size = sizeof(float);
    plan_ = context_.plans.get(problem, algorithm);
}

void CollectiveTask::start() {
    sequence_ = ++context_.sequence;
    if (goes_direct()) return start_direct();
    choose_plan();
    if (context_.check) {
        roll_call_.emplace(context_.transport, make_envelope());
        stage_ = Stage::roll_call;
    } else {
        enter_counts();
    }
}

bool CollectiveTask::goes_direct() const {
    Board* board = context_.transport.board();
    if (board == nullptr) return false;
    // all_to_all with counts has to have room for them in the slot.
    // The counts of an all_to_all have to fit into the slot.
    if (make_direct().told_bytes(context_.transport.size()) > board->slot_bytes()) return false;
    const Algorithm forced = forced_algorithm(request_.kind, context_.forced_algorithms);
    return forced == Algorithm::automatic || forced == Algorithm::direct;
}

DirectCall CollectiveTask::make_direct() const {
    DirectCall call;
    call.kind = request_.kind;
    call.op = request_.op;
    call.root = std::max(0, request_.root);
    call.sequence = sequence_;
    call.input = request_.kind == OpKind::broadcast ? request_.output : request_.input;
    call.output = request_.output;
    call.in_place = in_place();
    call.counts = request_.counts;
    if (request_.kind == OpKind::all_to_all) {
        call.counts = request_.send_counts;
        call.recv_counts = request_.recv_counts;
        call.tells_counts = request_.explicit_counts;
    }
    return call;
}

void CollectiveTask::start_direct() {
    algorithm_ = Algorithm::direct;
    part_overlapping();
    direct_ = make_direct();
    Envelope envelope = make_envelope();
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
    direct_runner_.emplace(transport, *direct_, route);
    stage_ = direct_runner_->done() ? Stage::complete : Stage::direct;
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
        moved |= direct_runner_->progress();
        if (direct_runner_->done()) stage_ = Stage::complete;
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
    Problem problem = make_problem();
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
    if (!overlap(request_.input, request_.output) || in_place()) return;
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
    if (stage_ == Stage::direct) return direct_runner_->waiting_on();
    return runner_ ? runner_->waiting_on() : std::vector<int>{};
}

std::string CollectiveTask::describe() const {
    return to_string(make_envelope(), sequence_);
}

std::string CollectiveTask::timeout_hint() const {
    if (stage_ == Stage::roll_call) {
        return "it has not called this operation; check that all ranks make the same calls, "
               "or give a longer timeout";
    }
    return "it called the operation but stopped taking part in it";
}

}  // namespace pycomm
