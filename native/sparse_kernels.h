// The kernels of a sparse convolution of one image: a template for every size of a tile, and what follows the sums.

#pragma once

#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "sparse_activations.h"
#include "sparse_runs.h"
#include "sparse_step.h"
#include "sparse_sums.h"
#include "vectors.h"

namespace {

// Writes sums that are adjacent in the result, too, by the vector; the last one overlaps the one before it.
INLINE void write_piece(const float* sums, const float* residual, int64_t length, Ranges range, float* out) {
    auto write = [&](int64_t j) __attribute__((always_inline)) {
        floats sum = residual ? load(sums + j) + load(residual + j) : load(sums + j);
        store(out + j, range.clamp(sum));
    };
    for (int64_t j = 0; j < length - width; j += width) write(j);
    write(length - width);
}

// Writes the sums of a run that is not straight to their positions.
void write_run(const Step& step, const Run& run, const float* sums, const float* residual, float* out) {
    int64_t column = run.column, to = run.to, pitch = step.pitch, out_width = step.out_width, count = run.count;
    int64_t activation = step.activation;
    Ranges range(activation);
    for (int64_t at = 0; at < count;) {
        int64_t stop = std::min(at + pitch - column, count);
        int64_t length = std::min(stop - at, out_width - column);
        const float* added = residual ? residual + to : nullptr;
        if (length >= width && activation <= last_clamp)
            write_piece(sums + at, added, length, range, out + to);
        else if (length > 0)
            finish(sums + at, added, length, activation, out + to);
        to += std::max<int64_t>(length, 0);
        at = stop;
        column = 0;
    }
}

// Results of this size are not in the cache when they are written, and are prefetched a few rows early: without that,
// 64 × 224 × 224 take 5 to 7 % longer, 256 × 56 × 56 4 %; smaller ones are in some cache, and take up to 3 % less without.
// So do images that are read in place (10 %), whose results are written in longer pieces.
constexpr int64_t far_floats = 3 << 18;

bool asks_for_result(const Step& step) {
    return step.packs && step.rows * step.out_height * step.out_width >= far_floats;
}

// Block b of segment s of the filters on one run of pixels. The first block begins with the biases, the others with
// what is `staged`, the sums of one filter after the other; if it `ends`, they go to the result, which begins at `to`
// with the first filter, and otherwise are staged again. `added` may be null, and is the residual there. If it `asks`,
// it prefetches what is `ahead`.
// With `turned` sums, weights are grouped by their horizontal offset, the largest first, and all of them read aligned
// vectors of pixels; between two groups the sums are shifted by one pixel. A load across two cache lines takes twice as
// long as an aligned one, and with AVX-512 two of three loads would be such.
// It is not inlined: a compiler would optimise the same loops again in each function that it inlines them into, and
// building all kernels would take 1.5 times as long.
template <int rows, int columns, bool asks, bool turned, class Place, class Values, class Begins, class Ends>
NOINLINE void convolve_block(const Step& step, const Place* places, Values values, Begins begins, Ends ends,
                             const float* base, int64_t last, int64_t s, int64_t b, float* staged, const float* added,
                             float* to, int64_t rest, Ahead ahead) {
    constexpr int vectors = rows * columns;
    Ranges range(step.activation);
    int64_t pitch = step.pitch, out_width = step.out_width, plane = step.out_height * out_width;
    const float* bias = step.bias;
    bool result_is_far = asks_for_result(step);
    int64_t turns = step.turns;
    staged = opaque(staged - s * step.segment * vectors * width);
    base = opaque(base);
    over_rows(step, s, b, [=](int64_t r, const int32_t* starts, int64_t later) __attribute__((always_inline)) {
        if (asks) ahead.ask<columns>(r);
        if (!begins && !ends && starts[0] == starts[turned ? turns + 1 : 1]) return;
        float* own = opaque(staged + r * vectors * width);
        floats sums[vectors];
        if (begins)
            IN_REGISTERS for (int i = 0; i < vectors; ++i) sums[i] = all_lanes(bias[r]);
        else
            IN_REGISTERS for (int i = 0; i < vectors; ++i) sums[i] = turned ? floats{} : load(own + i * width);
        auto add = [=](floats* to, int64_t g) __attribute__((always_inline)) {
            if (turned)  // rows of the slab are as long as those of a tile
                accumulate<1, vectors, 1>(to, places, values, starts[g], starts[g + 1], base, 0, (vectors - 1) * width);
            else
                accumulate<rows, columns, 1>(to, places, values, starts[g], starts[g + 1], base, pitch, last);
        };
        for (int64_t g = 0;; ++g) {
            add(sums, g);
            if (!turned || g == turns) break;
            turn<rows, columns>(sums);
        }
        if (turned && !begins)
            IN_REGISTERS for (int i = 0; i < vectors; ++i) sums[i] += load(own + i * width);
        if (!ends) {
            IN_REGISTERS for (int i = 0; i < vectors; ++i) store(own + i * width, sums[i]);
            return;
        }
        float* out = opaque(to + r * plane);
        if (result_is_far)
            IN_REGISTERS for (int i = 0; i < rows; ++i)
                IN_REGISTERS for (int k = 0; k < columns; k += 16 / width)
                    __builtin_prefetch(to + later * plane + i * out_width + k * width, 1, 3);
        auto place = [=](int i) { return place_in_tile<columns>(i, out_width, last); };
        auto is_part = [](int i) { return (turned || has_masks) && i % columns + 1 == columns; };
        if (added)
            IN_REGISTERS for (int i = 0; i < vectors; ++i) {
                const float* from = added + r * plane + place(i);
                sums[i] += is_part(i) ? load_part(from, rest) : load(from);
            }
        IN_REGISTERS for (int i = 0; i < vectors; ++i) sums[i] = range.clamp(sums[i]);
        IN_REGISTERS for (int i = 0; i < vectors; ++i)
            if (!is_part(i))
                store(out + place(i), sums[i]);
            else if (columns > 1 || has_masks)
                store_part(out + place(i), sums[std::max(i - 1, 0)], sums[i], rest);
            else
                store(out + place(i), sums[i], rest);
    });
}

// Writes the sums of segment s of the filters on a run that is not straight to their positions.
void write_segment(const Step& step, const Work& work, const Run& run, int64_t s, int64_t rows, int64_t columns,
                   int64_t last, float* staged) {
    const float* residual = work.residual;
    int64_t plane = step.out_height * step.out_width;
    int64_t first = s * step.segment, count = std::min(step.segment, step.rows - first);
    for (int64_t i = 0; i < count; ++i)
        for (int64_t row = 0; row < rows; ++row) {
            float* own = staged + (i * rows + row) * columns * width;
            store(own + last, load(own + (columns - 1) * width));  // which may repeat pixels of the one before
            int64_t image = (first + i) * plane, at = image + run.to + row * step.out_width;
            if (step.tile)
                finish(own, residual ? residual + at : nullptr, run.count, step.activation, work.out + at);
            else
                write_run(step, run, own, residual ? residual + image : nullptr, work.out + image);
        }
}

// Segment s of the filters on one run of pixels. `staged` keeps their sums from block to block.
template <int rows, int columns, class Place, class Values>
void convolve_run(const Step& step, const Place* places, Values values, const Work& work, const Run& run,
                         int64_t s, float* staged) {
    // A separate kernel prefetches: with these instructions in each row, the others would take up to 10 % longer.
    constexpr bool may_ask = rows > 1 && columns == longest_tile;
    constexpr bool may_turn = rows > 1, must_turn = may_turn && columns == 1;  // other tiles of one vector are not laid out
    // The last vector follows the one before it and is written in part, or else overlaps it.
    bool in_part = step.turns || (has_masks && step.packs);
    int64_t last = in_part ? (columns - 1) * width : std::max<int64_t>(run.count - width, 0), rest = run.count - last;
    const float *base = work.slab + run.first, *residual = work.residual;
    const float* added = residual ? residual + run.to : nullptr;
    float* to = work.out + run.to;
    for (int64_t b = work.first; b < work.stop; ++b)
        with_ends<Values>(b, step.blocks, run.straight, [&](auto begins, auto ends) __attribute__((always_inline)) {
            Ahead ahead = may_ask ? work.next.part(run.number * step.blocks + b) : Ahead();
            auto sum = [&](auto asks, auto turned) __attribute__((always_inline)) {
                convolve_block<rows, columns, asks(), turned()>(step, places, values, begins, ends, base, last, s, b,
                                                                staged, added, to, rest, ahead);
            };
            if (must_turn || (may_turn && step.turns))
                sum(std::false_type(), std::bool_constant<may_turn>());
            else if (may_ask && ahead.at)
                sum(std::bool_constant<may_ask>(), std::false_type());
            else
                sum(std::false_type(), std::bool_constant<must_turn>());
        });
    if (!run.straight && work.stop == step.blocks) write_segment(step, work, run, s, rows, columns, last, staged);
}

// Segments of the filters on all runs of an area.
template <class Place, class Values>
INLINE void convolve_area(const Step& step, const Place* places, Values values, const Area& area, const Work& work) {
    int64_t segments = work.to - work.from;
    over_runs(step, area, [&](int64_t rows, int64_t columns, const Run& run) {
        with_tile(rows, columns, [&](auto m, auto n) {
            for (int64_t s = 0; s < segments; ++s) {
                int64_t place = work.all_wait ? run.number * segments + s : 0;
                convolve_run<m(), n()>(step, places, values, work, run, work.from + s, work.staged + place * work.each);
            }
        });
    });
}

}  // namespace
