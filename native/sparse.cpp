// Sparse products: what a pruned network computes, with nothing done for its zeros.
//
// A chain is a sequence of steps, each a sparse linear layer or a sparse convolution with its bias, its activation and
// its max-pooling; one call takes a batch through all of them, and what lies between two steps never leaves the cache.
// It runs in one of two ways:
//
//   sample by sample   A linear layer is a product of a sparse matrix and a vector. A convolution is direct: the image
//                      is padded once, each weight is an offset into it, and a vector register holds neighbouring pixels.
//                      Pixels are counted along the padded rows, so that one offset serves them all; those that fall
//                      between two rows are computed and dropped. With a stride s the image is first split into s × s
//                      phases, in each of which neighbours are s apart.
//   panel by panel     As many samples as lanes lie side by side, a vector register holds one feature of several of
//                      them, and a weight is the number of a feature. Linear layers and convolutions are then alike.
//
// Both ways are one loop: a row of the matrix is a list of (place, value), and sums[i] += value · base[place + i]. Its
// limit is one load for each multiplication, so the input must come from the first or second level of the cache: columns
// (or channels) are taken in blocks, and the sums of a row wait in memory between two blocks.
//
// Every sum is taken in an order that depends on the layer alone: the bits of a result do not depend on the threads.
// Denormals are read and written as zeros while a chain runs.

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <type_traits>
#include <utility>

namespace {

#define INLINE inline __attribute__((always_inline))

constexpr int64_t vector_bytes = __BIGGEST_ALIGNMENT__ < 16 ? 16 : __BIGGEST_ALIGNMENT__;
constexpr int64_t width = vector_bytes / sizeof(float);
using floats = float __attribute__((vector_size(vector_bytes)));
using loose_floats = float __attribute__((vector_size(vector_bytes), aligned(4), may_alias));
using ints = int32_t __attribute__((vector_size(vector_bytes)));

constexpr int64_t widest = 12;                    // vectors that are summed side by side
constexpr int64_t run_max = widest * width;       // pixels, or lanes, they hold
constexpr int64_t most_panels = 8;                // that share the weights of a block in the cache
#ifndef SECATEUR_PARALLEL_MIN  // which the sanitizers' driver lowers
#define SECATEUR_PARALLEL_MIN (1 << 17)
#endif
constexpr int64_t parallel_min = SECATEUR_PARALLEL_MIN;         // multiplications, fewer of which are done before a thread is awake

// Independent sums of the same pixels, to hide the four or five cycles that a multiplication and addition takes.
constexpr int chains(int vectors) { return vectors >= 8 ? 1 : vectors >= 4 ? 2 : vectors == 3 ? 3 : vectors == 2 ? 4 : 8; }

INLINE floats load(const float* from) { return *reinterpret_cast<const loose_floats*>(from); }
INLINE void store(float* to, floats x) { *reinterpret_cast<loose_floats*>(to) = x; }
INLINE floats all_lanes(float value) { return value - floats{}; }
// Lane k is that of number places[k] of the lanes of both.
INLINE floats shuffled(floats one, floats two, ints places) {
#if defined(__clang__)  // which has shuffles by constants only, and finds these to be constant by itself
    floats made;
    for (int64_t k = 0; k < width; ++k) made[k] = places[k] < width ? one[places[k]] : two[places[k] - width];
    return made;
#else
    return __builtin_shuffle(one, two, places);
#endif
}
INLINE floats select(ints mask, floats yes, floats no) { return mask ? yes : no; }

// Reads and writes denormals as zeros for as long as it lives.
class NoDenormals {
#if defined(__SSE__)
    unsigned before = __builtin_ia32_stmxcsr();

   public:
    NoDenormals() { __builtin_ia32_ldmxcsr(before | 0x8040); }
    ~NoDenormals() { __builtin_ia32_ldmxcsr(before); }
#elif defined(__aarch64__)
    uint64_t before;

   public:
    NoDenormals() {
        __asm__ volatile("mrs %0, fpcr" : "=r"(before));
        __asm__ volatile("msr fpcr, %0" : : "r"(before | uint64_t{1} << 24));
    }
    ~NoDenormals() { __asm__ volatile("msr fpcr, %0" : : "r"(before)); }
#else
   public:
    NoDenormals() {}
    ~NoDenormals() {}
#endif
    NoDenormals(const NoDenormals&) = delete;
};

// Memory of a thread that stays from call to call: fresh pages would cost more than the work.
class Scratch {
    float* memory = nullptr;
    int64_t size = 0;

   public:
    ~Scratch() { std::free(memory); }
    float* take(int64_t count) {
        if (count > size) {
            std::free(memory);
            size = 0;
            int64_t bytes = (count * static_cast<int64_t>(sizeof(float)) + 4095) / 4096 * 4096;
            memory = static_cast<float*>(std::aligned_alloc(4096, bytes));
            if (memory) size = bytes / static_cast<int64_t>(sizeof(float));
        }
        return memory;
    }
};

thread_local Scratch scratch_of_thread;  // what lies between steps, and padded images
thread_local Scratch staged_of_thread;   // sums that wait for the next block

enum Kind : int64_t { linear = 0, convolution = 1 };
enum Activation : int64_t { none = 0, relu = 1, gelu = 2, gelu_tanh = 3 };

}  // namespace

// One layer, as secateur/run/kernels.py lays it out: field by field the same there.
struct Step {
    int64_t kind, activation;
    int64_t rows;    // units, or filters
    int64_t inputs;  // features, or channels
    // Rows are taken in segments whose sums stay in the cache, columns (or channels) in blocks, and within both the rows in
    // the order of how many non-zeros they have there, so that the processor can foresee where loops end. The i-th row of
    // segment s in block b is number k = (s·blocks + b)·segment + i: row order[k], non-zeros starts[k] to starts[k+1].
    int64_t blocks, block, segment;  // how many blocks, and the sizes of both
    const int32_t* order;
    const int32_t* starts;
    const void* places;  // uint16_t, or int32_t if wide; in a linear layer counted from the first column of the block
    int64_t wide;
    const float* values;
    const uint8_t* codes;  // or the value is table[codes[j]], where `values` is null
    const float* table;
    const float* bias;
    // Of convolutions only; `pitch` and `plane_rows` are those of the padded image, or of one of its phases, or of the part
    // of it that a band of output rows reads.
    int64_t height, width, out_height, out_width;
    int64_t stride_y, stride_x, pad_y, pad_x;
    int64_t plane_rows, pitch, band;
    int64_t phase_count;
    const int32_t* phases;       // (y, x) of each phase that a weight reads
    int64_t pool, pool_stride;  // pool 0: none
    int64_t pooled_height, pooled_width;

    int64_t features_in() const { return kind == linear ? inputs : inputs * height * width; }
    int64_t features_out() const { return kind == linear ? rows : rows * pooled_height * pooled_width; }
    int64_t plane() const { return plane_rows * pitch; }
    int64_t run_length() const { return (out_height - 1) * pitch + out_width; }  // pixels from first to last
    int64_t segments() const { return (rows + segment - 1) / segment; }
    int64_t weights() const { return starts[segments() * blocks * segment]; }
    // Segment number k of n nearly equal shares.
    int64_t cut(int64_t k, int64_t n) const { return segments() * k / n; }
};

namespace {

// Calls body(row, begin, end) for each row of a segment, with its non-zeros in a block.
template <class Body>
INLINE void over_rows(const Step& step, int64_t segment, int64_t block, Body body) {
    int64_t first = (segment * step.blocks + block) * step.segment;
    int64_t count = std::min(step.segment, step.rows - segment * step.segment);
    for (int64_t k = first; k < first + count; ++k) body(step.order[k], step.starts[k], step.starts[k + 1]);
}

// How far ahead of a product with one vector its weights are asked for, in bytes: they come from memory, and a processor
// by itself does not look beyond a page.
constexpr int64_t ahead = 2048;

// What weights are worth: a number each, or a code each and a table.
struct Own {
    const float* values;
    INLINE float at(int64_t j) const { return values[j]; }
    INLINE void expect(int64_t j) const { __builtin_prefetch(values + j + ahead / 4); }
    template <size_t... k>
    INLINE floats run(int64_t j, std::index_sequence<k...>) const { return load(values + j); }
};

struct Shared {
    const uint8_t* codes;
    const float* table;
    INLINE float at(int64_t j) const { return table[codes[j]]; }
    INLINE void expect(int64_t j) const { __builtin_prefetch(codes + j + ahead / 4); }
    template <size_t... k>
    INLINE floats run(int64_t j, std::index_sequence<k...>) const { return floats{table[codes[j + k]]...}; }
};

// Calls body with the types that the weights of a step have.
template <class Body>
INLINE void with_types(const Step& step, Body body) {
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
}

// 2^x for |x| < 126, to 2e-7 of its value; beyond, the last value there is. NaN stays NaN.
INLINE floats exp2(floats x) {
    x = select(x > 126, all_lanes(126), select(x < -126, all_lanes(-126), x));
    const float round = 0x1.8p23f + 127;  // adding it leaves the nearest integer + 127, an exponent, in the low bits
    floats shifted = x + round;
    floats f = x - (shifted - round);
    floats series = 0.69314718f + f * (0.24022651f + f * (0.055503324f + f * (0.0096180291f + f * 0.0013333558f)));
    return (floats)((ints)shifted << 23) * (1 + f * series);
}

// x·Φ(x). With z = |x|/√2 and u = 1/(1 + 0.3275911 z), erfc(z) ≈ e^(−z²)(a₁u + … + a₅u⁵): Abramowitz and Stegun, 7.1.26.
INLINE floats gelu_of(floats x) {
    floats size = (floats)((ints)x & INT32_MAX);
    floats u = 1 / (1 + 0.23164189f * size);
    floats series = u * (0.254829592f + u * (-0.284496736f + u * (1.421413741f + u * (-1.453152027f + u * 1.061405429f))));
    floats tail = 0.5f * series * exp2(x * x * -0.72134752f);  // Φ(−|x|)
    return x * select(x < 0, tail, 1 - tail);
}

// x·σ(2√(2/π)(x + 0.044715 x³)), the approximation by a hyperbolic tangent. Far below zero σ is none, also where 2^126,
// the most that exp2 gives, is not much beside x.
INLINE floats gelu_tanh_of(floats x) {
    floats y = x / (1 + exp2(x * (-2.3022082f + x * x * -0.10294324f)));
    return select(x < -32, x * 0, y);
}

INLINE floats activated(floats x, int64_t activation) {
    if (activation == relu) return select(x < 0, floats{}, x);  // NaN stays NaN
    if (activation == gelu) return gelu_of(x);
    if (activation == gelu_tanh) return gelu_tanh_of(x);
    return x;
}

// to[i] = activation(from[i] + residual[i]); `residual` may be null.
INLINE void finish(const float* from, const float* residual, int64_t count, int64_t activation, float* to) {
    if (activation <= relu) {
        float least = activation == relu ? 0 : -__builtin_inff();
        if (residual)
            for (int64_t i = 0; i < count; ++i) to[i] = from[i] + residual[i] < least ? least : from[i] + residual[i];
        else
            for (int64_t i = 0; i < count; ++i) to[i] = from[i] < least ? least : from[i];
        return;
    }
    for (int64_t i = 0; i < count; i += width) {
        floats x = {}, r = {};
        int64_t lanes = std::min(width, count - i);
        std::memcpy(&x, from + i, lanes * sizeof(float));
        if (residual) std::memcpy(&r, residual + i, lanes * sizeof(float));
        x = activated(x + r, activation);
        std::memcpy(to + i, &x, lanes * sizeof(float));
    }
}

// sums[i] += Σ value · base[place·scale + i], over the non-zeros from `begin` to `end`; the last vector stands at `last`.
template <int vectors, int64_t scale, class Place, class Values>
INLINE void accumulate(floats* sums, const Place* places, Values values, int64_t begin, int64_t end, const float* base,
                       int64_t last) {
    constexpr int side = chains(vectors);
    floats own[side][vectors];
    for (int i = 0; i < vectors; ++i) own[0][i] = sums[i];
    for (int k = 1; k < side; ++k)
        for (int i = 0; i < vectors; ++i) own[k][i] = floats{};
    auto add = [&](floats* to, int64_t j) __attribute__((always_inline)) {
        const float* from = base + static_cast<int64_t>(places[j]) * scale;
        float value = values.at(j);
#pragma GCC unroll 12
        for (int i = 0; i < vectors - 1; ++i) to[i] += value * load(from + i * width);
        to[vectors - 1] += value * load(from + last);
    };
    int64_t j = begin;
    for (; j + side <= end; j += side) {
#pragma GCC unroll 8
        for (int k = 0; k < side; ++k) add(own[k], j + k);
    }
    if (side > 1)
        for (; j < end; ++j) add(own[0], j);
    for (int i = 0; i < vectors; ++i) {
        for (int k = 1; k < side; ++k) own[0][i] += own[k][i];
        sums[i] = own[0][i];
    }
}

template <class Body>
INLINE void with_vectors(int64_t vectors, Body body) {
    switch (vectors) {
        case 1: return body(std::integral_constant<int, 1>());
        case 2: return body(std::integral_constant<int, 2>());
        case 3: return body(std::integral_constant<int, 3>());
        case 4: return body(std::integral_constant<int, 4>());
        case 5: return body(std::integral_constant<int, 5>());
        case 6: return body(std::integral_constant<int, 6>());
        case 7: return body(std::integral_constant<int, 7>());
        case 8: return body(std::integral_constant<int, 8>());
        case 9: return body(std::integral_constant<int, 9>());
        case 10: return body(std::integral_constant<int, 10>());
        case 11: return body(std::integral_constant<int, 11>());
        default: return body(std::integral_constant<int, 12>());
    }
}

// ---- sample by sample ----

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

template <class Place, class Values>
INLINE float dot(const Place* places, Values values, int64_t j, int64_t end, const float* x) {
    auto lanes = std::make_index_sequence<width>();
    floats first = {}, second = {};
    for (; j + 2 * width <= end; j += 2 * width) {
        values.expect(j);
        __builtin_prefetch(places + j + ahead / 4);
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

void multiply_vector(const Step& step, const float* x, const float* residual, float* y, int threads) {
    with_types(step, [&](auto places, auto values) {
        auto segment = [&](int64_t s) __attribute__((always_inline)) {
            for (int64_t b = 0; b < step.blocks; ++b)
                over_rows(step, s, b, [&](int64_t r, int64_t begin, int64_t end) __attribute__((always_inline)) {
                    y[r] = (b ? y[r] : step.bias[r]) + dot(places, values, begin, end, x + b * step.block);
                });
            int64_t from = s * step.segment, count = std::min(step.segment, step.rows - from);
            finish(y + from, residual ? residual + from : nullptr, count, step.activation, y + from);
        };
        if (threads == 1 || step.weights() < parallel_min) {
            for (int64_t s = 0; s < step.segments(); ++s) segment(s);
            return;
        }
#pragma omp parallel for num_threads(threads) schedule(dynamic, 1)
        for (int64_t s = 0; s < step.segments(); ++s) {
            NoDenormals guard;
            segment(s);
        }
    });
}

// Whether the image itself can be read where a padded one is wanted; short runs read past its end.
bool needs_packing(const Step& step) {
    return step.pad_y || step.pad_x || step.stride_y > 1 || step.stride_x > 1 || step.run_length() < width;
}

int64_t slab_floats(const Step& step) {
    return needs_packing(step) ? step.phase_count * step.inputs * step.plane() + width : 0;
}

// to[j] = from[s·j] for j from `begin` to `end`, and nothing is read past the last of them.
INLINE void copy_every(const float* from, int64_t s, int64_t begin, int64_t end, float* to) {
    if (s != 2 || end - begin < width) {
        for (int64_t j = begin; j < end; ++j) to[j] = from[s * j];
        return;
    }
    ints mix;  // the even ones of one vector, and the odd ones of another that begins with the last element of the first
    for (int k = 0; k < width; ++k) mix[k] = 2 * k + (k >= width / 2);
    auto copy = [&](int64_t j) __attribute__((always_inline)) {
        store(to + j, shuffled(load(from + 2 * j), load(from + 2 * j + width - 1), mix));
    };
    for (int64_t j = begin; j + width <= end; j += width) copy(j);
    copy(end - width);
}

// Copies channel c into a padded image whose first row is that of output row `top`: phase (dy, dx) has pixel (i, j) from
// ((top + i)·stride_y + dy − pad_y, j·stride_x + dx − pad_x).
void pack_channel(const Step& step, const float* x, int64_t c, int64_t top, float* slab) {
    const float* image = x + c * step.height * step.width;
    for (int64_t f = 0; f < step.phase_count; ++f) {
        int64_t dy = step.phases[2 * f] - step.pad_y, dx = step.phases[2 * f + 1] - step.pad_x, s = step.stride_x;
        float* plane = slab + (f * step.inputs + c) * step.plane();
        // The columns j with 0 ≤ j·s + dx < width.
        int64_t begin = dx >= 0 ? 0 : std::min((-dx + s - 1) / s, step.pitch);
        int64_t end = std::clamp(step.width > dx ? (step.width - dx + s - 1) / s : 0, begin, step.pitch);
        for (int64_t i = 0; i < step.plane_rows; ++i) {
            float* to = plane + i * step.pitch;
            int64_t y = (top + i) * step.stride_y + dy;
            if (y < 0 || y >= step.height) {
                std::fill_n(to, step.pitch, 0.f);
                continue;
            }
            const float* from = image + y * step.width + dx;
            std::fill(to, to + begin, 0.f);
            if (s == 1)
                std::copy(from + begin, from + end, to + begin);
            else
                copy_every(from, s, begin, end, to);
            std::fill(to + end, to + step.pitch, 0.f);
        }
    }
}

// Pixels that are computed together: `count` of them, which stand side by side from `first` on in the padded image. In the
// result they begin at `to`; if not `straight`, they begin in column `column` of a row, and those between rows are dropped.
struct Run {
    int64_t first, count, to, column;
    bool straight;
};

INLINE void write_run(const Step& step, const Run& run, const float* sums, const float* residual, float* out) {
    int64_t column = run.column, to = run.to;
    for (int64_t at = 0; at < run.count;) {
        int64_t stop = std::min(at + step.pitch - column, run.count);
        int64_t length = std::min(stop - at, step.out_width - column);
        if (length > 0) {
            finish(sums + at, residual ? residual + to : nullptr, length, step.activation, out + to);
            to += length;
        }
        at = stop;
        column = 0;
    }
}

// Segment `s` of the filters on one run of pixels. `staged` keeps their sums from block to block.
template <int vectors, class Place, class Values>
INLINE void convolve_run(const Step& step, const Place* places, Values values, const float* slab, const Run& run, int64_t s,
                         float* staged, const float* residual, float* out) {
    const float* base = slab + run.first;
    int64_t last = std::max<int64_t>(run.count - width, 0);
    floats least = all_lanes(step.activation == relu ? 0 : -__builtin_inff());
    for (int64_t b = 0; b < step.blocks; ++b) {
        bool begins = b == 0, ends = b + 1 == step.blocks;
        over_rows(step, s, b, [&](int64_t r, int64_t begin, int64_t end) __attribute__((always_inline)) {
            if (!begins && !ends && begin == end) return;
            float* own = staged + (r - s * step.segment) * run_max;
            floats sums[vectors];
            for (int i = 0; i < vectors; ++i) sums[i] = begins ? all_lanes(step.bias[r]) : load(own + i * width);
            accumulate<vectors, 1>(sums, places, values, begin, end, base, last);
            int64_t image = r * step.out_height * step.out_width;
            if (ends && run.straight) {
                for (int i = 0; i < vectors; ++i) {
                    int64_t at = image + run.to + (i + 1 < vectors ? i * width : last);
                    if (residual) sums[i] += load(residual + at);
                    store(out + at, select(sums[i] < least, least, sums[i]));
                }
                return;
            }
            for (int i = 0; i < vectors; ++i) store(own + i * width, sums[i]);
            if (ends) {
                store(own + last, sums[vectors - 1]);  // the last vector repeats pixels of the one before it
                write_run(step, run, own, residual ? residual + image : nullptr, out + image);
            }
        });
    }
}

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

// How a convolution is cut into pieces of work: bands of output rows by shares of the filters.
struct Pieces {
    int64_t band, bands, shares;

    Pieces(const Step& step, int threads) : band(step.band) {
        // Bands are then for the threads alone, but not by their number: where runs end, the order of sums changes. The
        // image is read where it stands, so that even a band of one row must fill a vector.
        if (!needs_packing(step)) {
            bool large = step.run_length() >= 8 * run_max && step.out_width >= width;
            band = large ? (step.out_height + 7) / 8 : step.out_height;
        }
        bands = (step.out_height + band - 1) / band;
        shares = std::clamp<int64_t>(threads == 1 ? 1 : (2 * threads + bands - 1) / bands, 1, step.segments());
    }
};

// Calls body for the runs of a band of `rows` output rows. Wide images are taken row by row: what the last vector of a row
// repeats is less than what lies between rows, and all goes straight to its place.
template <class Body>
INLINE void over_runs(const Step& step, int64_t top, int64_t rows, Body body) {
    bool by_row = step.pitch != step.out_width && step.out_width >= 6 * width;
    int64_t lines = by_row ? rows : 1, length = by_row ? step.out_width : (rows - 1) * step.pitch + step.out_width;
    int64_t vectors = (length + width - 1) / width, runs = (vectors + widest - 1) / widest;
    bool straight = (by_row || step.pitch == step.out_width) && length >= width && step.activation <= relu;
    for (int64_t line = 0; line < lines; ++line)
        for (int64_t k = 0; k < runs; ++k) {
            int64_t begin = vectors * k / runs, end = vectors * (k + 1) / runs;
            int64_t at = begin * width, row = by_row ? line : at / step.pitch;
            int64_t column = by_row ? at : at - row * step.pitch;
            int64_t to = (top + row) * step.out_width + std::min(column, step.out_width);
            body(end - begin, Run{(by_row ? line * step.pitch : 0) + at, std::min(end * width, length) - at, to, column,
                                  straight});
        }
}

// The pixels of the next run of all channels, which no processor foresees: they stand in as many places as channels.
INLINE void expect_run(const Step& step, const float* slab, const Run& run) {
    for (int64_t c = 0; c < step.inputs; ++c)
        for (int64_t k = 0; k < run.count; k += 16)
            __builtin_prefetch(slab + c * step.plane() + run.first + run.count + k, 0, 2);
}

int64_t image_floats(const Step& step) { return step.pool ? step.rows * step.out_height * step.out_width : 0; }

// `image` has room for image_floats. Returns whether there was enough memory.
bool convolve(const Step& step, const float* x, const float* residual, float* y, float* image, int threads) {
    if (step.weights() * step.run_length() < parallel_min) threads = 1;
    Pieces pieces(step, threads);
    bool packs = needs_packing(step), whole = true;
    float* out = step.pool ? image : y;
    auto piece = [&](int64_t k) {
        int64_t top = k / pieces.shares * pieces.band, rows = std::min(pieces.band, step.out_height - top);
        int64_t share = k % pieces.shares;
        int64_t from = step.cut(share, pieces.shares), to = step.cut(share + 1, pieces.shares);
        float* staged = staged_of_thread.take(step.segment * run_max + slab_floats(step));
        if (!staged) return false;
        float* packed = staged + step.segment * run_max;
        for (int64_t c = 0; packs && c < step.inputs; ++c) pack_channel(step, x, c, top, packed);
        const float* slab = packs ? packed : x + top * step.pitch;
        with_types(step, [&](auto places, auto values) {
            over_runs(step, top, rows, [&](int64_t vectors, const Run& run) {
                if (!packs) expect_run(step, slab, run);
                with_vectors(vectors, [&](auto n) {
                    for (int64_t s = from; s < to; ++s)
                        convolve_run<n()>(step, places, values, slab, run, s, staged, residual, out);
                });
            });
        });
        return true;
    };
    auto pool = [&](int64_t r) {
        auto by = step.pool == 2 && step.pool_stride == 2 ? pool_channel_by_two : pool_channel;
        by(step, image + r * step.out_height * step.out_width, y + r * step.pooled_height * step.pooled_width);
    };
    if (threads == 1) {
        for (int64_t k = 0; k < pieces.bands * pieces.shares; ++k) whole &= piece(k);
        for (int64_t r = 0; step.pool && r < step.rows; ++r) pool(r);
        return whole;
    }
#pragma omp parallel for num_threads(threads) schedule(dynamic, 1) reduction(&& : whole)
    for (int64_t k = 0; k < pieces.bands * pieces.shares; ++k) {
        NoDenormals guard;
        whole = piece(k) && whole;
    }
    if (step.pool) {
#pragma omp parallel for num_threads(threads) schedule(static)
        for (int64_t r = 0; r < step.rows; ++r) pool(r);
    }
    return whole;
}

// ---- panel by panel ----

// A vector of these numbers, where vectors have eight; elsewhere it only has to compile.
template <class... Numbers>
INLINE ints eight(Numbers... numbers) {
    const int all[] = {numbers...};
    ints made = {};
    for (int k = 0; k < width; ++k) made[k] = all[k % 8];
    return made;
}

// Transposes a square of as many vectors as they have lanes.
INLINE void transpose(floats* rows) {
    floats mixed[width];
    if constexpr (width == 8) {
        // Pairs, pairs of pairs and halves: shuffles that a processor with vectors of eight has as single instructions.
        const ints low = eight(0, 8, 1, 9, 4, 12, 5, 13), high = eight(2, 10, 3, 11, 6, 14, 7, 15);
        const ints first = eight(0, 1, 8, 9, 4, 5, 12, 13), last = eight(2, 3, 10, 11, 6, 7, 14, 15);
        const ints left = eight(0, 1, 2, 3, 8, 9, 10, 11), right = eight(4, 5, 6, 7, 12, 13, 14, 15);
#pragma GCC unroll 4
        for (int i = 0; i < 8; i += 2) {
            mixed[i] = shuffled(rows[i], rows[i + 1], low);
            mixed[i + 1] = shuffled(rows[i], rows[i + 1], high);
        }
#pragma GCC unroll 2
        for (int i = 0; i < 8; i += 4)
#pragma GCC unroll 2
            for (int k = 0; k < 2; ++k) {
                rows[i + 2 * k] = shuffled(mixed[i + k], mixed[i + k + 2], first);
                rows[i + 2 * k + 1] = shuffled(mixed[i + k], mixed[i + k + 2], last);
            }
#pragma GCC unroll 4
        for (int i = 0; i < 4; ++i) {
            mixed[i] = shuffled(rows[i], rows[i + 4], left);
            mixed[i + 4] = shuffled(rows[i], rows[i + 4], right);
        }
#pragma GCC unroll 8
        for (int i = 0; i < 8; ++i) rows[i] = mixed[i];
        return;
    }
    // Interleaving the first half of the rows with the second, log₂ width times, moves element (i, j) to (j, i).
    ints low, high;
    for (int k = 0; k < width; ++k) {
        low[k] = k / 2 + (k % 2) * static_cast<int>(width);
        high[k] = low[k] + static_cast<int>(width) / 2;
    }
#pragma GCC unroll 4
    for (int64_t size = 1; size < width; size *= 2) {
#pragma GCC unroll 16
        for (int64_t i = 0; i < width / 2; ++i) {
            mixed[2 * i] = shuffled(rows[i], rows[i + width / 2], low);
            mixed[2 * i + 1] = shuffled(rows[i], rows[i + width / 2], high);
        }
#pragma GCC unroll 16
        for (int64_t i = 0; i < width; ++i) rows[i] = mixed[i];
    }
}

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
void unpack_panel(const float* panel, int64_t stride, int64_t samples, int64_t lanes, int64_t from, int64_t to, float* y) {
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

// Segments `from` to `to` of a linear layer, on one or more panels: the weights of a block are read from memory once, and
// from the cache for all panels but the first.
template <int vectors, class Place, class Values>
INLINE void multiply_panels(const Step& step, const Place* places, Values values, const float* panels, int64_t count,
                            int64_t from, int64_t to, float* results) {
    constexpr int64_t lanes = vectors * width;
    for (int64_t piece = from * step.blocks * count; piece < to * step.blocks * count; ++piece) {
            int64_t s = piece / count / step.blocks, b = piece / count % step.blocks, p = piece % count;
            const float* base = panels + (p * step.inputs + b * step.block) * lanes;
            float* out = results + p * step.rows * lanes;
            bool begins = b == 0, ends = b + 1 == step.blocks;
            over_rows(step, s, b, [&](int64_t r, int64_t begin, int64_t end) __attribute__((always_inline)) {
                if (!begins && !ends && begin == end) return;
                float* own = out + r * lanes;
                floats sums[vectors];
                for (int i = 0; i < vectors; ++i) sums[i] = begins ? all_lanes(step.bias[r]) : load(own + i * width);
                accumulate<vectors, lanes>(sums, places, values, begin, end, base, lanes - width);
                for (int i = 0; i < vectors; ++i)
                    store(own + i * width, ends ? activated(sums[i], step.activation) : sums[i]);
            });
        }
}

// The padded panel: pixel (i, j) of the image stands at (i + pad_y, j + pad_x).
void pad_panel(const Step& step, const float* in, int64_t lanes, float* padded) {
    std::fill_n(padded, step.inputs * step.plane() * lanes, 0.f);
    for (int64_t c = 0; c < step.inputs; ++c)
        for (int64_t i = 0; i < step.height; ++i)
            std::copy_n(in + (c * step.height + i) * step.width * lanes, step.width * lanes,
                        padded + (c * step.plane() + (i + step.pad_y) * step.pitch + step.pad_x) * lanes);
}

template <int vectors, class Place, class Values>
INLINE void convolve_panel(const Step& step, const Place* places, Values values, const float* in, float* out) {
    constexpr int64_t lanes = vectors * width;
    int64_t pool = std::max<int64_t>(step.pool, 1), pool_stride = step.pool ? step.pool_stride : 1;
    for (int64_t i = 0; i < step.pooled_height; ++i)
        for (int64_t j = 0; j < step.pooled_width; ++j)
            for (int64_t s = 0; s < step.segments(); ++s)
                over_rows(step, s, 0, [&](int64_t r, int64_t begin, int64_t end) __attribute__((always_inline)) {
                    floats most[vectors];
                    for (int64_t p = 0; p < pool * pool; ++p) {
                        int64_t y = (i * pool_stride + p / pool) * step.stride_y;
                        int64_t x = (j * pool_stride + p % pool) * step.stride_x;
                        const float* base = in + (y * step.pitch + x) * lanes;
                        floats sums[vectors];
                        for (int v = 0; v < vectors; ++v) sums[v] = all_lanes(step.bias[r]);
                        accumulate<vectors, lanes>(sums, places, values, begin, end, base, lanes - width);
                        for (int v = 0; v < vectors; ++v) {
                            floats value = activated(sums[v], step.activation);
                            most[v] = p == 0 ? value : select((value > most[v]) | (value != value), value, most[v]);
                        }
                    }
                    float* own = out + ((r * step.pooled_height + i) * step.pooled_width + j) * lanes;
                    for (int v = 0; v < vectors; ++v) store(own + v * width, most[v]);
                });
}

// The most features that stand in a panel at once, and those of the largest padded image.
struct Room {
    int64_t features, padded = 0;

    Room(const Step* steps, int64_t count) : features(steps[0].features_in()) {
        for (int64_t k = 0; k < count; ++k) {
            features = std::max(features, steps[k].features_out());
            if (steps[k].kind == convolution) padded = std::max(padded, steps[k].inputs * steps[k].plane());
        }
    }
    int64_t all() const { return 2 * features + padded; }
};

// Takes a panel of `samples` samples through a chain.
template <int vectors>
void run_panel(const Step* steps, int64_t count, const float* x, int64_t samples, float* y, float* scratch) {
    constexpr int64_t lanes = vectors * width;
    Room room(steps, count);
    float *in = scratch, *out = in + room.features * lanes, *padded = out + room.features * lanes;
    pack_panel(x, steps[0].features_in(), samples, lanes, in);
    for (int64_t k = 0; k < count; ++k) {
        const Step& step = steps[k];
        with_types(step, [&](auto places, auto values) {
            if (step.kind == linear) {
                multiply_panels<vectors>(step, places, values, in, 1, 0, step.segments(), out);
                return;
            }
            bool pads = step.pad_y || step.pad_x;
            if (pads) pad_panel(step, in, lanes, padded);
            convolve_panel<vectors>(step, places, values, pads ? padded : in, out);
        });
        std::swap(in, out);
    }
    int64_t features = steps[count - 1].features_out();
    unpack_panel(in, features, samples, lanes, 0, features, y);
}

// Takes `samples` samples, several panels of them, through segments `from` to `to` of a linear layer.
template <int vectors>
void run_layer(const Step& step, const float* x, int64_t samples, int64_t from, int64_t to, float* y, float* scratch) {
    constexpr int64_t lanes = vectors * width;
    int64_t panels = (samples + lanes - 1) / lanes;
    float *in = scratch, *out = in + panels * step.inputs * lanes;
    auto own = [&](int64_t p) { return std::min(lanes, samples - p * lanes); };
    for (int64_t p = 0; p < panels; ++p)
        pack_panel(x + p * lanes * step.inputs, step.inputs, own(p), lanes, in + p * step.inputs * lanes);
    with_types(step, [&](auto places, auto values) {
        multiply_panels<vectors>(step, places, values, in, panels, from, to, out);
    });
    for (int64_t p = 0; p < panels; ++p)
        unpack_panel(out + p * step.rows * lanes, step.rows, own(p), lanes, from * step.segment,
                     std::min(to * step.segment, step.rows), y + p * lanes * step.rows);
}

// ---- both ----

int64_t largest_between(const Step* steps, int64_t count) {
    int64_t largest = 0;
    for (int64_t k = 0; k + 1 < count; ++k) largest = std::max(largest, steps[k].features_out());
    return largest;
}

bool run_sample(const Step* steps, int64_t count, const float* x, const float* residual, float* y, int threads) {
    int64_t largest = largest_between(steps, count), extra = 0;
    for (int64_t k = 0; k < count; ++k)
        if (steps[k].kind == convolution) extra = std::max(extra, image_floats(steps[k]));
    float* scratch = scratch_of_thread.take(2 * largest + extra + 1);
    if (!scratch) return false;
    float *in = scratch, *out = scratch + largest;
    for (int64_t k = 0; k < count; ++k) {
        bool ends = k + 1 == count;
        float* to = ends ? y : out;
        if (steps[k].kind == linear)
            multiply_vector(steps[k], x, ends ? residual : nullptr, to, threads);
        else if (!convolve(steps[k], x, ends ? residual : nullptr, to, scratch + 2 * largest, threads))
            return false;
        x = to;
        std::swap(in, out);
    }
    return true;
}

int64_t work(const Step* steps, int64_t count) {
    int64_t sum = 0;
    for (int64_t k = 0; k < count; ++k)
        sum += steps[k].weights() * (steps[k].kind == linear ? 1 : steps[k].run_length());
    return sum;
}

bool run_samples(const Step* steps, int64_t count, const float* x, const float* residual, int64_t batch, float* y,
                 int threads) {
    int64_t in = steps[0].features_in(), out = steps[count - 1].features_out();
    bool whole = true;
    auto sample = [&](int64_t n, int own) {
        return run_sample(steps, count, x + n * in, residual ? residual + n * out : nullptr, y + n * out, own);
    };
    if (threads == 1 || batch < threads || work(steps, count) * batch < parallel_min) {
        int own = work(steps, count) < parallel_min ? 1 : threads;
        for (int64_t n = 0; n < batch; ++n) whole &= sample(n, own);
        return whole;
    }
#pragma omp parallel for num_threads(threads) schedule(dynamic, 1) reduction(&& : whole)
    for (int64_t n = 0; n < batch; ++n) {
        NoDenormals guard;
        whole = sample(n, 1) && whole;
    }
    return whole;
}

template <class Body>
INLINE void with_panel(int64_t vectors, Body body) {
    switch (vectors) {
        case 1: return body(std::integral_constant<int, 1>());
        case 2: return body(std::integral_constant<int, 2>());
        case 4: return body(std::integral_constant<int, 4>());
        default: return body(std::integral_constant<int, 8>());
    }
}

// As many vectors as hold so many samples, if not more than `most`.
int64_t vectors_for(int64_t samples, int64_t most) {
    int64_t vectors = 1;
    while (vectors < most && vectors * width < samples) vectors *= 2;
    return vectors;
}

bool run_panels(const Step* steps, int64_t count, const float* x, int64_t batch, float* y, int64_t vectors, int threads) {
    int64_t in = steps[0].features_in(), features = steps[count - 1].features_out();
    if (work(steps, count) * batch < parallel_min) threads = 1;
    vectors = vectors_for(batch, vectors);
    bool alone = count == 1 && steps[0].kind == linear;
    // Pieces of work: shares of the batch, each of whole panels; and of a single layer with fewer panels than threads,
    // shares of its rows.
    int64_t panels = (batch + vectors * width - 1) / (vectors * width);
    int64_t parts = alone ? std::min<int64_t>(panels, std::max<int64_t>(threads, (panels + most_panels - 1) / most_panels)) : panels;
    int64_t shares = alone && panels < threads ? std::min<int64_t>(threads, steps[0].segments()) : 1;
    bool whole = true;
    auto piece = [&](int64_t k) {
        int64_t part = k / shares, share = k % shares;
        int64_t first = panels * part / parts * vectors * width;
        int64_t samples = std::min(panels * (part + 1) / parts * vectors * width, batch) - first;
        // Not by how many samples a thread has got: panels of other widths add in another order.
        int64_t own = alone ? vectors : vectors_for(samples, vectors), lanes = own * width;
        int64_t room = alone ? (steps[0].inputs + steps[0].rows) * ((samples + lanes - 1) / lanes) : Room(steps, count).all();
        float* scratch = scratch_of_thread.take(room * lanes + 1);
        if (!scratch) return false;
        with_panel(own, [&](auto n) {
            if (alone)
                run_layer<n()>(steps[0], x + first * in, samples, steps[0].cut(share, shares),
                               steps[0].cut(share + 1, shares), y + first * features, scratch);
            else
                run_panel<n()>(steps, count, x + first * in, samples, y + first * features, scratch);
        });
        return true;
    };
    if (threads == 1) {
        for (int64_t k = 0; k < parts * shares; ++k) whole &= piece(k);
        return whole;
    }
#pragma omp parallel for num_threads(threads) schedule(dynamic, 1) reduction(&& : whole)
    for (int64_t k = 0; k < parts * shares; ++k) {
        NoDenormals guard;
        whole = piece(k) && whole;
    }
    return whole;
}

}  // namespace

#define EXPORT extern "C" __attribute__((visibility("default")))

// A chain, ready to run: sample by sample if `vectors` is 0, else in panels of so many vector registers (1, 2, 4 or 8).
struct Chain {
    const Step* steps;
    int64_t count, vectors;
};

// Takes `batch` samples x through a chain to y. `residual`, which may be null and stands with single samples only, is added
// before the last activation. Returns 0, or 1 if there was not enough memory.
EXPORT int secateur_chain(const Chain* chain, const float* x, int64_t batch, float* y, int threads, const float* residual) {
    NoDenormals guard;
    bool whole = chain->vectors ? run_panels(chain->steps, chain->count, x, batch, y, chain->vectors, threads)
                                : run_samples(chain->steps, chain->count, x, residual, batch, y, threads);
    return whole ? 0 : 1;
}

// The lanes of a vector register, and the bytes of a step: whoever lays out steps asks whether we mean the same.
EXPORT int64_t secateur_lanes() { return width; }
EXPORT int64_t secateur_step_bytes() { return sizeof(Step); }
