// Threads of a sparse kernel: how they share its work, and the memory that each has of its own.

#pragma once

#include <cstdint>
#include <cstdlib>

#include "vectors.h"

namespace {

// Multiplications, fewer of which are done before another thread is awake: 2¹⁷ of them take some 6 µs in a
// convolution or a panel, and 50 µs in a product with one vector.
#ifndef SECATEUR_PARALLEL_MIN  // which the sanitizers' driver lowers
#define SECATEUR_PARALLEL_MIN (1 << 17)
#endif
constexpr int64_t parallel_min = SECATEUR_PARALLEL_MIN;

// Reads and writes denormals as zeros for as long as it lives.
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
    if (threads == 1) {  // without a word to the OpenMP runtime, which small layers feel
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

    // Room for so many floats, at least one; what was there before is lost. Null if there is not enough memory.
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

// What lies between two steps of a chain; images before they are pooled; and panels of padded images.
thread_local Scratch scratch_of_thread;
// What a convolution of one image needs meanwhile: sums that wait for the next block, and the band that they read.
thread_local Scratch staged_of_thread;

}  // namespace
