// What a profile changes about operations on mapped memory, and that PYCOMM_ALGO goes first.
#include <doctest/doctest.h>

#include <string>
#include <thread>
#include <vector>

#include "comm/collective.h"
#include "comm/rank_threads.h"
#include "transport/inproc/inproc_transport.h"

namespace pycomm {
namespace {

using testing::expect;

struct Rows {
    std::vector<Threshold> thresholds;
    SizeLimits limits{};
    std::string forced{};
};

// Where an all-reduce of `bytes` bytes between threads, which have mapped everything, offers its
// input under these rows.
Where offered(Transport& transport, const Rows& rows, int64_t bytes) {
    CollectiveContext context{transport, {}, rows.forced, true, 0, {}, 0, false, {}};
    context.measured = {rows.thresholds, rows.limits};
    std::vector<std::byte> input(static_cast<size_t>(bytes));
    std::vector<std::byte> output(input.size());
    CollectiveRequest request;
    request.kind = OpKind::all_reduce;
    request.op = ReduceOp::sum;
    request.input = {input.data(), bytes, DataType::int8};
    request.output = {output.data(), bytes, DataType::int8};
    const DirectCall call = direct_call(context, request, 1);
    Envelope envelope;
    Parcel parcel{};
    make_offer(transport, call, envelope, parcel);
    return envelope.input_at;
}

void check_offers(Transport& transport) {
    const std::vector<Threshold> above = {{OpKind::all_reduce, 4000, Algorithm::direct},
                                          {OpKind::all_reduce, any_bytes, Algorithm::pairwise}};
    SizeLimits copies;
    copies.copied = any_bytes;
    SizeLimits reads;
    reads.copied = 0;
    SizeLimits stages = copies;
    stages.staged = 2000;
    const auto at = [&](const Rows& rows, int64_t bytes) {
        return offered(transport, rows, bytes);
    };
    expect(at({}, 32) == Where::line && at({{}, reads}, 32) == Where::line, "line");
    expect(at({}, 33) == Where::beside && at({}, 1024) == Where::beside, "beside");
    expect(at({}, 1025) == Where::staged && at({}, 8192) == Where::staged &&
               at({}, 8193) == Where::mapped,
           "built in");
    expect(at({{}, reads}, 33) == Where::mapped, "reads");
    expect(at({{}, copies}, 10000) == Where::staged, "copies");
    expect(at({{}, stages}, 2000) == Where::staged && at({{}, stages}, 2001) == Where::mapped,
           "stages");
    // Beyond the direct way private arrays are not staged at all.
    expect(at({above}, 4000) == Where::staged && at({above}, 4001) == Where::mapped, "rows");
    expect(at({above, {}, "all_reduce:direct"}, 4001) == Where::staged, "forced");
    expect(at({above, {}, "reduce:direct"}, 4001) == Where::mapped, "another one forced");
}

TEST_CASE("limits and choices of a profile decide where an input is offered") {
    const auto bootstraps = InprocGroup::create(2);
    std::vector<std::string> errors(2);
    std::vector<std::thread> threads;
    for (size_t rank = 0; rank < errors.size(); ++rank) {
        threads.emplace_back([&, rank] {
            try {
                const auto transport =
                    make_inproc_transport(*bootstraps[rank], 1 << 20, Deadline::after(20));
                check_offers(*transport);
            } catch (const std::exception& error) {
                errors[rank] = error.what();
            }
        });
    }
    for (auto& thread : threads) thread.join();
    testing::check_all_well(errors);
}

}  // namespace
}  // namespace pycomm
