// The pixels of a sparse convolution that are computed together, and the kernels that compute them.
//
// The kernels are templates over types and sizes, hundreds of them: sparse_kernels.h has them, and three sources compile
// them at the same time, one for each kind of weights.

#pragma once

#include <algorithm>
#include <cstdint>

#include "sparse_step.h"
#include "sparse_sums.h"
#include "vectors.h"

// Pixels that are computed together: `count` of them, which are adjacent from `first` on in the slab, and as many in each
// of the rows below, if it is a tile. In the result they begin at `to`. If `straight`, they are adjacent there, too, and
// vectors are written as they are; if not, they begin in column `column` of a row of the slab, and those between
// rows are dropped. `number` counts the runs of an area.
struct Run {
    int64_t first, count, to, column;
    bool straight;
    int64_t number;
};

// Rows and columns of the result that are computed from one slab: `lines` rows from `top` on, and columns from `left` on.
struct Area {
    int64_t top, lines, left;
};

// A row of the image in several channels, one for each row of weights: row r prefetches that of channel r, so that it is
// in the cache when the next slab is packed.
struct Ahead {
    const float* at = nullptr;  // the row in the first of the channels; null: nothing is prefetched
    int64_t plane = 0;          // from a channel to the next
    int64_t last = 0;           // channel, whose row is prefetched again if there are more rows of weights

    template <int vectors>
    INLINE void ask(int64_t r) const {
        const float* row = at + std::min(r, last) * plane;
        for (int i = 0; i < vectors * width; i += 16) __builtin_prefetch(row + i);
    }
};

// The rows of the image that the slab for output rows from `top` and columns from `left` on reads, and the slabs above and
// on its left did not, if the stride is one. They are not in the cache: prefetched one after the other while the previous
// slab is summed, VGG's 64 × 224 × 224 and 128 × 112 × 112 take 4 to 9 % less.
class Next {
    const Step& step;
    const float* x = nullptr;
    int64_t first = 0, rows = 0, column = 0;

   public:
    explicit Next(const Step& step) : step(step) {}  // nothing

    Next(const Step& step, const float* x, int64_t top, int64_t left)
        : step(step), x(x), first(top - step.pad_y), column(left - step.pad_x) {
        int64_t stop = std::min(first + step.plane_rows, step.height);
        if (top > 0) first += step.plane_rows - step.band;
        if (left > 0) column += step.phases[2] - step.span;
        first = std::max<int64_t>(first, 0);
        column = std::clamp<int64_t>(column, 0, step.width - 1);
        rows = std::max<int64_t>(stop - first, 0);
    }

    // The k-th part: a row of as many channels as there are rows of weights, then the next one; and after all rows,
    // those of other channels.
    Ahead part(int64_t k) const {
        int64_t plane = step.height * step.width, channel = rows ? k / rows * step.rows : step.inputs;
        if (channel >= step.inputs) return {};
        const float* at = x + channel * plane + (first + k % rows) * step.width + column;
        return {at, plane, std::min(step.inputs - channel, step.rows) - 1};
    }
};

// What is read and written while a slab is in use: it holds the blocks of channels from `first` to `stop`.
struct Work {
    const float* slab;
    int64_t first, stop;
    const Next& next;  // slab, part of whose image is prefetched meanwhile
    const float* residual;
    float* out;
    int64_t from, to;  // segments of the filters
    // Where sums wait for the next block: those of one run and segment take `each` floats, and all of them wait there at
    // once if the next block comes with another slab.
    float* staged;
    int64_t each;
    bool all_wait;
};

// Sums an area: for weights of 16-bit places and a value each, of 32-bit places and a value each, and for those that
// share values, with either.
void convolve_narrow(const Step& step, const Area& area, const Work& work);
void convolve_wide(const Step& step, const Area& area, const Work& work);
void convolve_shared(const Step& step, const Area& area, const Work& work);

namespace {

// Calls body(rows, columns, run) for the tiles of an area. Those at the end overlap the others: the common pixels are
// computed twice.
template <class Body>
INLINE void over_tiles(const Step& step, const Area& area, Body body) {
    int64_t columns = step.tile, rows = step.tile_rows, vectors = step.vectors();
    if (rows > area.lines) rows = 1;
    int64_t across = (vectors + columns - 1) / columns, down = (area.lines + rows - 1) / rows;
    for (int64_t number = 0; number < across * down; ++number) {
        int64_t row = std::min(number / across * rows, area.lines - rows);
        int64_t column = std::min(number % across * columns, vectors - columns) * width;
        int64_t count = std::min(columns * width, step.span - column);
        int64_t to = (area.top + row) * step.out_width + area.left + column;
        body(rows, columns, Run{row * step.pitch + column, count, to, column, step.activation <= last_clamp, number});
    }
}

// The same for pixels that are counted along the rows: a run is a single row, of an even number of vectors, so that two do
// not write to the same line of the cache.
template <class Body>
INLINE void over_rows_of_pixels(const Step& step, const Area& area, Body body) {
    int64_t length = (area.lines - 1) * step.pitch + step.out_width;
    int64_t vectors = (length + width - 1) / width, runs = (vectors + widest - 1) / widest;
    int64_t each = ((vectors + runs - 1) / runs + 1) / 2 * 2, number = 0;
    bool straight = step.pitch == step.out_width && length >= width && step.activation <= last_clamp;
    for (int64_t begin = 0; begin < vectors; begin += each) {
        int64_t end = std::min(begin + each, vectors);
        int64_t at = std::min(begin * width, std::max<int64_t>(length - width, 0));  // the last is a vector, or more
        int64_t row = at / step.pitch, column = at - row * step.pitch;
        int64_t to = (area.top + row) * step.out_width + std::min(column, step.out_width);
        body(1, end - begin, Run{at, std::min(end * width, length) - at, to, column, straight, number++});
    }
}

template <class Body>
INLINE void over_runs(const Step& step, const Area& area, Body body) {
    step.tile ? over_tiles(step, area, body) : over_rows_of_pixels(step, area, body);
}

}  // namespace
