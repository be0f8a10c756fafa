// Vectors of numbers, as wide as the machine's registers, for the kernels of θ and of sparse products.
//
// GCC and Clang have arithmetic, comparisons and shifts of such vectors as operators; a comparison gives a mask, whose
// lanes are −1 where it holds and 0 elsewhere. Everything is local to the source that includes it: there is a library
// for each level of the instruction set, each with its own vector width.

#pragma once

#include <cstdint>
#include <cstring>
#if defined(__AVX512F__)
#define HAS_MASKS
#include <immintrin.h>
#endif

#define INLINE inline __attribute__((always_inline))
#define NOINLINE __attribute__((noinline))
// Before a loop over registers: beyond 16 iterations it would not be unrolled, and registers would spill to memory.
#define IN_REGISTERS _Pragma("GCC unroll 32")
#define EXPORT extern "C" __attribute__((visibility("default")))  // all other symbols are hidden

namespace {

#if defined(__AVX512F__)
constexpr int64_t vector_bytes = 64;
#elif defined(__AVX__)
constexpr int64_t vector_bytes = 32;
#else
constexpr int64_t vector_bytes = 16;
#endif
constexpr int64_t width = vector_bytes / sizeof(float);  // lanes of a vector
using floats = float __attribute__((vector_size(vector_bytes)));
using ints = int32_t __attribute__((vector_size(vector_bytes)));
// Unaligned. A typedef, because Clang silently ignores the alignment in a `using`, and the code crashes.
typedef floats loose_floats __attribute__((aligned(4), may_alias));
static_assert(alignof(loose_floats) == 4);

// The same address, hidden from the optimizer: otherwise the compiler keeps one address for each of several adjacent
// vectors, and reads them from the stack for every row of weights.
template <class T>
INLINE T* opaque(T* address) {
    asm("" : "+r"(address));
    return address;
}

INLINE floats all_lanes(float value) { return value - floats{}; }
INLINE ints bits(floats x) { return (ints)x; }
INLINE floats from_bits(ints x) { return (floats)x; }
INLINE floats keep_where(ints mask, floats x) { return from_bits(mask & bits(x)); }
INLINE floats magnitude(floats x) { return from_bits(bits(x) & INT32_MAX); }
INLINE floats times_sign_of(floats x, floats y) { return from_bits((bits(x) & INT32_MIN) ^ bits(y)); }
INLINE floats select(ints mask, floats yes, floats no) { return mask ? yes : no; }

// Lane k is lane places[k] of one and two side by side.
INLINE floats shuffled(floats one, floats two, ints places) {
#if defined(__clang__)  // which only shuffles by constants, and finds out itself that these are constant
    floats made;
    for (int64_t k = 0; k < width; ++k) made[k] = places[k] < width ? one[places[k]] : two[places[k] - width];
    return made;
#else
    return __builtin_shuffle(one, two, places);
#endif
}

INLINE floats load(const float* from) { return *reinterpret_cast<const loose_floats*>(from); }
INLINE void store(float* to, floats x) { *reinterpret_cast<loose_floats*>(to) = x; }

#if defined(__AVX__) && !defined(__AVX512F__) && defined(__has_builtin) && __has_builtin(__builtin_shufflevector)
#define SHUFFLES_HALVES  // which registers of eight lanes do in one step, while it takes three across their halves

INLINE floats load_halves(const float* low, const float* high) {
    typedef float half __attribute__((vector_size(16), aligned(4), may_alias));
    half one = *reinterpret_cast<const half*>(low), other = *reinterpret_cast<const half*>(high);
    return __builtin_shufflevector(one, other, 0, 1, 2, 3, 4, 5, 6, 7);
}
#endif

// from[0], from[2] and so on; nothing is read behind the last of them. Half are the even ones of one vector, and half
// the odd ones of another, which begins with the last of those.
INLINE floats load_every_other(const float* from) {
#ifdef SHUFFLES_HALVES
    floats one = load_halves(from, from + 8), other = load_halves(from + 3, from + 11);
    return __builtin_shufflevector(one, other, 0, 2, 9, 11, 4, 6, 13, 15);
#else
    ints mix;
    for (int k = 0; k < width; ++k) mix[k] = 2 * k + (k >= width / 2);
    return shuffled(load(from), load(from + width - 1), mix);
#endif
}

// The lanes of one and two side by side whose numbers are even.
INLINE floats every_other(floats one, floats two) {
    ints even;
    for (int k = 0; k < width; ++k) even[k] = 2 * k;
    return shuffled(one, two, even);
}

struct Both {
    floats even, odd;
};

// from[0], from[2] and so on, and from[1], from[3] and so on.
INLINE Both load_both(const float* from) {
#ifdef SHUFFLES_HALVES
    floats one = load_halves(from, from + 8), other = load_halves(from + 4, from + 12);
    return {__builtin_shufflevector(one, other, 0, 2, 8, 10, 4, 6, 12, 14),
            __builtin_shufflevector(one, other, 1, 3, 9, 11, 5, 7, 13, 15)};
#else
    ints even, odd;
    for (int k = 0; k < width; ++k) even[k] = 2 * k, odd[k] = 2 * k + 1;
    floats one = load(from), other = load(from + width);
    return {shuffled(one, other, even), shuffled(one, other, odd)};
#endif
}

// The first `lanes` lanes; the others are read as zeros.
INLINE floats load(const float* from, int64_t lanes) {
    floats x = {};
    std::memcpy(&x, from, lanes * sizeof(float));
    return x;
}

INLINE void store(float* to, floats x, int64_t lanes) { std::memcpy(to, &x, lanes * sizeof(float)); }

// The first `lanes` lanes, and zeros in the others.
INLINE floats first_lanes(floats x, int64_t lanes) {
    ints number;
    for (int k = 0; k < width; ++k) number[k] = k;
    return keep_where(number < ints{} + static_cast<int32_t>(lanes), x);
}

// Lane k is lane k + 1 of one and two side by side.
INLINE floats moved_by_one(floats one, floats two) {
    ints places;
    for (int k = 0; k < width; ++k) places[k] = k + 1;
    return shuffled(one, two, places);
}

// The first lanes of a vector that follows another: with masks, fewer lanes take as long as all.
#ifdef HAS_MASKS
constexpr bool has_masks = true;
INLINE floats load_part(const float* from, int64_t lanes) {
    return (floats)_mm512_maskz_loadu_ps(static_cast<__mmask16>((1u << lanes) - 1), from);
}
INLINE void store_part(float* to, floats, floats x, int64_t lanes) {
    _mm512_mask_storeu_ps(to, static_cast<__mmask16>((1u << lanes) - 1), (__m512)x);
}
#else
constexpr bool has_masks = false;
INLINE floats load_part(const float* from, int64_t lanes) { return load(from, lanes); }
// Without masks the end of the previous vector is written again with it.
INLINE void store_part(float* to, floats before, floats x, int64_t lanes) {
    float both[2 * width];
    store(both, before);
    store(both + width, x);
    store(to + lanes - width, load(both + lanes));
}
#endif

}  // namespace
