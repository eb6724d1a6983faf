// Sizes at which operations on mapped memory change their way. The built-in ones are here; a
// profile may say others.
#pragma once

#include <cstdint>
#include <string_view>

namespace pycomm {

struct SizeLimits {
    static constexpr int64_t automatic = -1;

    // Bytes of an input that peers have mapped: up to this it is copied to staging memory, which
    // costs less than waiting for all ranks once more at the end; above it is read where it lies.
    int64_t copied = 8 << 10;
    // Bytes of the private input of an all-reduce or reduce: up to this every rank reads all
    // inputs, as far as they fit; above each element is read by one rank.
    int64_t staged = automatic;
    // Bytes of a reduction in place with more ranks than cores: up to this each rank has its slice;
    // above ranks take pieces as they are free.
    int64_t claimed = (1 << 20) - 1;
    // Bytes of the private input of an all-gather or all-to-all: up to this it goes through rings;
    // above the operating system lets the others read it where it lies, if it does.
    int64_t piped = (256 << 10) - 1;

    // The limit of that name; null when there is none.
    int64_t* find(std::string_view name) {
        if (name == "copied") return &copied;
        if (name == "staged") return &staged;
        if (name == "claimed") return &claimed;
        if (name == "piped") return &piped;
        return nullptr;
    }
};

}  // namespace pycomm
