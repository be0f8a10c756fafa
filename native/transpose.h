// A square of numbers, transposed without leaving the vector registers.

#pragma once

#include <cstdint>

#include "vectors.h"

namespace {

// A vector of these numbers, where vectors have eight; elsewhere it only has to compile.
template <class... Numbers>
INLINE ints eight(Numbers... numbers) {
    const int all[] = {numbers...};
    ints made = {};
    for (int k = 0; k < width; ++k) made[k] = all[k % 8];
    return made;
}

// Transposes a square of as many vectors as they have lanes.
INLINE void transpose(floats* rows) {
    floats mixed[width];
    if constexpr (width == 8) {
        // Pairs, pairs of pairs and halves: shuffles that a processor with vectors of eight has as single instructions.
        const ints low = eight(0, 8, 1, 9, 4, 12, 5, 13), high = eight(2, 10, 3, 11, 6, 14, 7, 15);
        const ints first = eight(0, 1, 8, 9, 4, 5, 12, 13), last = eight(2, 3, 10, 11, 6, 7, 14, 15);
        const ints left = eight(0, 1, 2, 3, 8, 9, 10, 11), right = eight(4, 5, 6, 7, 12, 13, 14, 15);
#pragma GCC unroll 4
        for (int i = 0; i < 8; i += 2) {
            mixed[i] = shuffled(rows[i], rows[i + 1], low);
            mixed[i + 1] = shuffled(rows[i], rows[i + 1], high);
        }
#pragma GCC unroll 2
        for (int i = 0; i < 8; i += 4)
#pragma GCC unroll 2
            for (int k = 0; k < 2; ++k) {
                rows[i + 2 * k] = shuffled(mixed[i + k], mixed[i + k + 2], first);
                rows[i + 2 * k + 1] = shuffled(mixed[i + k], mixed[i + k + 2], last);
            }
#pragma GCC unroll 4
        for (int i = 0; i < 4; ++i) {
            mixed[i] = shuffled(rows[i], rows[i + 4], left);
            mixed[i + 4] = shuffled(rows[i], rows[i + 4], right);
        }
#pragma GCC unroll 8
        for (int i = 0; i < 8; ++i) rows[i] = mixed[i];
        return;
    }
    // Interleaving the first half of the rows with the second, log₂ width times, moves element (i, j) to (j, i).
    ints low, high;
    for (int k = 0; k < width; ++k) {
        low[k] = k / 2 + (k % 2) * static_cast<int>(width);
        high[k] = low[k] + static_cast<int>(width) / 2;
    }
#pragma GCC unroll 4
    for (int64_t size = 1; size < width; size *= 2) {
#pragma GCC unroll 16
        for (int64_t i = 0; i < width / 2; ++i) {
            mixed[2 * i] = shuffled(rows[i], rows[i + width / 2], low);
            mixed[2 * i + 1] = shuffled(rows[i], rows[i + width / 2], high);
        }
#pragma GCC unroll 16
        for (int64_t i = 0; i < width; ++i) rows[i] = mixed[i];
    }
}

}  // namespace
