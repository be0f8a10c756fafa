// Threads of a sparse kernel: how they share its work, and their thread-local memory.

#pragma once

#include <cstdint>
#include <cstdlib>

#include "vectors.h"

namespace {

// Fewer multiplications than these take less time than waking another thread: 2¹⁷ of them take some 6 µs in a
// convolution or a panel, and 50 µs in a product with one vector.
#ifndef SECATEUR_PARALLEL_MIN  // which the sanitizers' driver lowers
#define SECATEUR_PARALLEL_MIN (1 << 17)
#endif
constexpr int64_t parallel_min = SECATEUR_PARALLEL_MIN;

// Treats denormals as zeros during its lifetime.
class NoDenormals {
#if defined(__SSE__)
    unsigned before = __builtin_ia32_stmxcsr();

   public:
    NoDenormals() { __builtin_ia32_ldmxcsr(before | 0x8040); }  // bit 15 flushes results to zero, bit 6 operands
    ~NoDenormals() { __builtin_ia32_ldmxcsr(before); }
#elif defined(__aarch64__)
    uint64_t before;

   public:
    NoDenormals() {
        __asm__ volatile("mrs %0, fpcr" : "=r"(before));
        __asm__ volatile("msr fpcr, %0" : : "r"(before | uint64_t{1} << 24));  // bit 24 flushes both to zero
    }
    ~NoDenormals() { __asm__ volatile("msr fpcr, %0" : : "r"(before)); }
#else
   public:
    NoDenormals() {}
    ~NoDenormals() {}
#endif
    NoDenormals(const NoDenormals&) = delete;
};

// Calls piece(k) for each k below `count`, on so many threads. Returns whether all of them returned true.
template <class Piece>
INLINE bool over_pieces(int64_t count, int threads, const Piece& piece) {
    bool whole = true;
    if (threads == 1) {  // without the OpenMP runtime, which slows down small layers
        for (int64_t k = 0; k < count; ++k) whole &= piece(k);
        return whole;
    }
#pragma omp parallel for num_threads(threads) schedule(dynamic, 1) reduction(&& : whole)
    for (int64_t k = 0; k < count; ++k) {
        NoDenormals guard;
        whole = piece(k) && whole;
    }
    return whole;
}

// Memory of a thread that stays from call to call: fresh pages would cost more than the work.
class Scratch {
    static constexpr int64_t page = 4096;
    float* memory = nullptr;
    int64_t size = 0;

   public:
    ~Scratch() { std::free(memory); }

    // Room for so many floats, at least one; earlier content is lost. Null if there is not enough memory.
    float* take(int64_t count) {
        if (count > size) {
            std::free(memory);
            size = 0;
            int64_t bytes = (count * static_cast<int64_t>(sizeof(float)) + page - 1) / page * page;
            memory = static_cast<float*>(std::aligned_alloc(page, bytes));
            if (memory) size = bytes / static_cast<int64_t>(sizeof(float));
        }
        return memory;
    }
};

// Intermediate results of a chain; images before they are pooled; and panels of padded images.
thread_local Scratch scratch_of_thread;
// Working memory of a convolution of one image: sums between blocks, and the band that they read.
thread_local Scratch staged_of_thread;

}  // namespace
