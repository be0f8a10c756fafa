// The one loop of convolutions and of panels: a row of weights times adjacent numbers.
//
// A row is a list of (place, value), and sums[i] += value · base[place + i], where i counts pixels of an image or
// samples of a panel. The loop's limit is one load for each multiplication, so numbers must come from the L1
// or L2 cache: columns (or channels) are processed in blocks, and the sums of a row are kept in memory between two
// blocks.

#pragma once

#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "sparse_step.h"
#include "vectors.h"

namespace {

// Vectors that are summed together, along the rows of an image and in a tile. There are 16 registers (32 with AVX-512
// and on ARM), and the others hold the value and what sums are compared with. With eight, convolutions of 56 × 56 and
// 14 × 14 pixels take 2 to 8 % longer; tiles of 7 × 2 and 2 × 7 vectors are whole images of 56 and 14 pixels.
// secateur/run/kernels/tiling.py sizes tiles, bands and blocks by the same numbers.
constexpr int64_t widest = 12, widest_tile = 14;
constexpr int64_t longest_tile = 7;  // vectors of a tile along a row, at most

// How many rows a tile can have of so many vectors each: as many as fit, or, with AVX-512 and its 32 registers, twice as
// many. Of one vector, for images of 14 × 14 and 7 × 7 pixels, half of that.
constexpr int64_t lowest(int64_t columns) { return widest_tile / std::max<int64_t>(columns, 2); }
constexpr int64_t highest(int64_t columns) { return (width == 16 ? 2 : 1) * widest_tile / std::max<int64_t>(columns, 2); }

// The sums of each vector, every one over a part of the weights. A multiplication and addition takes four or five
// cycles, and two can start in each cycle: eight or more must be in flight, and 14 sums still fit the registers.
constexpr int sums_each(int vectors) {
    return vectors >= 8 ? 1 : vectors >= 4 ? 2 : vectors == 3 ? 3 : vectors == 2 ? 4 : 8;
}

// The position of a vector of a tile: `columns` of them are adjacent in each row, except for the last, which is at `last`
// in its row and may overlap the one before.
template <int columns>
INLINE int64_t place_in_tile(int i, int64_t pitch, int64_t last) {
    int64_t row = i / columns, column = i % columns;
    return row * pitch + (column + 1 < columns ? column * width : last);
}

// sums[i] += Σ value · base[place·scale + i], over the non-zeros from `begin` to `end`, where i goes over the vectors of a
// tile whose rows are `pitch` apart.
template <int rows, int columns, int64_t scale, class Place, class Values>
INLINE void accumulate(floats* sums, const Place* places, Values values, int64_t begin, int64_t end, const float* base,
                       int64_t pitch, int64_t last) {
    constexpr int vectors = rows * columns, side = sums_each(vectors);
    floats own[side][vectors];
    IN_REGISTERS for (int i = 0; i < vectors; ++i) own[0][i] = sums[i];
    IN_REGISTERS for (int k = 1; k < side; ++k)
        IN_REGISTERS for (int i = 0; i < vectors; ++i) own[k][i] = floats{};
    auto add = [&](floats* to, int64_t j) __attribute__((always_inline)) {
        const float* from = opaque(base + static_cast<int64_t>(places[j]) * scale);
        float value = values.at(j);
        // An address for each row: one for each vector would not fit the registers.
        IN_REGISTERS for (int i = 0; i < vectors; ++i) {
            if (i && i % columns == 0) from = opaque(from + pitch);
            to[i] += value * load(from + place_in_tile<columns>(i % columns, pitch, last));
        }
    };
    int64_t j = begin;
    for (; j + side <= end; j += side) {
        IN_REGISTERS for (int k = 0; k < side; ++k) add(own[k], j + k);
    }
    if (side > 1)
        for (; j < end; ++j) add(own[0], j);
    IN_REGISTERS for (int i = 0; i < vectors; ++i) {
        IN_REGISTERS for (int k = 1; k < side; ++k) own[0][i] += own[k][i];
        sums[i] = own[0][i];
    }
}

// Calls body(begins, ends): whether block b is the first, and whether it is the last one, if that `end`s. Both are
// constants with separate kernels; testing them in each row of weights takes 2 to 10 % longer. Weights that share values
// save memory rather than time, and have no separate kernels, so that building takes less time.
template <class Values, class Body>
INLINE void with_ends(int64_t b, int64_t blocks, bool end, Body body) {
    std::true_type yes;
    std::false_type no;
    bool ends = end && b + 1 == blocks;
    if constexpr (std::is_same_v<Values, Shared>) return body(b == 0, ends);
    if (b == 0)
        ends ? body(yes, yes) : body(yes, no);
    else
        ends ? body(no, yes) : body(no, no);
}

// Shifts the sums of a tile by one pixel to the left. The last ones of its rows are lost.
template <int rows, int columns>
INLINE void turn(floats* sums) {
    IN_REGISTERS for (int i = 0; i < rows * columns; ++i)
        sums[i] = moved_by_one(sums[i], i % columns + 1 < columns ? sums[i + 1] : sums[i]);
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

// Calls body(rows, columns) with the size of a tile, which the compiler knows: one row, or the least or the most.
template <class Body>
INLINE void with_tile(int64_t rows, int64_t columns, Body body) {
    auto tall = [&](auto n) __attribute__((always_inline)) {
        if (highest(n()) > lowest(n()) && rows > lowest(n()))
            body(std::integral_constant<int, highest(n())>(), n);
        else
            body(std::integral_constant<int, lowest(n())>(), n);
    };
    if (rows == 1) return with_vectors(columns, [&](auto n) { body(std::integral_constant<int, 1>(), n); });
    switch (columns) {
        case 1: return tall(std::integral_constant<int, 1>());
        case 2: return tall(std::integral_constant<int, 2>());
        case 3: return tall(std::integral_constant<int, 3>());
        case 4: return tall(std::integral_constant<int, 4>());
        case 5: return tall(std::integral_constant<int, 5>());
        case 6: return tall(std::integral_constant<int, 6>());
        default: return tall(std::integral_constant<int, 7>());
    }
}

}  // namespace
