// What every Store owes, as functions that the tests of each kind call.
#pragma once

#include <doctest/doctest.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "base/error.h"
#include "store/store.h"

namespace pycomm::store_test {

// Another view of the same store, for another thread or process.
using Open = std::function<std::shared_ptr<Store>()>;

// Calls `call`, which must fail; returns its Error.
inline Error error_of(const std::function<void()>& call) {
    try {
        call();
    } catch (const Error& error) {
        return error;
    }
    return Error(ErrorCode::comm, "no error was thrown");
}

inline bool holds(const std::string& text, const std::string& part) {
    return text.find(part) != std::string::npos;
}

inline double seconds_of(const std::function<void()>& call) {
    const auto start = Deadline::Clock::now();
    call();
    return std::chrono::duration<double>(Deadline::Clock::now() - start).count();
}

inline void check_values(const Open& open) {
    const auto store = open();
    const auto other = open();
    std::string every_byte;
    for (int i = 0; i < 256; ++i) every_byte += static_cast<char>(i);
    const std::vector<std::string> keys = {"plain",
                                           "a/b/c",
                                           "..",
                                           ".",
                                           "with space",
                                           "UPPER",
                                           "upper",
                                           "",
                                           "k%2F",
                                           every_byte,
                                           "a",
                                           "a/b",
                                           std::string(199, 'l'),
                                           std::string(200, 'l'),
                                           std::string(1000, 'l'),
                                           "trailing/"};
    for (const std::string& key : keys) CHECK_FALSE(store->contains(key));
    for (size_t i = 0; i < keys.size(); ++i) store->set(keys[i], every_byte + std::to_string(i));
    for (size_t i = 0; i < keys.size(); ++i) {
        CHECK(other->contains(keys[i]));
        CHECK(other->get(keys[i], Deadline::after(10)) == every_byte + std::to_string(i));
    }
    store->set("plain", "replaced");
    CHECK(other->get("plain", Deadline::after(10)) == "replaced");
    other->set("empty", "");
    CHECK(store->get("empty", Deadline::after(10)).empty());
    std::string large(3 << 20, '\0');
    for (size_t i = 0; i < large.size(); ++i) large[i] = static_cast<char>(i * 7 + (i >> 9));
    store->set("large", large);
    CHECK(other->get("large", Deadline::after(10)) == large);
}

// A get that begins before its set, and one whose set never comes.
inline void check_waiting(const Open& open) {
    const auto reader = open();
    const auto writer = open();
    std::thread late([&] {
        std::this_thread::sleep_for(std::chrono::milliseconds(150));
        writer->set("late", "arrived");
    });
    std::string value;
    const double waited = seconds_of([&] { value = reader->get("late", Deadline::after(10)); });
    late.join();
    CHECK(value == "arrived");
    CHECK(waited > 0.1);
    CHECK(waited < 3);

    Error error(ErrorCode::comm, "");
    const double timed = seconds_of(
        [&] { error = error_of([&] { reader->get("never/set", Deadline::after(0.3)); }); });
    CHECK(error.code() == ErrorCode::timeout);
    CHECK(holds(error.what(), "'never/set'"));
    CHECK(timed >= 0.3);
    CHECK(timed < 2);
    // The store is of use after a timeout.
    writer->set("after", "fine");
    CHECK(reader->get("after", Deadline::after(10)) == "fine");
}

// Several threads with one store object between them, some waiting for keys that the others set.
inline void check_threads(const Open& open) {
    const auto store = open();
    constexpr int count = 6;
    std::atomic<int> right{0};
    std::vector<std::thread> threads;
    for (int i = 0; i < count; ++i) {
        threads.emplace_back([&, i] {
            for (int round = 0; round < 20; ++round) {
                const auto key = [&](int who) { return concat("thread/", round, '/', who); };
                store->set(key(i), concat(i * 1000 + round));
                const int from = (i + 1) % count;
                const std::string value = store->get(key(from), Deadline::after(20));
                right += value == concat(from * 1000 + round);
            }
        });
    }
    for (std::thread& thread : threads) thread.join();
    CHECK(right == count * 20);
}

}  // namespace pycomm::store_test
