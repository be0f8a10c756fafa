// A sparse linear layer for one sample: the product of a matrix and a vector (SpMV).
//
// Each weight is read once, from memory if the layer is large; its input may be anywhere. Columns are
// taken in blocks, whose part of the input fits the first level of the cache. A vector holds a weight of each of several
// rows: with the weights of one row in it, adding its lanes up and the few weights left over at the end of each row took
// half the time of rows of ten weights, and a seventh of rows of 300.

#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <utility>

#include "sparse_activations.h"
#include "sparse_step.h"
#include "sparse_threads.h"
#include "vectors.h"

namespace {

// x at as many places as a vector has lanes. Four bytes of places are read at once, two places: one by one they are loads
// that the loop waits for, and more have to be shifted apart; both take an eighth longer.
template <class Place, size_t... k>
INLINE floats gather(const float* x, const Place* places, std::index_sequence<k...>) {
    constexpr int each = 4 / sizeof(Place), bits = 8 * sizeof(Place);
    uint32_t words[width / each];
    std::memcpy(words, places, sizeof words);
    return floats{x[static_cast<Place>(words[k / each] >> (k % each * bits))]...};
}

// value · x[place], and zero if the value is zero, even if x is NaN: rows are padded with zeros at their end.
template <class Place, class Values, class Lanes>
INLINE floats product(const Place* places, Values values, int64_t j, const float* x, Lanes lanes) {
    floats value = values.run(j, lanes), found = value * gather(x, places + j, lanes);
    return select(value != 0.f, found, floats{});
}

// For each of the adjacent rows, Σ value · x[place] over its part of the non-zeros from `j` to `end`. Two
// sums are computed at a time, because a single one would wait for its own results.
template <class Place, class Values>
INLINE floats multiply_slice(const Place* places, Values values, int64_t j, int64_t end, const float* x) {
    auto lanes = std::make_index_sequence<width>();
    floats sums[2] = {};
    for (; j + 2 * width <= end; j += 2 * width) {
        values.expect(j);
        __builtin_prefetch(places + j + ahead);
#pragma GCC unroll 2
        for (int k = 0; k < 2; ++k) sums[k] += product(places, values, j + k * width, x, lanes);
    }
    for (; j < end; j += width) sums[0] += product(places, values, j, x, lanes);
    return sums[0] + sums[1];
}

// y = activation(weight · x + bias + residual); `residual` may be null. Threads share the segments of rows.
void multiply_vector(const Step& step, const float* x, const float* residual, float* y, int threads) {
    with_types(step, [&](auto places, auto values) {
        auto segment = [&](int64_t s) __attribute__((always_inline)) {
            int64_t from = s * step.segment, count = std::min(step.segment, step.rows - from);
            for (int64_t b = 0; b < step.blocks; ++b) {
                const int32_t* order = step.order + (s * step.blocks + b) * step.segment;
                const int32_t* starts = step.starts + (s * step.blocks + b) * step.slices();
                for (int64_t k = 0; k < count; k += width, ++starts) {
                    floats sums = multiply_slice(places, values, starts[0], starts[1], x + b * step.block);
                    for (int64_t i = 0; i < std::min(width, count - k); ++i) {
                        int32_t r = order[k + i];
                        y[r] = (b ? y[r] : step.bias[r]) + sums[i];
                    }
                }
            }
            finish(y + from, residual ? residual + from : nullptr, count, step.activation, y + from);
            return true;
        };
        over_pieces(step.segments(), step.weights() < parallel_min ? 1 : threads, segment);
    });
}

}  // namespace
