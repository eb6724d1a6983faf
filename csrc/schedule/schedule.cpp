// Chunk arithmetic and the printer of schedules.
#include "schedule/schedule.h"

#include <algorithm>

#include "base/error.h"

namespace pycomm {
namespace {

const char* space_name(Space space) {
    switch (space) {
        case Space::input:
            return "input";
        case Space::output:
            return "output";
        case Space::scratch:
            return "scratch";
    }
    return "?";
}

std::string block_text(const Block& block) {
    return concat(space_name(block.space), "[", block.offset, ":", block.offset + block.count, "]");
}

}  // namespace

std::string to_string(const Step& step) {
    switch (step.kind) {
        case StepKind::send:
            return concat("send to ", step.peer, " ", block_text(step.src));
        case StepKind::recv:
            return concat("recv from ", step.peer, " -> ", block_text(step.dst));
        case StepKind::recv_reduce:
            return concat("recv_reduce from ", step.peer, step.peer_first ? " (first) " : " ",
                          block_text(step.src), " -> ", block_text(step.dst));
        case StepKind::recv_reduce_all:
            return concat("recv_reduce_all ", block_text(step.src), " -> ", block_text(step.dst));
        case StepKind::copy:
            return concat("copy ", block_text(step.src), " -> ", block_text(step.dst));
    }
    return "?";
}

std::string to_string(const Schedule& schedule) {
    std::string text;
    for (size_t l = 0; l < schedule.lanes.size(); l++) {
        const std::vector<Round>& rounds = schedule.lanes[l].rounds;
        for (size_t r = 0; r < rounds.size(); r++) {
            for (const Step& step : rounds[r].steps) {
                text += concat("lane ", l, " round ", r, ": ", to_string(step), "\n");
            }
        }
    }
    return text;
}

int64_t slice_offset(int64_t count, int parts, int index) {
    const int64_t quotient = count / parts;
    const int64_t remainder = count % parts;
    return quotient * index + std::min<int64_t>(index, remainder);
}

}  // namespace pycomm
