// The one loop of convolutions and of panels: a row of weights times numbers that stand side by side.
//
// A row is a list of (place, value), and sums[i] += value · base[place + i], where i counts pixels of an image or
// samples of a panel. The loop's limit is one load for each multiplication, so that numbers must come from the first
// or second level of the cache: columns (or channels) are taken in blocks, and the sums of a row wait in memory between
// two blocks.

#pragma once

#include <cstdint>
#include <type_traits>

#include "vectors.h"

namespace {

// Vectors that are summed side by side. There are 16 registers (32 with AVX-512 and on ARM), and the others hold the
// value and what it is multiplied with. With eight, convolutions of 56 × 56 and 14 × 14 pixels take 2 to 8 % longer.
// secateur/run/chain.py sizes bands and blocks by the same number.
constexpr int64_t widest = 12;
constexpr int64_t run_max = widest * width;  // pixels they hold

// The sums of each vector, every one over a part of the weights. A multiplication and addition takes four or five
// cycles, and two can begin in each cycle: eight or more must be under way, and 14 sums still fit the registers.
constexpr int sums_each(int vectors) {
    return vectors >= 8 ? 1 : vectors >= 4 ? 2 : vectors == 3 ? 3 : vectors == 2 ? 4 : 8;
}

// sums[i] += Σ value · base[place·scale + i], over the non-zeros from `begin` to `end`. Vectors stand side by side, but
// for the last, which stands at `last`: it may overlap the one before.
template <int vectors, int64_t scale, class Place, class Values>
INLINE void accumulate(floats* sums, const Place* places, Values values, int64_t begin, int64_t end, const float* base,
                       int64_t last) {
    constexpr int side = sums_each(vectors);
    floats own[side][vectors];
    for (int i = 0; i < vectors; ++i) own[0][i] = sums[i];
    for (int k = 1; k < side; ++k)
        for (int i = 0; i < vectors; ++i) own[k][i] = floats{};
    auto add = [&](floats* to, int64_t j) __attribute__((always_inline)) {
        const float* from = base + static_cast<int64_t>(places[j]) * scale;
        float value = values.at(j);
#pragma GCC unroll 12
        for (int i = 0; i < vectors - 1; ++i) to[i] += value * load(from + i * width);
        to[vectors - 1] += value * load(from + last);
    };
    int64_t j = begin;
    for (; j + side <= end; j += side) {
#pragma GCC unroll 8
        for (int k = 0; k < side; ++k) add(own[k], j + k);
    }
    if (side > 1)
        for (; j < end; ++j) add(own[0], j);
    for (int i = 0; i < vectors; ++i) {
        for (int k = 1; k < side; ++k) own[0][i] += own[k][i];
        sums[i] = own[0][i];
    }
}

// Calls body(begins, ends) as constants: whether block b is the first, and whether it is the last one, if that `end`s.
template <class Body>
INLINE void with_ends(int64_t b, int64_t blocks, bool end, Body body) {
    std::true_type yes;
    std::false_type no;
    bool ends = end && b + 1 == blocks;
    if (b == 0)
        ends ? body(yes, yes) : body(yes, no);
    else
        ends ? body(no, yes) : body(no, no);
}

// Calls body with a number of vectors, 1 to `widest`, that the compiler knows.
template <class Body>
INLINE void with_vectors(int64_t vectors, Body body) {
    switch (vectors) {
        case 1: return body(std::integral_constant<int, 1>());
        case 2: return body(std::integral_constant<int, 2>());
        case 3: return body(std::integral_constant<int, 3>());
        case 4: return body(std::integral_constant<int, 4>());
        case 5: return body(std::integral_constant<int, 5>());
        case 6: return body(std::integral_constant<int, 6>());
        case 7: return body(std::integral_constant<int, 7>());
        case 8: return body(std::integral_constant<int, 8>());
        case 9: return body(std::integral_constant<int, 9>());
        case 10: return body(std::integral_constant<int, 10>());
        case 11: return body(std::integral_constant<int, 11>());
        default: return body(std::integral_constant<int, 12>());
    }
}

}  // namespace
