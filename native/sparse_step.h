// A layer as the sparse kernels read it: its shape, and its weights in the order in which they are multiplied.

#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>

#include "vectors.h"

namespace {

enum Kind : int64_t { linear = 0, convolution = 1, depthwise = 2 };
enum Activation : int64_t { none, relu, relu6, gelu, gelu_tanh, silu, hardswish };
// Up to here activations only clamp, which costs nothing where results are written.
constexpr int64_t last_clamp = relu6;

}  // namespace

// One layer, as secateur/run/kernels/bindings.py lays it out: field by field the same there.
struct Step {
    int64_t kind, activation;
    int64_t rows;    // units, or filters
    int64_t inputs;  // features, or channels
    // Rows are taken in segments whose sums stay in the cache, columns (or channels) in blocks, and within both the
    // rows in the order of how many non-zeros they have there, so that the processor can predict where loops end. The
    // i-th row of segment s in block b is number k = (s·blocks + b)·segment + i: row order[k], non-zeros starts[k] to
    // starts[k+1]; or, where sums are turned, starts[k·(turns+1) + g] to the next for its group g. For a product with
    // one vector `side` rows are interleaved, as many as a vector has lanes: then starts are those of slices of so many
    // rows, (segment + side − 1) / side of them for each s and b, and in a slice the first non-zeros of all its rows
    // come first, then the second ones; shorter rows have zeros at their end.
    int64_t blocks, block, segment;  // how many blocks, and the sizes of both
    int64_t side;
    const int32_t* order;
    const int32_t* starts;
    const void* places;  // uint16_t, or int32_t if wide; in a linear layer counted from the first column of the block
    int64_t wide;
    const float* values;
    const uint8_t* codes;  // or the value is table[codes[j]], where `values` is null
    const float* table;
    const float* bias;
    // Of convolutions only. Weights are offsets into planes, one for each channel, or for each phase of each: `plane`
    // is how many floats stand from one to the next, `pitch` from one row to the next. A plane has `plane_rows` rows:
    // those of the image, or of the padded one, or as many of them as a band of output rows reads. Zeros on the left of
    // a row may be those on the right of the row before; behind the last row there are some, too.
    int64_t height, width, out_height, out_width;
    int64_t stride_y, stride_x, pad_y, pad_x;
    int64_t plane_rows, pitch, plane, band;
    int64_t packs;        // whether planes are those of a slab, and not the image itself
    int64_t tile;         // how many adjacent vectors of a row of the result are in a tile; 0: there are no tiles
    int64_t tile_rows;    // and how many rows; lower areas are computed row by row, unless sums are shifted
    int64_t span;         // columns of the result that are computed from one slab
    int64_t turns;        // how often sums are shifted by a pixel while they are computed; 0: loads are shifted instead
    int64_t slab_blocks;  // how many blocks of channels are in a slab at once
    int64_t phase_count;
    const int32_t* phases;      // (y, x, columns of its rows that are read) of each phase that a weight reads
    int64_t pool, pool_stride;  // pool 0: none
    int64_t pooled_height, pooled_width;
    // Of depthwise convolutions only, whose `values` are all weights, filter by filter.
    int64_t filter_height, filter_width;

    int64_t features_in() const { return kind == linear ? inputs : inputs * height * width; }
    int64_t features_out() const { return kind == linear ? rows : rows * pooled_height * pooled_width; }
    // Pixels from first to last. Rows of a strip stand closer than those of the result.
    int64_t run_length() const { return (out_height - 1) * std::max(pitch, out_width) + out_width; }
    int64_t slab_channels() const { return std::min(slab_blocks * block, inputs); }
    int64_t vectors() const { return (span + turns + ::width - 1) / ::width; }  // of a row of the result
    int64_t groups() const { return turns + 1; }                                // of the non-zeros of a row
    int64_t segments() const { return (rows + segment - 1) / segment; }
    int64_t slices() const { return (segment + side - 1) / side; }  // of a segment in a block
    int64_t weights() const {
        if (kind == depthwise) return rows * filter_height * filter_width;
        return starts[segments() * blocks * slices() * groups()];
    }
    // The segment at which share k of n nearly equal ones begins.
    int64_t cut(int64_t k, int64_t n) const { return segments() * k / n; }
};

namespace {

// Calls body(row, starts, later) for each row of a segment, with where each group of its non-zeros in a block starts and
// the last one ends, if rows are not interleaved; `later` is a row that comes soon. A body should hold copies of all it
// needs: the compiler must assume that storing a vector may change anything, and reads values behind references again
// after every store. Rows of three weights took 70 cycles that way, and take 48.
template <class Body>
INLINE void over_rows(const Step& step, int64_t segment, int64_t block, Body body) {
    constexpr int64_t lead = 8;
    int64_t first = (segment * step.blocks + block) * step.segment;
    int64_t count = std::min(step.segment, step.rows - segment * step.segment);
    const int32_t* order = step.order + first;
    int64_t groups = step.groups();
    const int32_t* starts = step.starts + first * groups;
    for (int64_t k = 0; k < count; ++k, starts += groups)
        body(order[k], starts, order[std::min(k + lead, count - 1)]);
}

// How many weights ahead a product with one vector prefetches: they come from memory, and the hardware prefetcher stops
// at page boundaries. At 0.4 ns a weight this is 200 ns, twice the latency of memory; 37 million weights at 3.2 % density,
// more than any cache holds, take 5 % longer with 0, 128 or 2,048.
constexpr int64_t ahead = 512;

// The values of weights: a number each, or a code each and a table. `run` gives as many as a vector has lanes.
struct Own {
    const float* values;
    INLINE float at(int64_t j) const { return values[j]; }
    INLINE void expect(int64_t j) const { __builtin_prefetch(values + j + ahead); }
    template <size_t... k>
    INLINE floats run(int64_t j, std::index_sequence<k...>) const {
        return load(values + j);
    }
};

struct Shared {
    const uint8_t* codes;
    const float* table;
    INLINE float at(int64_t j) const { return table[codes[j]]; }
    INLINE void expect(int64_t j) const { __builtin_prefetch(codes + j + ahead); }
    template <size_t... k>
    INLINE floats run(int64_t j, std::index_sequence<k...>) const {
        return floats{table[codes[j + k]]...};
    }
};

// Calls body(places, values) with the types that the weights of a step have.
template <class Body>
INLINE void with_types(const Step& step, Body body) {
#ifdef SECATEUR_ONE_TYPE  // a quarter of the kernels, for slow builds such as those with sanitizers
    body(static_cast<const int32_t*>(step.places), Own{step.values});
#else
    auto with_values = [&](auto values) {
        if (step.wide)
            body(static_cast<const int32_t*>(step.places), values);
        else
            body(static_cast<const uint16_t*>(step.places), values);
    };
    if (step.values)
        with_values(Own{step.values});
    else
        with_values(Shared{step.codes, step.table});
#endif
}

}  // namespace
