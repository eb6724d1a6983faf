// Sleeping on a 32-bit word, between the threads of one process or of several.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>

namespace pycomm {

// Sleeps while `word` holds `expected`, at most `at_most`; may return early for no reason.
void futex_wait(std::atomic<uint32_t>& word, uint32_t expected, std::chrono::nanoseconds at_most);
void futex_wake_all(std::atomic<uint32_t>& word);

// A hint to the processor inside a spin loop.
inline void cpu_relax() {
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    asm volatile("yield");
#endif
}

// Orders all earlier stores of this thread before its later loads.
inline void store_load_fence() {
#if defined(__x86_64__)
    // Cheaper than mfence, and ThreadSanitizer builds accept it.
    asm volatile("lock; orl $0, (%%rsp)" ::: "memory", "cc");
#else
    std::atomic_thread_fence(std::memory_order_seq_cst);
#endif
}

}  // namespace pycomm
