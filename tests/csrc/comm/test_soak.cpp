// Random operations of every kind among four threads, one after the other and many at once, each
// result checked. All ranks draw the same calls; how a rank makes a call (in place, in symmetric or
// private memory, blocking or not, with a delay before it) it draws on its own.
//
// For longer runs, by transport, and to repeat a failure, which names the seed and the call:
//
//     SOAK_OPERATIONS=20000 SOAK_SEED=7 build/tests/test_comm_soak -tc='*shared memory*'
#include <cstdlib>
#include <future>

#include "comm/soak_calls.h"

namespace pycomm::testing::soak {
namespace {

struct Plan {
    uint64_t seed = 1;
    int64_t operations = 0;
    int64_t spoiled = -1;  // the call whose result rank 1 spoils before it looks at it
};

// A buffer, and what it must hold in the end.
struct Result {
    Buffer buffer;
    Segments wanted;
    const char* role;
};

// One operation of this rank.
struct Part {
    CollectiveRequest request;
    Communicator::Message message{OpKind::none, {}, 0, 0};  // if it is one
    std::vector<Array> arrays;
    std::vector<Result> results;
    std::shared_ptr<Task> task;
};

struct Live {
    Call call;
    std::vector<Part> parts;
    std::future<void> thread;  // that runs it; ends before the arrays do
};

// One rank's run.
class Soak {
  public:
    Soak(Communicator& comm, const Plan& plan)
        : comm_(comm),
          plan_(plan),
          own_(plan.seed * ranks + static_cast<uint64_t>(comm.rank()) + 1) {}

    void run() {
        Random shared(plan_.seed);
        try {
            for (size_t slot = 0; slot < slots_.size(); ++slot) renew(slot, 256 << 10);
            for (int64_t number = 0; number < plan_.operations; ++number) {
                issue(current_ = draw_call(shared, number));
                while (!live_.empty() && (live_.size() > most_live || chance(own_, 30))) {
                    finish(below(own_, std::ssize(live_)));
                }
            }
            while (!live_.empty()) finish(0);
        } catch (const std::exception& error) {
            const std::string text =
                concat("seed ", plan_.seed, ", call ", current_.number, " (", current_.describe(),
                       "), rank ", comm_.rank(), ": ", error.what());
            comm_.abort(text);
            comm_.close();  // from now on nobody touches the arrays
            throw std::runtime_error(text);
        }
    }

  private:
    static constexpr size_t most_live = 6;
    static constexpr size_t large_slots = 3;

    struct Slot {
        std::shared_ptr<std::byte> memory;
        size_t bytes = 0;
    };

    void renew(size_t index, int64_t bytes) {
        if (index < large_slots) bytes = largest;
        bytes += static_cast<int64_t>(Array::bytes_for(DataType::int32, 0));
        Slot& slot = slots_[index];
        slot = {comm_.symmetric(bytes, nullptr), static_cast<size_t>(bytes)};
        const std::byte* begin = slot.memory.get();
        const auto is_zero = [](std::byte byte) { return byte == std::byte{0}; };
        expect(std::all_of(begin, begin + bytes, is_zero), "symmetric memory is not zeroed");
    }

    Array make_array(DataType dtype, int64_t count) {
        const size_t bytes = Array::bytes_for(dtype, count);
        const auto size = static_cast<int64_t>(dtype_size(dtype));
        const auto places = static_cast<int64_t>(Array::most_skipped) / size;
        const auto skipped = chance(own_, 50) ? 0 : static_cast<size_t>(below(own_, places) * size);
        const Slot& slot = slots_[static_cast<size_t>(below(own_, std::ssize(slots_)))];
        if (chance(own_, 60) && slot.bytes >= bytes && slot.memory.use_count() == 1) {
            return {slot.memory, dtype, count, skipped};
        }
        const std::shared_ptr<std::byte[]> memory(new std::byte[bytes]);
        return {{memory, memory.get()}, dtype, count, skipped};
    }

    // The arrays of a collective: apart, one within the other, or overlapping.
    void place(Part& part, const Call& call) {
        const Segments input = input_of(call, comm_.rank());
        const Segments output = output_of(call, comm_.rank());
        const int64_t in_count = total(input);
        const int64_t out_count = total(output);
        Buffer& in = part.request.input;
        Buffer& out = part.request.output;
        const int64_t way = below(own_, 10);
        if (way < 5 || call.kind == OpKind::broadcast) {
            part.arrays = {make_array(call.dtype, in_count), make_array(call.dtype, out_count)};
            in = part.arrays[0].part(0, in_count);
            out = part.arrays[1].part(0, out_count);
            part.results.push_back({in, input, "the input"});
        } else {
            const bool slices = !call.counts.empty();
            int64_t in_at = way < 9 && slices ? sum_before(call.counts, comm_.rank()) : 0;
            int64_t out_at = way < 9 ? 0 : below(own_, 5);
            if (in_count > out_count) std::swap(in_at, out_at);
            const int64_t whole = std::max(in_at + in_count, out_at + out_count);
            part.arrays = {make_array(call.dtype, whole)};
            in = part.arrays[0].part(in_at, in_count);
            out = part.arrays[0].part(out_at, out_count);
        }
        fill(in, input);
        if (call.kind == OpKind::broadcast) {
            if (comm_.rank() == call.root) fill(out, output);
            in = out;
        }
        part.results.push_back({out, output, "the result"});
        // A rank without an input or output gives none.
        if (call.root >= 0 && call.root != comm_.rank()) {
            if (call.kind == OpKind::scatter) in = {nullptr, 0, call.dtype};
            if (call.kind != OpKind::scatter && call.kind != OpKind::broadcast) {
                out = {nullptr, 0, call.dtype};
            }
        }
    }

    Part make_collective(const Call& call) {
        Part part;
        part.request.kind = call.kind;
        part.request.op = call.op;
        part.request.root = call.root;
        if (call.kind == OpKind::barrier) return part;
        place(part, call);
        set_counts(part.request, call, comm_.rank());
        return part;
    }

    Part make_message(const Call& call, const Letter& letter, OpKind kind) {
        Part part;
        const bool sends = kind == OpKind::send;
        part.arrays = {make_array(call.dtype, letter.count)};
        part.message = {kind, part.arrays[0].part(0, letter.count), sends ? letter.to : letter.from,
                        letter.tag};
        const Segments data{{letter.from, letter.start, letter.count}};
        if (sends) fill(part.message.buffer, data);
        part.results.push_back({part.message.buffer, data, sends ? "the message" : "the result"});
        return part;
    }

    std::vector<Part> make_parts(const Call& call) {
        std::vector<Part> parts;
        if (call.kind != OpKind::send) parts.push_back(make_collective(call));
        for (const auto& letter : call.letters) {
            if (letter.from == comm_.rank()) {
                parts.push_back(make_message(call, letter, OpKind::send));
            }
            if (letter.to == comm_.rank()) {
                parts.push_back(make_message(call, letter, OpKind::recv));
            }
        }
        return parts;
    }

    void delay() {
        if (chance(own_, 20)) std::this_thread::yield();
        if (chance(own_, 4)) {
            const int64_t most = chance(own_, 10) ? 3000 : 200;
            std::this_thread::sleep_for(std::chrono::microseconds(below(own_, most)));
        }
    }

    void issue(const Call& call) {
        delay();
        if (call.kind == OpKind::empty) {
            return renew(static_cast<size_t>(call.number) % slots_.size(),
                         call.count * static_cast<int64_t>(dtype_size(call.dtype)));
        }
        Live live{call, make_parts(call), {}};
        const int64_t way = below(own_, 10);
        if (way < 4) {
            for (auto& part : live.parts) run_now(part);
            return check_results(live);
        }
        const bool any_order = call.kind == OpKind::send && !call.one_tag;
        if (any_order) std::shuffle(live.parts.begin(), live.parts.end(), own_);
        std::vector<std::shared_ptr<Task>> tasks;
        for (auto& part : live.parts) tasks.push_back(part.task = make_task(part));
        if (way < 6) {
            comm_.run(tasks, nullptr);
            return check_results(live);
        }
        if (way < 7 && any_order) {
            live.thread =
                std::async(std::launch::async, [this, tasks] { comm_.run(tasks, nullptr); });
        } else {
            for (const auto& task : tasks) comm_.submit(task);
        }
        live_.push_back(std::move(live));
    }

    void run_now(const Part& part) {
        if (part.message.kind == OpKind::none) {
            comm_.run_now(part.request, std::nullopt, nullptr);
        } else {
            comm_.run_now(part.message, std::nullopt, nullptr);
        }
    }

    std::shared_ptr<Task> make_task(const Part& part) {
        const auto& message = part.message;
        if (message.kind == OpKind::none) return comm_.collective(part.request, std::nullopt);
        return comm_.point_to_point(message.kind, message.buffer, message.peer, message.tag,
                                    std::nullopt);
    }

    void finish(int64_t index) {
        delay();
        Live& live = live_[static_cast<size_t>(index)];
        current_ = live.call;
        if (live.thread.valid()) {
            live.thread.get();
        } else {
            for (const auto& part : live.parts) wait(*part.task);
        }
        check_results(live);
        live_.erase(live_.begin() + index);
    }

    void wait(const Task& task) {
        if (chance(own_, 20)) {
            while (!comm_.wait(task, 0.0005, nullptr)) {
            }
        }
        testing::finish(comm_, task);
    }

    void check_results(const Live& live) {
        for (const auto& part : live.parts) {
            for (const auto& [buffer, wanted, role] : part.results) {
                if (live.call.number == plan_.spoiled && comm_.rank() == 1 && buffer.count > 0) {
                    *buffer.at(buffer.count - 1) ^= std::byte{1};
                }
                check(buffer, wanted, role);
            }
            for (const auto& array : part.arrays) array.check_margins();
        }
    }

    Communicator& comm_;
    const Plan plan_;
    Random own_;
    Call current_;
    std::array<Slot, 6> slots_;
    std::vector<Live> live_;
};

int64_t from_environment(const char* name, int64_t otherwise) {
    const char* text = std::getenv(name);
    return text == nullptr ? otherwise : std::strtoll(text, nullptr, 10);
}

// `usually` so many operations; fewer with ThreadSanitizer.
void soak(const Env& env, int64_t usually) {
#if defined(__SANITIZE_THREAD__)
    usually /= 8;
#endif
    Plan plan;
    plan.seed = static_cast<uint64_t>(from_environment("SOAK_SEED", 1));
    plan.operations = from_environment("SOAK_OPERATIONS", usually);
    check_all_well(run_ranks(ranks, env, [&](Communicator& comm) { Soak(comm, plan).run(); }));
}

Env soak_env(const char* transport, const char* cma = "auto") {
    Env env = quick_env(60);
    env.transport = transport;
    env.cma = cma;
    return env;
}

// Some algorithm for every kind.
std::string draw_algorithms(Random& random) {
    std::string text;
    for (int index = 0; index < static_cast<int>(OpKind::send); ++index) {
        const auto kind = static_cast<OpKind>(index);
        const auto algorithms = algorithms_for(kind);
        if (algorithms.empty()) continue;
        text += concat(text.empty() ? "" : ",", kind_name(kind), ":",
                       algorithm_name(pick(random, algorithms)));
    }
    return text;
}

TEST_CASE("random operations among threads") {
    soak(soak_env("auto"), 1600);
}

TEST_CASE("random operations in shared memory, with the faster way for large messages") {
    soak(soak_env("shm"), 800);
}

TEST_CASE("random operations in shared memory, with large messages in one copy") {
    soak(soak_env("shm", "always"), 800);
}

TEST_CASE("random operations over TCP") {
    soak(soak_env("tcp"), 200);
}

TEST_CASE("random operations by schedules, with small buffers") {
    Env env = soak_env("auto");
    env.buffer_bytes = 1 << 17;
    Random random(static_cast<uint64_t>(from_environment("SOAK_SEED", 1)));
    for (int turn = 0; turn < 4; ++turn) {
        env.algorithm = draw_algorithms(random);
        CAPTURE(env.algorithm);
        soak(env, 100);
    }
}

TEST_CASE("a wrong element is found, with the seed and the number of the call") {
    Plan plan{7, 50, -1};
    Random random(plan.seed);
    for (int64_t number = 0; number < plan.operations; ++number) {
        const Call call = draw_call(random, number);
        if (call.kind == OpKind::all_reduce && call.count > 0) plan.spoiled = number;
    }
    const auto errors =
        run_ranks(ranks, soak_env("auto"), [&](Communicator& comm) { Soak(comm, plan).run(); });
    CAPTURE(errors[1]);
    CHECK(errors[1].find(concat("seed 7, call ", plan.spoiled, " (all_reduce")) == 0);
    CHECK(errors[1].find(" is wrong") != std::string::npos);
    CHECK(errors[0].find(errors[1]) != std::string::npos);  // the others say why they end
}

}  // namespace
}  // namespace pycomm::testing::soak
