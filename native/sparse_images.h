// A sparse convolution of one image, directly: nothing is unfolded, and each weight is an offset into the image.
//
// A vector register holds neighbouring pixels, and several are summed together: those of a tile, which has a few
// rows; or, where rows are short, of pixels that are counted along the rows of the padded image, so that those that fall
// between two rows of the result are computed and dropped. With a stride s the padded image is split into s × s phases,
// in each of which neighbours were s apart.
//
// The result is computed in bands of rows and, if rows are long, in strips of columns. The part of the image that such an
// area reads is padded and split just before, all channels or some blocks of them at a time, into a thread-local slab that
// fits the L2 cache. An image that needs neither is read in place, if its planes are aligned like vectors or alignment
// does not matter.

#pragma once

#include <algorithm>
#include <cstdint>

#include "sparse_runs.h"
#include "sparse_slab.h"
#include "sparse_step.h"
#include "sparse_sums.h"
#include "sparse_threads.h"
#include "vectors.h"

namespace {

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
    int64_t last_left, last_top;  // the start of the last strip, and the last start of a band

   public:
    int64_t areas, shares;

    Pieces(const Step& step, int threads)
        : band(step.band), height(step.out_height), strips((step.out_width + step.span - 1) / step.span),
          span(step.span), last_left(step.out_width - step.span) {
        // An image that is read in place has bands only for the threads: always eight, whatever their number, because
        // the order of sums changes where runs end. Each should fill a run, and even one row must fill a vector.
        if (!step.packs) {
            bool large = step.run_length() >= 8 * widest * width && step.out_width >= width;
            band = large ? (height + 7) / 8 : height;
            while (band < height && band * step.pitch % 16) ++band;  // each starts at a cache line
        }
        // A band has at least as many rows as a shifted tile. Where bands or strips overlap, pixels are computed
        // twice.
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

void sum_area(const Step& step, const Area& area, const Work& work) {
#ifdef SECATEUR_ONE_TYPE
    convolve_wide(step, area, work);
#else
    (step.codes ? convolve_shared : step.wide ? convolve_wide : convolve_narrow)(step, area, work);
#endif
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
        // Slabs of narrow strips leave room in the cache for the data that the thread packs next.
        int64_t later = k + threads;
        bool asks = !step.turns && step.span < step.out_width && step.phase_count && pieces.shares == 1 && later < pieces.areas;
        Next next = asks ? Next(step, x, pieces.area(later).top, pieces.area(later).left) : Next(step);
        for (int64_t b = 0; b < step.blocks; b += step.slab_blocks) {
            int64_t stop = std::min(b + step.slab_blocks, step.blocks);
            const float* slab = step.packs ? packed : x + area.top * step.pitch;
            if (step.packs) pack_area(step, x, area.top, area.left, b, stop, packed);
            sum_area(step, area, Work{slab, b, stop, next, residual, out, from, to, staged, each, all_wait});
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
