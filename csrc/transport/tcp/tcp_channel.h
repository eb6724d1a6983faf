// A Channel over one TCP socket.
//
// On the wire every message is padded to a multiple of 16 bytes, and the receive buffer keeps a
// byte of stream position p at an offset equal to p modulo 16. So each message starts aligned
// without being moved. Sending copies nothing here: the kernel takes the bytes from the caller's
// memory. Receiving of large messages goes straight into the caller's memory; only what follows
// them lands in the buffer.
#pragma once

#include <memory>

#include "store/socket.h"
#include "transport/transport.h"

namespace pycomm {

class TcpChannel final : public Channel {
  public:
    static constexpr size_t min_capacity = 4096;

    // Takes `capacity` bytes of memory for the receive buffer at the first use.
    TcpChannel(UniqueFd fd, size_t capacity) : fd_(std::move(fd)), capacity_(capacity) {}

    size_t try_send(const void* data, size_t bytes, bool last) override;
    std::span<const std::byte> peek(size_t bytes) override;
    void consume(size_t bytes, bool last) override;
    size_t try_recv(void* data, size_t bytes, bool last, bool streams) override;

    int fd() const { return fd_.get(); }
    // Whether everything that the peer will ever have sent is here, in the buffer or the kernel.
    bool input_complete() const;
    // Throws away what has arrived.
    void discard_input();

  private:
    struct FreeBuffer {
        void operator()(std::byte* buffer) const;
    };

    size_t ready() const { return tail_ - head_; }
    void skip_padding();
    void fill();
    size_t receive_directly(std::byte* data, size_t bytes);
    void allocate();

    UniqueFd fd_;
    size_t capacity_;

    // Receiving: the buffer holds bytes [head_, tail_).
    std::unique_ptr<std::byte[], FreeBuffer> buffer_;
    size_t head_ = 0;
    size_t tail_ = 0;
    size_t in_message_ = 0;  // bytes of the current message consumed so far
    size_t in_padding_ = 0;  // padding of the message before that has still to be skipped
    bool in_ended_ = false;

    // Sending.
    size_t out_message_ = 0;  // bytes of the current message taken so far
    size_t out_padding_ = 0;  // padding of the message before that has still to be sent
    bool out_ended_ = false;
};

}  // namespace pycomm
