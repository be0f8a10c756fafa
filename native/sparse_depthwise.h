// A depthwise convolution of one image: each filter reads one channel, its own. All of its weights are multiplied:
// skipping zeros as other convolutions do gains nothing until nine tenths of 3 × 3 or 5 × 5 weights are zero.
//
// Each channel is copied into a thread-local slab, band by band, with zeros around it and its columns split by their
// number modulo the stride, so that pixels that one weight meets are neighbours. A vector register holds neighbouring
// pixels of one row of the result; those of a tile, a few rows high, are summed together. Each vector of the slab is
// loaded once for all rows of a tile that read it, so that there are fewer loads than multiplications.

#pragma once

#include <algorithm>
#include <cstdint>

#include "sparse_activations.h"
#include "sparse_step.h"
#include "sparse_threads.h"
#include "vectors.h"

namespace {

constexpr int64_t most_slab_floats = 4096;  // half of a small L1 cache: the weights and the result need some of it
constexpr int highest_tile = 7;             // rows; images of networks are often 7, 14, 28, 56 or 112 high

// Where the pixels of a channel are in the slab. A row of it has a part for each phase, the columns whose number has the
// same remainder, and each part has room for a vector behind its last pixel.
struct Slab {
    int64_t phases, part, pitch;  // floats from one part to the next, and from one row to the next
    int64_t band, rows;           // rows of the result that are computed from one slab, and rows of the slab
    int64_t columns;              // of the image that are read at all

    explicit Slab(const Step& step)
        : phases(step.stride_x),
          part((step.out_width + width - 1) / width * width + (step.filter_width - 1) / phases + width),
          pitch(phases * part) {
        int64_t halo = step.filter_height - step.stride_y, fitting = (most_slab_floats / pitch - halo) / step.stride_y;
        // Bands are equally high, and have whole tiles.
        int64_t tiles = (step.out_height + highest_tile - 1) / highest_tile;
        int64_t bands = (tiles * highest_tile - 1) / std::max<int64_t>(fitting, highest_tile) + 1;
        band = std::min(step.out_height, (tiles + bands - 1) / bands * highest_tile);
        rows = (band - 1) * step.stride_y + step.filter_height;
        columns = std::clamp<int64_t>((step.out_width - 1) * phases + step.filter_width - step.pad_x, 0, step.width);
    }

    int64_t floats() const { return rows * pitch + width; }  // zeros may be written behind the last row
};

// Copies a row of the image into the slab, where there are zeros around it. Nothing is read at `limit` or behind it.
INLINE void pack_row(const Slab& slab, int64_t pad, const float* from, const float* limit, float* to) {
    int64_t j = 0;
    if (slab.phases == 1) {
        for (; j + width <= slab.columns; j += width) store(to + pad + j, load(from + j));
        if (j < slab.columns && from + j + width <= limit) {
            store(to + pad + j, first_lanes(load(from + j), slab.columns - j));
            return;
        }
    } else if (slab.phases == 2) {
        float* even = to + pad % 2 * slab.part + pad / 2;
        float* odd = to + (pad + 1) % 2 * slab.part + (pad + 1) / 2;
        for (; j + 2 * width <= slab.columns; j += 2 * width) {
            auto [one, other] = load_both(from + j);
            store(even + j / 2, one);
            store(odd + j / 2, other);
        }
        if (j < slab.columns && from + j + 2 * width <= limit) {
            auto [one, other] = load_both(from + j);
            store(even + j / 2, first_lanes(one, (slab.columns - j + 1) / 2));
            store(odd + j / 2, first_lanes(other, (slab.columns - j) / 2));
            return;
        }
    }
    for (; j < slab.columns; ++j) to[(j + pad) % slab.phases * slab.part + (j + pad) / slab.phases] = from[j];
}

// Copies what the output rows from `top` on read of a channel.
INLINE void pack_band(const Step& step, const Slab& slab, int64_t top, const float* image, const float* limit,
                      float* to) {
    for (int64_t i = 0; i < slab.rows; ++i, to += slab.pitch) {
        int64_t row = top * step.stride_y - step.pad_y + i;
        if (row >= 0 && row < step.height)
            pack_row(slab, step.pad_x, image + row * step.width, limit, to);
        else
            for (int64_t j = 0; j < slab.pitch; j += width) store(to + j, floats{});
    }
}

// Adds column `weights` of a filter, from the pixels at `from`, to the sums of a tile. A stride and a height that the
// compiler does not know are 0: then pixels are loaded again for each weight.
template <int tall, int stride, int high>
INLINE void add_column(const Step& step, const float* weights, const float* from, int64_t pitch, floats* sums) {
    if constexpr (high == 0) {
        for (int64_t k = 0; k < step.filter_height; ++k)
            IN_REGISTERS for (int r = 0; r < tall; ++r)
                sums[r] += all_lanes(weights[k * step.filter_width]) * load(from + (r * step.stride_y + k) * pitch);
    } else {
        floats factors[high];
        IN_REGISTERS for (int k = 0; k < high; ++k) factors[k] = all_lanes(weights[k * step.filter_width]);
        IN_REGISTERS for (int row = 0; row < (tall - 1) * stride + high; ++row) {
            floats pixels = load(from + row * pitch);
            IN_REGISTERS for (int k = 0; k < high; ++k) {
                int below = row - k;  // the topmost pixel that the filter reads there
                if (below >= 0 && below % stride == 0 && below / stride < tall) sums[below / stride] += factors[k] * pixels;
            }
        }
    }
}

// The rows from `first` on, `tall` of them, of channel c; `out` has room for `room` numbers.
template <int tall, int stride, int high>
INLINE void sum_tile(const Step& step, const Slab& slab, int64_t c, const float* from, Ranges range, float* out,
                     int64_t room) {
    const float* weights = step.values + c * step.filter_height * step.filter_width;
    // The last vector of a row overlaps the one before it, or is the only one, and then is followed by the next row.
    int64_t wide = step.out_width, last = std::max<int64_t>(wide - width, 0);
    for (int64_t j = 0;; j = std::min(j + width, last)) {
        floats sums[tall];
        IN_REGISTERS for (int r = 0; r < tall; ++r) sums[r] = all_lanes(step.bias[c]);
        const float* column = from + j;
        for (int64_t k = 0, phase = 0; k < step.filter_width; ++k) {
            add_column<tall, stride, high>(step, weights + k, column, slab.pitch, sums);
            ++phase;
            column += phase < slab.phases ? slab.part : 1 - (phase - 1) * slab.part;
            phase = phase < slab.phases ? phase : 0;
        }
        IN_REGISTERS for (int r = 0; r < tall; ++r) {
            floats sum = range.clamp(sums[r]);
            if (r * wide + j + width <= room)
                store(out + r * wide + j, sum);
            else
                store(out + r * wide + j, sum, wide);
        }
        if (j == last) return;
    }
}

// Band by band, and in each tile by tile; the last of both overlap the ones before.
template <int tall, int stride, int high>
NOINLINE void convolve_channel(const Step& step, const Slab& slab, int64_t c, const float* x, Ranges range, float* to,
                               float* out) {
    const float *image = x + c * step.height * step.width, *limit = x + step.inputs * step.height * step.width;
    for (int64_t top = 0;; top = std::min(top + slab.band, step.out_height - slab.band)) {
        pack_band(step, slab, top, image, limit, to);
        for (int64_t i = 0;; i = std::min(i + tall, slab.band - tall)) {
            int64_t at = (top + i) * step.out_width, room = step.out_height * step.out_width - at;
            sum_tile<tall, stride, high>(step, slab, c, to + i * step.stride_y * slab.pitch, range, out + at, room);
            if (i == slab.band - tall) break;
        }
        if (top == step.out_height - slab.band) return;
    }
}

using ConvolveChannel = void (*)(const Step&, const Slab&, int64_t, const float*, Ranges, float*, float*);

template <int stride, int high>
ConvolveChannel for_rows(int64_t rows) {
    if (rows >= highest_tile) return convolve_channel<highest_tile, stride, high>;
    return rows >= 3 ? convolve_channel<3, stride, high> : convolve_channel<1, stride, high>;
}

ConvolveChannel convolve_channel_of(const Step& step, int64_t rows) {
    switch (step.filter_height * 10 + step.stride_y) {
        case 31: return for_rows<1, 3>(rows);
        case 32: return for_rows<2, 3>(rows);
        case 51: return for_rows<1, 5>(rows);
        case 52: return for_rows<2, 5>(rows);
        case 71: return for_rows<1, 7>(rows);
        case 72: return for_rows<2, 7>(rows);
        default: return for_rows<0, 0>(rows);
    }
}

// y = activation(weight ∗ x + bias + residual), channel by channel; `residual` may be null. Returns whether there was
// enough memory.
bool convolve_depthwise(const Step& step, const float* x, const float* residual, float* y, int threads) {
    if (step.weights() * step.run_length() < parallel_min) threads = 1;
    Slab slab(step);
    bool is_simple = !residual && step.activation <= last_clamp;  // nothing follows a sum but a clamp
    Ranges range(is_simple ? step.activation : none);
    ConvolveChannel convolve_one = convolve_channel_of(step, slab.band);
    int64_t plane = step.out_height * step.out_width;
    int64_t pieces = std::min<int64_t>(threads == 1 ? 1 : 4 * threads, step.rows);
    return over_pieces(pieces, threads, [&](int64_t k) {
        float* memory = staged_of_thread.take(slab.floats());
        if (!memory) return false;
        std::fill(memory, memory + slab.floats(), 0.f);
        for (int64_t c = step.rows * k / pieces; c < step.rows * (k + 1) / pieces; ++c) {
            float* out = y + c * plane;
            convolve_one(step, slab, c, x, range, memory, out);
            if (!is_simple) finish(out, residual ? residual + c * plane : nullptr, plane, step.activation, out);
        }
        return true;
    });
}

}  // namespace
