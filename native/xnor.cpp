// Products of signs on packed bits: of n signs each, n less twice the number of bits that differ.
//
// Bit k of a row is set where its k-th sign is −1; the bits behind the last sign are zero in both rows and so never
// differ. Words of the weights lie column by column, as many rows side by side as a vector has words, so that a word of
// an input meets a vector of weights, counts stay in the lanes, and nothing is added across them.

#include <cstdint>
#include <cstring>

#include "vectors.h"

namespace {

constexpr int64_t words = vector_bytes / sizeof(uint64_t);  // in a vector
constexpr int64_t inputs_at_once = 8;                       // each word of the weights is loaded for so many inputs
using Words = uint64_t __attribute__((vector_size(vector_bytes)));
using Longs = int64_t __attribute__((vector_size(vector_bytes)));
using Singles = float __attribute__((vector_size(words * sizeof(float))));

// The number of bits that are set in each word of a vector, by halves of bytes: what every machine has.
INLINE Words counted(Words x) {
    const Words one = Words{} + 0x5555555555555555u, two = Words{} + 0x3333333333333333u;
    const Words four = Words{} + 0x0f0f0f0f0f0f0f0fu;
    x -= (x >> 1) & one;
    x = (x & two) + ((x >> 2) & two);
    return (x + (x >> 4)) & four;  // eight counts of a byte each, which the caller adds up
}

// The sum of the eight bytes of each word, which takes more than a byte.
INLINE Words bytes_added(Words x) {
    const Words low = Words{} + 0x00ff00ff00ff00ffu;
    x = (x & low) + ((x >> 8) & low);
    return (x * (Words{} + 0x0001000100010001u)) >> 48;
}

template <int64_t rows>
INLINE void block(const uint64_t* inputs, int64_t stride, const uint64_t* weights, int64_t length, Words* differing) {
    Words sums[rows] = {}, part[rows] = {};
    for (int64_t k = 0; k < length; ++k) {
        const Words weight = *reinterpret_cast<const Words*>(weights + k * words);
        IN_REGISTERS for (int64_t r = 0; r < rows; ++r) part[r] += counted(weight ^ (Words{} + inputs[r * stride + k]));
        if (k % 31 == 30 || k == length - 1)  // a byte holds 31 counts of up to eight
            IN_REGISTERS for (int64_t r = 0; r < rows; ++r) sums[r] += bytes_added(part[r]), part[r] = Words{};
    }
    for (int64_t r = 0; r < rows; ++r) differing[r] = sums[r];
}

#if defined(__AVX512F__) && defined(__GNUC__)
#define HAS_POPCOUNT
#pragma GCC push_options
#pragma GCC target("avx512vpopcntdq")
template <int64_t rows>
__attribute__((target("avx512vpopcntdq"))) inline void block_popcount(
    const uint64_t* inputs, int64_t stride, const uint64_t* weights, int64_t length, Words* differing) {
    __m512i sums[rows];
    IN_REGISTERS for (int64_t r = 0; r < rows; ++r) sums[r] = _mm512_setzero_si512();
    for (int64_t k = 0; k < length; ++k) {
        const __m512i weight = _mm512_load_si512(weights + k * words);
        IN_REGISTERS for (int64_t r = 0; r < rows; ++r) {
            const __m512i input = _mm512_set1_epi64(static_cast<int64_t>(inputs[r * stride + k]));
            sums[r] = _mm512_add_epi64(sums[r], _mm512_popcnt_epi64(_mm512_xor_si512(weight, input)));
        }
    }
    IN_REGISTERS for (int64_t r = 0; r < rows; ++r) differing[r] = (Words)sums[r];
}
#pragma GCC pop_options
#endif

template <int64_t rows>
INLINE void rows_times_block(
    const uint64_t* inputs, const uint64_t* weights, int64_t length, int64_t signs, int64_t left, int64_t pitch, float* out,
    bool popcount) {
    Words differing[rows];
#ifdef HAS_POPCOUNT
    if (popcount) {
        block_popcount<rows>(inputs, length, weights, length, differing);
    } else
#endif
        block<rows>(inputs, length, weights, length, differing);
    (void)popcount;
    for (int64_t r = 0; r < rows; ++r) {
        const Longs products = signs - 2 * (Longs)differing[r];
        const Singles numbers = __builtin_convertvector(products, Singles);
        if (left == words)
            std::memcpy(out + r * pitch, &numbers, sizeof numbers);
        else
            std::memcpy(out + r * pitch, &numbers, left * sizeof(float));
    }
}

}  // namespace

// How many rows of weights lie side by side.
EXPORT int64_t secateur_xnor_lanes() { return words; }

// out (count, rows) of inputs (count, length words) and weights (⌈rows / lanes⌉, length, lanes), aligned to a vector.
// Machines that count the bits of a vector in one instruction do so, unless told not to.
EXPORT void secateur_xnor(
    const uint64_t* inputs, const uint64_t* weights, int64_t count, int64_t rows, int64_t length, int64_t signs, float* out,
    int may_popcount) {
#ifdef HAS_POPCOUNT
    const bool popcount = may_popcount && __builtin_cpu_supports("avx512vpopcntdq");
#else
    const bool popcount = may_popcount && false;
#endif
    for (int64_t first = 0; first < rows; first += words) {
        const uint64_t* part = weights + first * length;
        const int64_t left = rows - first < words ? rows - first : words;
        int64_t i = 0;
        for (; i + inputs_at_once <= count; i += inputs_at_once)
            rows_times_block<inputs_at_once>(
                inputs + i * length, part, length, signs, left, rows, out + i * rows + first, popcount);
        for (; i < count; ++i)
            rows_times_block<1>(inputs + i * length, part, length, signs, left, rows, out + i * rows + first, popcount);
    }
}

// A row of `signs` numbers to words; a bit is set where a number is negative, and −0 is not.
EXPORT void secateur_pack_signs(const float* from, int64_t count, int64_t signs, uint64_t* to) {
    const int64_t length = (signs + 63) / 64;
    for (int64_t i = 0; i < count; ++i)
        for (int64_t k = 0; k < length; ++k) {
            const float* part = from + i * signs + k * 64;
            const int64_t here = signs - k * 64 < 64 ? signs - k * 64 : 64;
            uint64_t word = 0;
            for (int64_t bit = 0; bit < here; ++bit) word |= static_cast<uint64_t>(part[bit] < 0) << bit;
            to[i * length + k] = word;
        }
}
