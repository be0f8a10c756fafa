// Sparse layers for many samples at once (SpMM): a panel holds as many samples as lanes.
//
// A vector register holds one feature of several samples, and a weight is the number of a feature. Linear layers and
// convolutions are then alike, except that the weights of a convolution are relative to each of its pixels.

#pragma once

#include <algorithm>
#include <cstdint>
#include <utility>

#include "sparse_activations.h"
#include "sparse_step.h"
#include "sparse_sums.h"
#include "transpose.h"
#include "vectors.h"

namespace {

// panel[k][lane] = x[lane][k]; lanes from `samples` on are zero.
void pack_panel(const float* x, int64_t features, int64_t samples, int64_t lanes, float* panel) {
    for (int64_t group = 0; group < lanes; group += width) {
        int64_t k = 0;
        int64_t rows = std::clamp<int64_t>(samples - group, 0, width);
        const float* own = x + group * features;
        float* out = panel + group;
        for (; k + width <= features; k += width) {
            floats square[width];
            for (int64_t i = 0; i < width; ++i) square[i] = i < rows ? load(own + i * features + k) : floats{};
            transpose(square);
            for (int64_t i = 0; i < width; ++i) store(out + (k + i) * lanes, square[i]);
        }
        for (; k < features; ++k)
            for (int64_t i = 0; i < width; ++i) out[k * lanes + i] = i < rows ? own[i * features + k] : 0.f;
    }
}

// y[lane][r] = panel[r][lane] for features `from` to `to` of the samples there are.
void unpack_panel(const float* panel, int64_t stride, int64_t samples, int64_t lanes, int64_t from, int64_t to,
                  float* y) {
    for (int64_t group = 0; group < samples; group += width) {
        int64_t r = from;
        int64_t rows = std::min(samples - group, width);
        const float* own = panel + group;
        float* out = y + group * stride;
        for (; r + width <= to; r += width) {
            floats square[width];
            for (int64_t i = 0; i < width; ++i) square[i] = load(own + (r + i) * lanes);
            transpose(square);
            for (int64_t i = 0; i < rows; ++i) store(out + i * stride + r, square[i]);
        }
        for (; r < to; ++r)
            for (int64_t i = 0; i < rows; ++i) out[i * stride + r] = own[r * lanes + i];
    }
}

// Block b of segment s of a linear layer. The first block begins with the biases, the others with what the one before
// left in `out`; the last one `ends` with the activation, if that only clamps.
template <int vectors, class Place, class Values, class Begins, class Ends>
NOINLINE void multiply_block(const Step& step, const Place* places, Values values, Begins begins, Ends ends,
                             const float* base, int64_t s, int64_t b, float* out) {
    constexpr int64_t lanes = vectors * width;
    const float* bias = step.bias;
    Ranges range(step.activation);
    over_rows(step, s, b, [=](int64_t r, const int32_t* starts, int64_t) __attribute__((always_inline)) {
        int64_t begin = starts[0], end = starts[1];
        if (!begins && !ends && begin == end) return;
        float* own = out + r * lanes;
        floats sums[vectors];
        for (int i = 0; i < vectors; ++i) sums[i] = begins ? all_lanes(bias[r]) : load(own + i * width);
        accumulate<1, vectors, lanes>(sums, places, values, begin, end, base, 0, lanes - width);
        for (int i = 0; i < vectors; ++i)
            store(own + i * width, ends ? range.clamp(sums[i]) : sums[i]);
    });
}

// Segments `from` to `to` of a linear layer. Several panels side by side would read the weights of a block from memory
// only once; but then the panels do not fit the cache: eight of AlexNet's fc6 at 1024 samples took 1.4 times as long.
template <int vectors, class Place, class Values>
NOINLINE void multiply_panel(const Step& step, const Place* places, Values values, const float* panel, int64_t from,
                             int64_t to, float* out) {
    constexpr int64_t lanes = vectors * width;
    for (int64_t s = from; s < to; ++s) {
        for (int64_t b = 0; b < step.blocks; ++b)
            with_ends<Values>(b, step.blocks, true, [&](auto begins, auto ends) __attribute__((always_inline)) {
                const float* base = panel + b * step.block * lanes;
                multiply_block<vectors>(step, places, values, begins, ends, base, s, b, out);
            });
        if (step.activation > last_clamp) {
            int64_t first = s * step.segment, count = std::min(step.segment, step.rows - first);
            float* own = out + first * lanes;
            finish(own, nullptr, count * lanes, step.activation, own);
        }
    }
}

// Pads the images of a panel: pixel (i, j) goes to (i + pad_y, j + pad_x).
void pad_panel(const Step& step, const float* in, int64_t lanes, float* padded) {
    std::fill_n(padded, step.inputs * step.plane * lanes, 0.f);
    for (int64_t c = 0; c < step.inputs; ++c)
        for (int64_t i = 0; i < step.height; ++i)
            std::copy_n(in + (c * step.height + i) * step.width * lanes, step.width * lanes,
                        padded + (c * step.plane + (i + step.pad_y) * step.pitch + step.pad_x) * lanes);
}

// A convolution of a padded panel, pixel by pixel of the pooled result: pixels shared by windows are recomputed.
template <int vectors, class Place, class Values>
NOINLINE void convolve_panel(const Step& step, const Place* places, Values values, const float* in, float* out) {
    constexpr int64_t lanes = vectors * width;
    int64_t pool = std::max<int64_t>(step.pool, 1), pool_stride = step.pool ? step.pool_stride : 1;
    for (int64_t i = 0; i < step.pooled_height; ++i)
        for (int64_t j = 0; j < step.pooled_width; ++j)
            for (int64_t s = 0; s < step.segments(); ++s)
                over_rows(step, s, 0, [&](int64_t r, const int32_t* starts, int64_t) __attribute__((always_inline)) {
                    int64_t begin = starts[0], end = starts[1];
                    floats most[vectors];
                    for (int64_t p = 0; p < pool * pool; ++p) {
                        int64_t y = (i * pool_stride + p / pool) * step.stride_y;
                        int64_t x = (j * pool_stride + p % pool) * step.stride_x;
                        const float* base = in + (y * step.pitch + x) * lanes;
                        floats sums[vectors];
                        for (int v = 0; v < vectors; ++v) sums[v] = all_lanes(step.bias[r]);
                        accumulate<1, vectors, lanes>(sums, places, values, begin, end, base, 0, lanes - width);
                        for (int v = 0; v < vectors; ++v) {
                            floats value = activated(sums[v], step.activation);
                            most[v] = p == 0 ? value : select((value > most[v]) | (value != value), value, most[v]);
                        }
                    }
                    float* own = out + ((r * step.pooled_height + i) * step.pooled_width + j) * lanes;
                    for (int v = 0; v < vectors; ++v) store(own + v * width, most[v]);
                });
}

// What a chain needs for each lane of a panel: twice its most features, for what goes into a step and what comes out,
// and those of its largest padded image.
struct Room {
    int64_t features, padded = 0;

    Room(const Step* steps, int64_t count) : features(steps[0].features_in()) {
        for (int64_t k = 0; k < count; ++k) {
            features = std::max(features, steps[k].features_out());
            if (steps[k].kind == convolution) padded = std::max(padded, steps[k].inputs * steps[k].plane);
        }
    }
    int64_t all() const { return 2 * features + padded; }
};

// What a step does if a residual is added before its activation, which then follows in `add`.
Step before_residual(Step step, const float* residual) {
    if (residual) step.activation = none;
    return step;
}

// y = activation(y + residual), for features `from` to `to` of some samples; `residual` may be null.
void add(const Step& step, const float* residual, int64_t samples, int64_t from, int64_t to, float* y) {
    for (int64_t i = 0; residual && i < samples; ++i) {
        int64_t at = i * step.features_out() + from;
        finish(y + at, residual + at, to - from, step.activation, y + at);
    }
}

// Takes a panel of `samples` samples through a chain.
template <int vectors>
void run_panel(const Step* steps, int64_t count, const float* x, const float* residual, int64_t samples, float* y,
               float* scratch) {
    constexpr int64_t lanes = vectors * width;
    Room room(steps, count);
    float *in = scratch, *out = in + room.features * lanes, *padded = out + room.features * lanes;
    pack_panel(x, steps[0].features_in(), samples, lanes, in);
    const Step last = before_residual(steps[count - 1], residual);
    for (int64_t k = 0; k < count; ++k) {
        const Step& step = k + 1 < count ? steps[k] : last;
        with_types(step, [&](auto places, auto values) {
            if (step.kind == linear) {
                multiply_panel<vectors>(step, places, values, in, 0, step.segments(), out);
                return;
            }
            bool pads = step.plane_rows != step.height || step.pitch != step.width;
            if (pads) pad_panel(step, in, lanes, padded);
            convolve_panel<vectors>(step, places, values, pads ? padded : in, out);
        });
        std::swap(in, out);
    }
    int64_t features = last.features_out();
    unpack_panel(in, features, samples, lanes, 0, features, y);
    add(steps[count - 1], residual, samples, 0, features, y);
}

// Takes a panel through segments `from` to `to` of a linear layer.
template <int vectors>
void run_layer(const Step& step, const float* x, const float* residual, int64_t samples, int64_t from, int64_t to,
               float* y, float* scratch) {
    constexpr int64_t lanes = vectors * width;
    float *in = scratch, *out = in + step.inputs * lanes;
    pack_panel(x, step.inputs, samples, lanes, in);
    with_types(step, [&](auto places, auto values) {
        multiply_panel<vectors>(before_residual(step, residual), places, values, in, from, to, out);
    });
    int64_t first = from * step.segment, stop = std::min(to * step.segment, step.rows);
    unpack_panel(out, step.rows, samples, lanes, first, stop, y);
    add(step, residual, samples, first, stop, y);
}

}  // namespace
