// Gather to the first member, then send the whole to each.
#include "comm/group_bootstrap.h"

#include <algorithm>
#include <cstring>

namespace pycomm {
namespace {

// Blobs as one text: length (8 bytes, native order: the ranks share a program) and bytes of each.
std::string pack(const std::vector<std::string>& blobs) {
    std::string text;
    for (const std::string& blob : blobs) {
        const uint64_t length = blob.size();
        text.append(reinterpret_cast<const char*>(&length), sizeof(length));
        text += blob;
    }
    return text;
}

std::vector<std::string> unpack(const std::string& text) {
    std::vector<std::string> blobs;
    for (size_t place = 0; place < text.size();) {
        uint64_t length = 0;
        std::memcpy(&length, text.data() + place, sizeof(length));
        place += sizeof(length);
        blobs.push_back(text.substr(place, length));
        place += length;
    }
    return blobs;
}

}  // namespace

GroupBootstrap::GroupBootstrap(Communicator& parent, std::vector<int> members,
                               Engine::InterruptHook hook)
    : parent_(parent), members_(std::move(members)), hook_(std::move(hook)) {
    const auto own = std::find(members_.begin(), members_.end(), parent.rank());
    rank_ = static_cast<int>(own - members_.begin());
}

void GroupBootstrap::transfer(OpKind kind, int member, const Buffer& buffer) {
    const auto task = parent_.internal_message(kind, buffer, members_[static_cast<size_t>(member)]);
    parent_.run({&task, 1}, hook_);
}

void GroupBootstrap::send(int member, const std::string& text) {
    int64_t length = static_cast<int64_t>(text.size());
    transfer(OpKind::send, member, {&length, 1, DataType::int64});
    transfer(OpKind::send, member, {const_cast<char*>(text.data()), length, DataType::uint8});
}

std::string GroupBootstrap::receive(int member) {
    int64_t length = 0;
    transfer(OpKind::recv, member, {&length, 1, DataType::int64});
    std::string text(static_cast<size_t>(length), '\0');
    transfer(OpKind::recv, member, {text.data(), length, DataType::uint8});
    return text;
}

std::vector<std::string> GroupBootstrap::all_gather(const std::string& blob,
                                                    const Deadline& /*deadline*/) {
    if (rank_ != 0) {
        send(0, blob);
        return unpack(receive(0));
    }
    std::vector<std::string> blobs{blob};
    for (int member = 1; member < size(); ++member) blobs.push_back(receive(member));
    const std::string all = pack(blobs);
    for (int member = 1; member < size(); ++member) send(member, all);
    return blobs;
}

}  // namespace pycomm
