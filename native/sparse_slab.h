// The part of an image that a band of a sparse convolution reads, padded and split: the slab.
//
// With a stride s the padded image is split into s × s phases, in each of which pixels are neighbours that were s apart.
// The slab is thread-local, and fits the L2 cache.

#pragma once

#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "sparse_step.h"
#include "sparse_sums.h"
#include "vectors.h"

namespace {

// Room for the slab, and for the vector that a short run reads past its end.
int64_t slab_floats(const Step& step) {
    return step.packs ? step.phase_count * step.slab_channels() * step.plane + width : 0;
}

// The part of one phase that a band reads, in every channel: rows of pixels, and zeros around them.
struct Part {
    int64_t first, stop;  // rows of the plane that have pixels, and
    int64_t begin, end;   // their columns that do
    int64_t columns;      // that are read at all: those behind pixels must be zero
    int64_t from;         // where in a channel of the image column 0 of row `first` would be
    int64_t stride;       // from a pixel to the next, in the image, and
    int64_t below;        // from a row to the next
    int64_t to;           // where in the slab the first channel's plane begins

    Part() = default;

    // Phase f, for the output rows from `top` and columns from `left` on. It has pixel (i, j) of its plane from row
    // (top + i)·stride_y + phase_y − pad_y and column (left + j)·stride_x + phase_x − pad_x of the image.
    Part(const Step& step, int64_t f, int64_t top, int64_t left)
        : stride(step.stride_x), below(step.stride_y * step.width) {
        const int32_t* phase = step.phases + 3 * f;
        int64_t dy = phase[0] - step.pad_y + top * step.stride_y, dx = phase[1] - step.pad_x + left * stride;
        columns = phase[2];
        // The least k ≥ 0 with k·s + d ≥ limit.
        auto least = [](int64_t limit, int64_t d, int64_t s) { return d >= limit ? 0 : (limit - d + s - 1) / s; };
        first = std::min(least(0, dy, step.stride_y), step.plane_rows);
        stop = std::clamp(least(step.height, dy, step.stride_y), first, step.plane_rows);
        begin = std::min(least(0, dx, stride), columns);
        end = std::clamp(least(step.width, dx, stride), begin, columns);
        from = dy * step.width + first * below + dx;
        to = f * step.slab_channels() * step.plane;
    }

    int64_t vectors() const { return (end - begin + width - 1) / width; }

    // Whether its rows follow each other in the image as they do in the slab.
    bool is_one_piece(int64_t pitch) const {
        return stride == 1 && begin == 0 && end == pitch && below == pitch && (stop - first) * pitch >= width;
    }

    // Whether each is a part of a vector, with zeros around it.
    bool is_short() const { return stride <= 2 && begin <= width && columns - begin <= width; }

    // Whether its rows can be packed by the vector.
    bool is_simple() const { return stride <= 2 && end - begin >= width && begin <= width && columns - end <= width; }
};

// Zeros before and behind the pixels of a row. Rows are short, and every call of memset or memcpy would cost as much as
// its work: zeros are written by the vector, and pixels over them.
INLINE void clear_ends(const Part& part, float* to) {
    if (part.begin > 0) store(to, floats{});
    if (part.columns > part.end) store(to + part.columns - width, floats{});
}

// Packs rows of `vectors` vectors, or of more where that is 0; the last is written over the one before it. With a
// number that the compiler knows, rows of 28 pixels take two thirds of the time.
template <int stride, int vectors>
INLINE void pack_rows(Part part, int64_t pitch, const float* from, float* to) {
    auto copy = [&](int64_t j) __attribute__((always_inline)) {
        store(to + j, stride == 1 ? load(from + j) : load_every_other(from + 2 * j));
    };
    for (int64_t i = part.first; i < part.stop; ++i, from += part.below, to += pitch) {
        clear_ends(part, to);
        for (int k = 0; k < vectors - 1; ++k) copy(part.begin + k * width);
        for (int64_t j = part.begin; vectors == 0 && j < part.end - width; j += width) copy(j);
        copy(part.end - width);
    }
}

// Packs two phases at once, whose columns take turns in the image: each vector of it is read once. Both have `vectors`
// vectors, and `from` is the first pixel of either.
template <int vectors>
INLINE void pack_pair(Part even, Part odd, int64_t pitch, const float* from, float* to_even, float* to_odd) {
    const float* last_even = from + 2 * (even.end - even.begin - width);
    const float* last_odd = from + 2 * (odd.end - odd.begin - width) + 1;
    for (int64_t i = even.first; i < even.stop; ++i) {
        clear_ends(even, to_even);
        clear_ends(odd, to_odd);
        for (int k = 0; k < vectors - 1; ++k) {
            auto [one, other] = load_both(from + 2 * k * width);
            store(to_even + even.begin + k * width, one);
            store(to_odd + odd.begin + k * width, other);
        }
        store(to_even + even.end - width, load_every_other(last_even));
        store(to_odd + odd.end - width, load_every_other(last_odd));
        from += even.below, last_even += even.below, last_odd += even.below, to_even += pitch, to_odd += pitch;
    }
}

// Packs rows that follow each other.
INLINE void pack_piece(const Part& part, int64_t pitch, const float* from, float* to) {
    int64_t last = (part.stop - part.first) * pitch - width;
    for (int64_t j = 0; j < last; j += width) store(to + j, load(from + j));
    store(to + last, load(from + last));
}

// Packs rows of no more pixels than a vector has lanes, where parts of vectors cost no more than whole ones.
template <int stride>
INLINE void pack_short(const Part& part, int64_t pitch, const float* from, float* to) {
    int64_t begin = part.begin, pixels = part.end - begin, all = part.columns - begin;
    int64_t reach = stride * (pixels - 1) + 1, near = std::min(reach, width);  // in the image
    from += stride * begin;
    for (int64_t i = part.first; i < part.stop; ++i, from += part.below, to += pitch) {
        floats row = load_part(from, near);
        if (stride == 2) row = every_other(row, load_part(from + width, reach - near));
        if (begin > 0) store_part(to, row, floats{}, begin);
        store_part(to + begin, row, row, all);
    }
}

// Packs rows of any shape.
void pack_one_by_one(const Part& part, int64_t pitch, const float* from, float* to) {
    for (int64_t i = part.first; i < part.stop; ++i, from += part.below, to += pitch) {
        if (part.columns < width || part.columns > 2 * width) {
            std::fill_n(to, part.columns, 0.f);
        } else {
            store(to, floats{});
            store(to + part.columns - width, floats{});
        }
        for (int64_t j = part.begin; j < part.end; ++j) to[j] = from[part.stride * j];
    }
}

// Writes zeros before and behind the rows that have pixels. Rows are written over zeros that overlap them.
INLINE void clear_around(const Step& step, const Part& part, float* plane) {
    if (part.first > 0) std::fill_n(plane, part.first * step.pitch, 0.f);
    int64_t behind = part.stop * step.pitch;
    if (part.stop == step.plane_rows && behind >= width && step.plane - behind <= width)
        store(plane + step.plane - width, floats{});
    else
        std::fill(plane + behind, plane + step.plane, 0.f);
}

// Packs one phase of a channel, whose image begins at `image` and whose plane of the first phase at `plane`.
INLINE void pack_plane(const Step& step, const Part& part, const float* image, float* plane) {
    int64_t pitch = step.pitch;
    const float* from = image + part.from;
    plane += part.to;
    clear_around(step, part, plane);
    float* to = plane + part.first * pitch;
    if (part.is_one_piece(pitch)) return pack_piece(part, pitch, from, to);
    if (has_masks && part.is_short() && part.end > part.begin)
        return part.stride == 1 ? pack_short<1>(part, pitch, from, to) : pack_short<2>(part, pitch, from, to);
    if (!part.is_simple()) return pack_one_by_one(part, pitch, from, to);
    auto by = [&](auto n) __attribute__((always_inline)) {
        if (part.stride == 1)
            pack_rows<1, n()>(part, pitch, from, to);
        else
            pack_rows<2, n()>(part, pitch, from, to);
    };
    part.vectors() > widest ? by(std::integral_constant<int, 0>()) : with_vectors(part.vectors(), by);
}

// Whether two phases of the same rows can be packed at once: their columns take turns.
bool can_pair(const Part& even, const Part& odd) {
    return even.stride == 2 && even.is_simple() && odd.is_simple() && even.vectors() == odd.vectors() &&
           even.vectors() <= widest;
}

INLINE void pack_planes(const Step& step, const Part& one, const Part& other, const float* image, float* plane) {
    bool swapped = other.from + 2 * other.begin < one.from + 2 * one.begin;
    const Part &even = swapped ? other : one, &odd = swapped ? one : other;
    float *to_even = plane + even.to, *to_odd = plane + odd.to;
    clear_around(step, even, to_even);
    clear_around(step, odd, to_odd);
    int64_t above = even.first * step.pitch;
    with_vectors(even.vectors(), [&](auto n) __attribute__((always_inline)) {
        pack_pair<n()>(even, odd, step.pitch, image + even.from + 2 * even.begin, to_even + above, to_odd + above);
    });
}

// Copies what output rows from `top` and columns from `left` on read of the image into the slab, in the channels of the
// blocks from `first` to `stop`. Phases are taken four at a time, which is all that a stride of two has, and channel by
// channel: each pixel is then read from memory once.
void pack_area(const Step& step, const float* x, int64_t top, int64_t left, int64_t first, int64_t stop, float* slab) {
    constexpr int64_t together = 4;
    int64_t channel = step.height * step.width;
    int64_t from = first * step.block, to = std::min(stop * step.block, step.inputs);
    for (int64_t f = 0; f < step.phase_count; f += together) {
        int64_t count = std::min(step.phase_count - f, together);
        Part parts[together];
        for (int64_t k = 0; k < count; ++k) parts[k] = Part(step, f + k, top, left);
        bool paired[together] = {};
        for (int64_t k = 0; k + 1 < count; ++k)
            paired[k] = step.phases[3 * (f + k)] == step.phases[3 * (f + k + 1)] && (k == 0 || !paired[k - 1]) &&
                        can_pair(parts[k], parts[k + 1]);
        for (int64_t c = from; c < to; ++c) {
            const float* image = x + c * channel;
            float* plane = slab + (c - from) * step.plane;
            for (int64_t k = 0; k < count; ++k) {
                if (paired[k]) {
                    pack_planes(step, parts[k], parts[k + 1], image, plane);
                    ++k;
                } else {
                    pack_plane(step, parts[k], image, plane);
                }
            }
        }
    }
}

}  // namespace
