// A sparse convolution of one image, directly: nothing is unfolded, and each weight is an offset into the image.
//
// A vector register holds neighbouring pixels, and some of them are summed side by side: those of a tile, which has a few
// rows; or, where rows are short, of pixels that are counted along the rows of the padded image, so that those that fall
// between two rows of the result are computed and dropped. With a stride s the padded image is split into s × s phases,
// in each of which neighbours were s apart.
//
// The result is made in bands of rows, and where these are long in strips of columns. What such an area reads of the image
// is padded and split just before, all channels or some blocks of them at a time, into a slab of the thread's own that
// fits the second level of the cache. An image that needs neither is read where it stands, if its planes begin as vectors do
// or that does not matter.

#pragma once

#include <algorithm>
#include <cstdint>

#include "sparse_activations.h"
#include "sparse_slab.h"
#include "sparse_step.h"
#include "sparse_sums.h"
#include "sparse_threads.h"
#include "vectors.h"

namespace {

// Pixels that are computed together: `count` of them, which stand side by side from `first` on in the slab, and as many in
// each of the rows below, if it is a tile. In the result they begin at `to`. If `straight`, they stand side by side there,
// too, and vectors are written as they are; if not, they begin in column `column` of a row of the slab, and those between
// rows are dropped. `number` counts the runs of an area.
struct Run {
    int64_t first, count, to, column;
    bool straight;
    int64_t number;
};

// Rows and columns of the result that are made from one slab: `lines` rows from `top` on, and columns from `left` on.
struct Area {
    int64_t top, lines, left;
};

// Writes sums that stand side by side in the result, too, by the vector; the last goes over the one before it.
INLINE void write_piece(const float* sums, const float* residual, int64_t length, floats least, float* out) {
    auto write = [&](int64_t j) __attribute__((always_inline)) {
        floats sum = residual ? load(sums + j) + load(residual + j) : load(sums + j);
        store(out + j, select(sum < least, least, sum));
    };
    for (int64_t j = 0; j < length - width; j += width) write(j);
    write(length - width);
}

// Writes the sums of a run that is not straight to their places.
void write_run(const Step& step, const Run& run, const float* sums, const float* residual, float* out) {
    int64_t column = run.column, to = run.to, pitch = step.pitch, out_width = step.out_width, count = run.count;
    int64_t activation = step.activation;
    floats least = all_lanes(least_of(activation));
    for (int64_t at = 0; at < count;) {
        int64_t stop = std::min(at + pitch - column, count);
        int64_t length = std::min(stop - at, out_width - column);
        const float* added = residual ? residual + to : nullptr;
        if (length >= width && activation <= relu)
            write_piece(sums + at, added, length, least, out + to);
        else if (length > 0)
            finish(sums + at, added, length, activation, out + to);
        to += std::max<int64_t>(length, 0);
        at = stop;
        column = 0;
    }
}

// Results of so many numbers come from far away before they are written, and are asked for a few rows early: unasked,
// 64 × 224 × 224 take 5 to 7 % longer, 256 × 56 × 56 4 %; smaller ones are in some cache, and take up to 3 % less. So do
// those of images that are read where they stand (10 %), whose results are written in longer pieces.
constexpr int64_t far_floats = 3 << 18;

bool asks_for_result(const Step& step) {
    return step.packs && step.rows * step.out_height * step.out_width >= far_floats;
}

// Block b of segment s of the filters on one run of pixels. The first block begins with the biases, the others with
// what is `staged`, the sums of one filter after the other; if it `ends`, they go to the result, which begins at `to`
// with the first filter, and otherwise are staged again. `added` may be null, and is the residual there. If it `asks`,
// it does so for what is `ahead`.
// With `turned` sums, weights are in groups by how far they look aside, the farthest first, and all read the pixels that
// stand where a vector begins; between two groups sums move by one pixel. A load across two lines of the cache takes twice
// as long as another, and with AVX-512 two of three loads would be such.
template <int rows, int columns, bool begins, bool ends, bool asks, bool turned, class Place, class Values>
INLINE void convolve_block(const Step& step, const Place* places, Values values, const float* base, int64_t last,
                           int64_t s, int64_t b, float* staged, const float* added, float* to, int64_t rest,
                           Ahead ahead) {
    constexpr int vectors = rows * columns;
    floats least = all_lanes(least_of(step.activation));
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
        IN_REGISTERS for (int i = 0; i < vectors; ++i)
            sums[i] = begins ? all_lanes(bias[r]) : turned ? floats{} : load(own + i * width);
        auto add = [=](floats* to, int64_t g) __attribute__((always_inline)) {
            if (turned)  // rows of the slab are as long as those of a tile
                accumulate<1, vectors, 1>(to, places, values, starts[g], starts[g + 1], base, 0, (vectors - 1) * width);
            else
                accumulate<rows, columns, 1>(to, places, values, starts[g], starts[g + 1], base, pitch, last);
        };
        add(sums, 0);
        if (turned)
            for (int64_t g = 1; g <= turns; ++g) {
                turn<rows, columns>(sums);
                add(sums, g);
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
        IN_REGISTERS for (int i = 0; i < vectors; ++i) sums[i] = select(sums[i] < least, least, sums[i]);
        IN_REGISTERS for (int i = 0; i < vectors; ++i)
            if (!is_part(i))
                store(out + place(i), sums[i]);
            else if (columns > 1 || has_masks)
                store_part(out + place(i), sums[std::max(i - 1, 0)], sums[i], rest);
            else
                store(out + place(i), sums[i], rest);
    });
}

// What is read and written while a slab is there: the blocks of channels from `first` to `stop` stand in it.
struct Work {
    const float* slab;
    int64_t first, stop;
    const Next& next;  // slab, of whose image some is asked for meanwhile
    const float* residual;
    float* out;
};

// Segment s of the filters on one run of pixels. `staged` keeps their sums from block to block.
template <int rows, int columns, class Place, class Values>
INLINE void convolve_run(const Step& step, const Place* places, Values values, const Work& work, const Run& run,
                         int64_t s, float* staged) {
    // A kernel of its own asks: every other would take up to 10 % longer with a few instructions more for each row.
    constexpr bool may_ask = rows > 1 && columns == longest_tile;
    int64_t plane = step.out_height * step.out_width;
    // The last vector stands behind the one before it and is written in part, or else repeats some of its pixels.
    bool in_part = step.turns || (has_masks && step.packs);
    int64_t last = in_part ? (columns - 1) * width : std::max<int64_t>(run.count - width, 0), rest = run.count - last;
    const float *base = work.slab + run.first, *residual = work.residual;
    const float* added = residual ? residual + run.to : nullptr;
    float* to = work.out + run.to;
    for (int64_t b = work.first; b < work.stop; ++b)
        with_ends(b, step.blocks, run.straight, [&](auto begins, auto ends) __attribute__((always_inline)) {
            Ahead ahead = may_ask ? work.next.part(run.number * step.blocks + b) : Ahead();
            auto sum = [&](auto asks, auto turned) __attribute__((always_inline)) {
                convolve_block<rows, columns, begins(), ends(), asks(), turned()>(
                    step, places, values, base, last, s, b, staged, added, to, rest, ahead);
            };
            if (rows > 1 && step.turns)
                sum(std::false_type(), std::bool_constant<(rows > 1)>());
            else if (may_ask && ahead.at)
                sum(std::bool_constant<may_ask>(), std::false_type());
            else
                sum(std::false_type(), std::false_type());
        });
    if (run.straight || work.stop < step.blocks) return;
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

// The largest pixel of each window of one channel; NaN is larger than any.
void pool_channel(const Step& step, const float* image, float* out) {
    for (int64_t i = 0; i < step.pooled_height; ++i)
        for (int64_t j = 0; j < step.pooled_width; ++j) {
            const float* corner = image + i * step.pool_stride * step.out_width + j * step.pool_stride;
            float most = corner[0];
            for (int64_t y = 0; y < step.pool; ++y)
                for (int64_t x = 0; x < step.pool; ++x) {
                    float value = corner[y * step.out_width + x];
                    most = value > most || value != value ? value : most;
                }
            out[i * step.pooled_width + j] = most;
        }
}

// The same for windows of 2 × 2, which a compiler can vectorise.
void pool_channel_by_two(const Step& step, const float* image, float* __restrict out) {
    auto larger = [](float a, float b) { return b > a || b != b ? b : a; };
    for (int64_t i = 0; i < step.pooled_height; ++i) {
        const float* above = image + 2 * i * step.out_width;
        const float* below = above + step.out_width;
        for (int64_t j = 0; j < step.pooled_width; ++j)
            out[i * step.pooled_width + j] =
                larger(larger(above[2 * j], above[2 * j + 1]), larger(below[2 * j], below[2 * j + 1]));
    }
}

// How a convolution is cut into pieces of work: areas of the result by shares of the filters.
class Pieces {
    int64_t band, height, strips, span;
    int64_t last_left, last_top;  // where the last strip begins, and at the latest a band

   public:
    int64_t areas, shares;

    Pieces(const Step& step, int threads)
        : band(step.band), height(step.out_height), strips((step.out_width + step.span - 1) / step.span),
          span(step.span), last_left(step.out_width - step.span) {
        // An image that is read where it stands has bands for the threads alone: eight, whatever their number, because
        // the order of sums changes where runs end. Each should fill a run, and even one row must fill a vector.
        if (!step.packs) {
            bool large = step.run_length() >= 8 * widest * width && step.out_width >= width;
            band = large ? (height + 7) / 8 : height;
            while (band < height && band * step.pitch % 16) ++band;  // each begins as a line of the cache does
        }
        // A band has as many rows as a turned tile, or more. What it has in common with another is made twice, and so are
        // strips.
        last_top = step.turns ? height - step.tile_rows : height;
        areas = (height + band - 1) / band * strips;
        // Two pieces for each thread or more, so that none waits long for the last.
        shares = std::clamp<int64_t>(threads == 1 ? 1 : (2 * threads + areas - 1) / areas, 1, step.segments());
    }

    Area area(int64_t k) const {
        int64_t top = std::min(k / strips * band, last_top);
        return {top, std::min(band, height - top), std::min(k % strips * span, last_left)};
    }
};

// Calls body(rows, columns, run) for the tiles of an area. Those at the end begin earlier than the others end: what they
// have in common is computed twice.
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
        body(rows, columns, Run{row * step.pitch + column, count, to, column, step.activation <= relu, number});
    }
}

// The same for pixels that are counted along the rows: a run is a single row, of an even number of vectors, so that two do
// not write to the same line of the cache.
template <class Body>
INLINE void over_rows_of_pixels(const Step& step, const Area& area, Body body) {
    int64_t length = (area.lines - 1) * step.pitch + step.out_width;
    int64_t vectors = (length + width - 1) / width, runs = (vectors + widest - 1) / widest;
    int64_t each = ((vectors + runs - 1) / runs + 1) / 2 * 2, number = 0;
    bool straight = step.pitch == step.out_width && length >= width && step.activation <= relu;
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

// Room for the result before it is pooled.
int64_t image_floats(const Step& step) { return step.pool ? step.rows * step.out_height * step.out_width : 0; }

// y = pool(activation(weight ∗ x + bias + residual)); `residual` may be null, and `image` has room for image_floats.
// Returns whether there was enough memory.
bool convolve(const Step& step, const float* x, const float* residual, float* y, float* image, int threads) {
    if (step.weights() * step.run_length() < parallel_min) threads = 1;
    Pieces pieces(step, threads);
    float* out = step.pool ? image : y;
    auto piece = [&](int64_t k) {
        Area area = pieces.area(k / pieces.shares);
        int64_t from = step.cut(k % pieces.shares, pieces.shares), to = step.cut(k % pieces.shares + 1, pieces.shares);
        // Sums wait for the next block: those of one run and segment, or all of them if that comes with another slab.
        int64_t each = step.segment * std::max(widest, step.tile * step.tile_rows) * width, waiting = 1;
        bool all_wait = step.slab_blocks < step.blocks;
        if (all_wait) over_runs(step, area, [&](auto, auto, auto run) { waiting = (run.number + 1) * (to - from); });
        float* staged = staged_of_thread.take(waiting * each + slab_floats(step));
        if (!staged) return false;
        float* packed = staged + waiting * each;
        // Slabs of narrow strips leave room for what the thread is likely to pack next.
        int64_t later = k + threads;
        bool asks = !step.turns && step.span < step.out_width && step.phase_count && pieces.shares == 1 && later < pieces.areas;
        Next next = asks ? Next(step, x, pieces.area(later).top, pieces.area(later).left) : Next(step);
        for (int64_t b = 0; b < step.blocks; b += step.slab_blocks) {
            int64_t stop = std::min(b + step.slab_blocks, step.blocks);
            Work work{step.packs ? packed : x + area.top * step.pitch, b, stop, next, residual, out};
            if (step.packs) pack_area(step, x, area.top, area.left, work.first, work.stop, packed);
            with_types(step, [&](auto places, auto values) {
                over_runs(step, area, [&](int64_t rows, int64_t columns, const Run& run) {
                    with_tile(rows, columns, [&](auto m, auto n) {
                        for (int64_t s = from; s < to; ++s) {
                            int64_t place = all_wait ? run.number * (to - from) + s - from : 0;
                            convolve_run<m(), n()>(step, places, values, work, run, s, staged + place * each);
                        }
                    });
                });
            });
        }
        return true;
    };
    auto pool = [&](int64_t r) {
        auto by = step.pool == 2 && step.pool_stride == 2 ? pool_channel_by_two : pool_channel;
        by(step, image + r * step.out_height * step.out_width, y + r * step.pooled_height * step.pooled_width);
        return true;
    };
    return over_pieces(pieces.areas * pieces.shares, threads, piece) &&
           (step.pool == 0 || over_pieces(step.rows, threads, pool));
}

}  // namespace
