// A sparse linear layer for one sample: the product of a matrix and a vector (SpMV).
//
// Each weight is read once, and from memory if the layer is large; its partner is anywhere in the input. Columns are
// taken in blocks, whose part of the input fits the first level of the cache.

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

// x at as many places as a vector has lanes. Eight bytes of places are read at once: loads are what the loop waits for.
template <class Place, size_t... k>
INLINE floats gather(const float* x, const Place* places, std::index_sequence<k...>) {
    constexpr int each = 8 / sizeof(Place), bits = 8 * sizeof(Place);
    uint64_t words[width / each];
    std::memcpy(words, places, sizeof words);
    return floats{x[static_cast<Place>(words[k / each] >> (k % each * bits))]...};
}

// The sum of all lanes, by halves.
INLINE float total(floats x) {
#pragma GCC unroll 4
    for (int64_t half = width / 2; half > 0; half /= 2) {
        ints other = {};
        for (int64_t k = 0; k < half; ++k) other[k] = static_cast<int>(k + half);
        x += shuffled(x, x, other);
    }
    return x[0];
}

// Σ value · x[place], over the non-zeros from `j` to `end`.
template <class Place, class Values>
INLINE float dot(const Place* places, Values values, int64_t j, int64_t end, const float* x) {
    auto lanes = std::make_index_sequence<width>();
    floats first = {}, second = {};
    for (; j + 2 * width <= end; j += 2 * width) {
        values.expect(j);
        __builtin_prefetch(places + j + ahead);
        first += values.run(j, lanes) * gather(x, places + j, lanes);
        second += values.run(j + width, lanes) * gather(x, places + j + width, lanes);
    }
    if (j + width <= end) {
        first += values.run(j, lanes) * gather(x, places + j, lanes);
        j += width;
    }
    float sum = total(first + second);
    for (; j < end; ++j) sum += values.at(j) * x[places[j]];
    return sum;
}

// y = activation(weight · x + bias + residual); `residual` may be null. Threads share the segments of rows.
void multiply_vector(const Step& step, const float* x, const float* residual, float* y, int threads) {
    with_types(step, [&](auto places, auto values) {
        auto segment = [&](int64_t s) __attribute__((always_inline)) {
            for (int64_t b = 0; b < step.blocks; ++b)
                over_rows(step, s, b, [&](int64_t r, int64_t begin, int64_t end) __attribute__((always_inline)) {
                    y[r] = (b ? y[r] : step.bias[r]) + dot(places, values, begin, end, x + b * step.block);
                });
            int64_t from = s * step.segment, count = std::min(step.segment, step.rows - from);
            finish(y + from, residual ? residual + from : nullptr, count, step.activation, y + from);
            return true;
        };
        over_pieces(step.segments(), step.weights() < parallel_min ? 1 : threads, segment);
    });
}

}  // namespace
