// Padding, buffering and scatter/gather calls of a TCP channel.
#include "transport/tcp/tcp_channel.h"

#include <poll.h>
#include <sys/uio.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <new>

namespace pycomm {
namespace {

constexpr size_t alignment = 16;
constexpr std::align_val_t buffer_alignment{64};
// A view at least this long is handed out as it is; a shorter one is worth a system call for more.
constexpr size_t refill_below = 1024;
// From here on a system call per piece costs less than copying the following pieces out of the
// buffer.
constexpr size_t direct_from = 16384;

size_t padding_after(size_t message_bytes) {
    return -message_bytes % alignment;
}

// Whether a failed call may succeed later.
bool temporary(int error) {
    return error == EAGAIN || error == ENOBUFS || error == ENOMEM;
}

// An interrupted call is repeated at once: nothing would wake a caller that takes it for "no data".
template <typename Call>
ssize_t uninterrupted(Call call) {
    ssize_t count = 0;
    do {
        count = call();
    } while (count == -1 && errno == EINTR);
    return count;
}

}  // namespace

void TcpChannel::FreeBuffer::operator()(std::byte* buffer) const {
    ::operator delete[](buffer, buffer_alignment);
}

void TcpChannel::allocate() {
    if (buffer_) return;
    buffer_.reset(static_cast<std::byte*>(::operator new[](capacity_, buffer_alignment)));
}

size_t TcpChannel::try_send(const void* data, size_t bytes, bool last) {
    if (out_ended_) return 0;
    if (bytes == 0) {
        if (last) out_padding_ += padding_after(std::exchange(out_message_, 0));
        return 0;
    }
    static constexpr std::byte zeros[alignment] = {};
    const size_t before = out_padding_;
    const size_t after = last ? padding_after(out_message_ + bytes) : 0;
    iovec parts[] = {{const_cast<std::byte*>(zeros), before},
                     {const_cast<void*>(data), bytes},
                     {const_cast<std::byte*>(zeros), after}};
    msghdr message{};
    message.msg_iov = parts;
    message.msg_iovlen = 3;
    const ssize_t count =
        uninterrupted([&] { return ::sendmsg(fd_.get(), &message, MSG_NOSIGNAL | MSG_DONTWAIT); });
    if (count == -1) {
        // The peer is gone; alive() tells, and what it sent before can still be received.
        out_ended_ = !temporary(errno);
        return 0;
    }
    size_t sent = static_cast<size_t>(count);
    out_padding_ -= std::min(sent, before);
    sent -= std::min(sent, before);
    const size_t taken = std::min(sent, bytes);
    out_message_ += taken;
    if (last && taken == bytes) {
        out_padding_ = after - (sent - taken);
        out_message_ = 0;
    }
    return taken;
}

void TcpChannel::skip_padding() {
    const size_t skipped = std::min(in_padding_, ready());
    head_ += skipped;
    in_padding_ -= skipped;
}

void TcpChannel::fill() {
    if (in_ended_) return;
    allocate();
    // What is left is short, so moving it is cheap; its place modulo 16 stays.
    if (ready() == 0 || capacity_ - tail_ < capacity_ / 2) {
        const size_t start = head_ % alignment;
        std::memmove(buffer_.get() + start, buffer_.get() + head_, ready());
        tail_ = start + ready();
        head_ = start;
    }
    const ssize_t count = uninterrupted(
        [&] { return ::recv(fd_.get(), buffer_.get() + tail_, capacity_ - tail_, MSG_DONTWAIT); });
    if (count > 0) {
        tail_ += static_cast<size_t>(count);
    } else {
        in_ended_ = count == 0 || !temporary(errno);
    }
    skip_padding();
}

std::span<const std::byte> TcpChannel::peek(size_t bytes) {
    skip_padding();
    if (ready() < std::min(bytes, refill_below)) fill();
    return {buffer_.get() + head_, std::min(bytes, ready())};
}

void TcpChannel::consume(size_t bytes, bool last) {
    head_ += bytes;
    in_message_ += bytes;
    if (last) in_padding_ += padding_after(std::exchange(in_message_, 0));
    skip_padding();
}

size_t TcpChannel::try_recv(void* data, size_t bytes, bool last, bool /*streams*/) {
    auto* target = static_cast<std::byte*>(data);
    skip_padding();
    const size_t buffered = std::min(bytes, ready());
    if (buffered > 0) {
        std::memcpy(target, buffer_.get() + head_, buffered);
        consume(buffered, last && buffered == bytes);
    } else if (bytes == 0) {
        consume(0, last);
    }
    if (buffered == bytes) return bytes;
    const size_t direct = receive_directly(target + buffered, bytes - buffered);
    in_message_ += direct;
    const size_t taken = buffered + direct;
    if (last && taken == bytes) {
        in_padding_ += padding_after(std::exchange(in_message_, 0));
        skip_padding();
    }
    return taken;
}

// One call that puts padding aside, the wanted bytes into `data` and, after short messages, what
// follows into the buffer, which must be empty. Returns how many of the wanted bytes came.
size_t TcpChannel::receive_directly(std::byte* data, size_t bytes) {
    if (in_ended_) return 0;
    allocate();
    std::byte padding[alignment];
    const size_t skipped = in_padding_;
    // Where the stream goes on after padding and message, modulo 16, is where the rest belongs.
    const size_t rest_place = (head_ + skipped + bytes) % alignment;
    const size_t rest = bytes < direct_from ? capacity_ - rest_place : 0;
    iovec parts[] = {{padding, skipped}, {data, bytes}, {buffer_.get() + rest_place, rest}};
    msghdr message{};
    message.msg_iov = parts;
    message.msg_iovlen = 3;
    const ssize_t count =
        uninterrupted([&] { return ::recvmsg(fd_.get(), &message, MSG_DONTWAIT); });
    if (count <= 0) {
        in_ended_ = count == 0 || !temporary(errno);
        return 0;
    }
    size_t left = static_cast<size_t>(count);
    in_padding_ -= std::min(left, skipped);
    left -= std::min(left, skipped);
    const size_t taken = std::min(left, bytes);
    left -= taken;
    head_ = (head_ + (skipped - in_padding_) + taken) % alignment;
    tail_ = head_ + left;
    return taken;
}

bool TcpChannel::input_complete() const {
    if (in_ended_) return true;
    pollfd entry{fd_.get(), POLLRDHUP, 0};
    return ::poll(&entry, 1, 0) == 1 && entry.revents != 0;
}

void TcpChannel::discard_input() {
    std::byte bytes[16384];
    while (!in_ended_) {
        const ssize_t count =
            uninterrupted([&] { return ::recv(fd_.get(), bytes, sizeof(bytes), MSG_DONTWAIT); });
        if (count == -1 && temporary(errno)) return;
        in_ended_ = count <= 0;
    }
}

}  // namespace pycomm
