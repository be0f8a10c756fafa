// θ, the differentiable pruning function, with its derivatives and the sums the penalty needs.
//
// With a = α|x|, b = αt, e = exp(−a), p = exp(b−a), r = exp(−b−a), i = 1/(1 + e² + p + r):
//
//   θ     = sign(x) · [ relu(|x|−t) + t(1−e²)i ]
//   ∂θ/∂x = H(|x|−t) + b(4e² + (p+r)(1+e²))i²
//   ∂θ/∂t = sign(x) · [ −H(|x|−t) + (1−e²)i − b(1−e²)(p−r)i² ]          H(0) = 1, sign(0) = 0
//
// One exponential gives them all: w = exp(c−a), where c = 0 if b ≤ 22 and c = b beyond. With A = exp(−c), e = Aw,
// S = (p+r)/w and K = b(p−r)/w, where A, S and K depend on the threshold only:
//
//   1/i    = 1 + w(S + Ae)                2e² + p + r         = w(S + 2Ae)
//   1 − e² = (1−e)(1+e)                   4e² + (p+r)(1+e²)   = w(S + e(Se + 4A))
//   1 − e  = (1−A) − A(w−1)               which keeps its digits where e is almost 1: there c is 0, and A is 1
//
// The code computes this to a relative error of 1e-5, with two simplifications:
//  * a weight far from its threshold, |b−a| > 17 + log(1+b), is settled: θ is x or 0, ∂θ/∂x is 1 or 0, ∂θ/∂t is 0. That
//    moves θ by at most 4e-8·t and a derivative by at most 4e-8, less than the rounding error of the 1 next to it. A
//    vector of settled weights needs no exponential. Lanes are still settled one by one, so that a result never depends
//    on its neighbours. A long run with b ≤ 22 is soft: so few weights are that far away that it is not checked.
//  * |θ| below the smallest normal float becomes +0: denormals slow down everything that reads them.
//
// Sums are taken over blocks whose size depends on the shapes only, and the blocks are added in order: the bits of a
// result do not depend on the number of threads.

#include <algorithm>
#include <cfloat>
#include <cstdint>
#include <cstring>
#include <memory>
#include <numeric>
#include <type_traits>
#include <vector>

#ifdef __linux__
#include <sys/mman.h>
#endif

#include "vectors.h"

namespace {

using half_words = int64_t __attribute__((vector_size(vector_bytes / 2)));

constexpr float soft_max = 22;  // the largest soft b: beyond, all weights with a < 1 are settled

// Vectors processed together: a single one takes about 65 cycles, mostly waiting for its own results.
constexpr int soft_side = 4;   // in a soft run,
constexpr int sharp_side = 3;  // in a sharp one, where more vectors are less often all settled,
constexpr int lanes_side = 2;  // with thresholds per lane, where registers run out

constexpr int64_t run_min = 64;          // shorter runs of one threshold are read lane by lane
constexpr int64_t block_max = 16384;     // weights summed into one partial result
constexpr int64_t fold_vectors = 64;     // vectors summed in float before the sum moves on to double
constexpr int64_t columns_max = 2048;    // such weights of a row treated together,
constexpr int64_t slab_rows = 64;        // and rows summed into one partial result
constexpr int64_t parallel_min = 32768;  // fewer weights take less time than waking a second thread
constexpr int64_t grain = 65536;         // weights a thread takes at a time
constexpr int64_t huge_bytes = 4 << 20;  // larger results request huge pages

INLINE bool every(ints mask) {
    half_words half[2];
    std::memcpy(half, &mask, sizeof mask);
    half_words both = half[0] & half[1];
    int64_t common = both[0];
    for (int64_t k = 1; k < vector_bytes / 16; ++k) common &= both[k];
    return common == -1;
}

INLINE double total(floats x) {
    double sum = 0;
    for (int64_t k = 0; k < width; ++k) sum += x[k];
    return sum;
}

// 2^(−rate·x) and 2^(−rate·x) − 1, each to 5e-7 of its value. NaN stays NaN.
struct Decay {
    floats value, change;

    INLINE Decay(floats rate, floats x) {
        const float round = 0x1.8p23f + 127;  // adding it leaves the nearest integer + 127, an exponent, in the low bits
        floats shifted = round - rate * x;
        floats f = (round - shifted) - rate * x;
        floats series = 0.69314712f + f * (0.24022351f + f * (0.055505004f + f * (0.0096662454f + f * 0.0013333538f)));
        floats scale = from_bits(bits(shifted) << 23);
        value = scale + scale * f * series;
        change = (scale - 1.f) + scale * f * series;
    }
};

// Values that depend on the threshold only. Exponents are counted in bits: exp(−αx) = 2^(−rate·x).
template <bool soft>
struct Cut {
    floats t, floor, rate, b;
    floats anchor, fade, unfade, sum, steepness;  // c/α, A, 1 − A, S, K
    floats depth;                                 // weights farther than this from t are settled
    floats far;                                   // a magnitude where e is negligible compared with 1

    Cut() = default;

    INLINE Cut(floats threshold, float alpha) {
        t = threshold < 0.f ? floats{} : threshold;
        floor = t < FLT_MIN ? all_lanes(FLT_MIN) : t;
        rate = all_lanes(alpha * 1.44269504f);
        b = alpha * t;
        floats bit = 1.f / rate;
        // 17 + log(1+b), in bits and rounded up; 57 is where i² would leave the range of floats.
        depth = 25.f + __builtin_convertvector((bits(1.f + b) >> 23) - 126, floats);
        depth = bit * (depth > 57.f ? all_lanes(57.f) : depth);
        far = bit * 64.f;

        Decay at_t(rate, t > far ? far : t);
        floats e = at_t.value, rest = -at_t.change;
        ints sharp = soft ? ints{} : b > soft_max;
        floats scale = sharp ? all_lanes(1.f) : 1.f / e;
        anchor = keep_where(sharp, t);
        fade = sharp ? e : all_lanes(1.f);
        unfade = keep_where(sharp, rest);
        sum = (1.f + e * e) * scale;
        steepness = b * (rest + rest * e) * scale;
    }

    // Ax, plus a tiny number that keeps its square from becoming denormal.
    INLINE floats faded(floats x) const { return soft ? x : x * fade + 1e-18f; }
};

// The position of a vector of weights relative to its threshold.
template <bool soft>
struct Place {
    floats size;
    ints alive, settled;

    Place() = default;

    INLINE Place(floats x, const Cut<soft>& cut) {
        size = magnitude(x);
        alive = size >= cut.floor;
        settled = soft ? ints{} : magnitude(size - cut.t) > cut.depth;
    }

    // H(|x|−t), which is 1 at x = t = 0 too.
    INLINE floats heaviside(const Cut<soft>& cut) const { return keep_where(size >= cut.t, all_lanes(1.f)); }
};

// The exponential, and the formulas that use it, for x ≥ 0.
template <bool soft>
struct Curve {
    floats e, e_faded, i, wi, bump;  // e, Ae, i, wi, (1 − e²)i

    INLINE Curve(const Place<soft>& at, const Cut<soft>& cut) {
        // In a soft run w is clamped at 2^−64, where it has no effect: below, it would become denormal.
        Decay w(cut.rate, soft ? (cut.far < at.size ? cut.far : at.size)  // a NaN stays one
                               : keep_where(~at.settled, at.size - cut.anchor));
        e = cut.faded(w.value);
        e_faded = cut.faded(e);
        i = 1.f / (1.f + w.value * (cut.sum + e_faded));
        wi = w.value * i;
        floats rest = soft ? -w.change : cut.unfade - cut.fade * w.change;
        bump = (rest + rest * e) * i;
    }

    INLINE floats theta(const Place<soft>& at, const Cut<soft>& cut) const {
        floats over = at.size - cut.t;
        return (soft ? (over < floats{} ? floats{} : over) : keep_where(at.alive, over)) + cut.t * bump;
    }

    INLINE floats slope_by_weight(const Place<soft>& at, const Cut<soft>& cut) const {
        return at.heaviside(cut) + (cut.b * i) * (wi * (cut.sum + e * (cut.sum * e + 4.f * cut.fade)));
    }

    // Above the threshold −1 + (1−e²)i is −(2e² + p + r)i, which does not cancel.
    INLINE floats slope_by_threshold(const Place<soft>& at, const Cut<soft>& cut) const {
        floats base = at.alive ? wi * (-2.f * e_faded - cut.sum) : bump;
        return base - cut.steepness * bump * wi;
    }
};

template <bool soft, int vectors>
INLINE bool all_settled(const Place<soft> (&place)[vectors]) {
    ints settled = place[0].settled;
    for (const Place<soft>& each : place) settled &= each.settled;
    return every(settled);
}

// A step processes several vectors together, or the first lanes of a single one: the others are read as zeros, whose θ,
// derivative by t and gradient are zero, and add nothing to any sum. The vectors share a cut and a sum of slopes, or each
// has its own.
template <bool wants_norm>
struct Forward {
    static constexpr bool norms = wants_norm, slopes = false;
    const float* weight;
    float* theta;

    template <int vectors, bool soft, int cuts>
    INLINE void step(const Cut<soft> (&cut)[cuts], int64_t at, int64_t lanes, floats& norm, floats (&)[cuts]) const {
        floats x[vectors], result[vectors];
        Place<soft> place[vectors];
        for (int k = 0; k < vectors; ++k) {
            x[k] = load(weight + at + k * width, lanes);
            place[k] = Place<soft>(x[k], cut[k % cuts]);
            result[k] = keep_where(place[k].alive, place[k].size);
        }
        if (!all_settled(place))
            for (int k = 0; k < vectors; ++k) {
                Curve<soft> curve(place[k], cut[k % cuts]);
                result[k] = place[k].settled ? result[k] : curve.theta(place[k], cut[k % cuts]);
            }
        for (int k = 0; k < vectors; ++k) {
            if (norms) norm += result[k];
            ints tiny = result[k] < FLT_MIN;  // among them −0, which becomes +0
            store(theta + at + k * width, keep_where(~tiny, times_sign_of(x[k], result[k])), lanes);
        }
    }
};

// The gradient of the norm Σ|θ| is the same for all weights: its part of a threshold's gradient costs an addition here,
// and a quarter more time in the forward pass.
template <bool wants_weight, bool wants_threshold, bool has_gradient = true>
struct Backward {
    static constexpr bool norms = false, slopes = wants_threshold;
    const float *gradient, *weight;
    float norm_gradient;
    float* weight_gradient;

    template <int vectors, bool soft, int cuts>
    INLINE void step(const Cut<soft> (&cut)[cuts], int64_t at, int64_t lanes, floats&, floats (&slope)[cuts]) const {
        floats x[vectors], by_weight[vectors], by_threshold[vectors];
        Place<soft> place[vectors];
        for (int k = 0; k < vectors; ++k) {
            x[k] = load(weight + at + k * width, lanes);
            place[k] = Place<soft>(x[k], cut[k % cuts]);
            by_weight[k] = place[k].heaviside(cut[k % cuts]);
            by_threshold[k] = floats{};
        }
        if (!all_settled(place))
            for (int k = 0; k < vectors; ++k) {
                Curve<soft> curve(place[k], cut[k % cuts]);
                by_weight[k] = place[k].settled ? by_weight[k] : curve.slope_by_weight(place[k], cut[k % cuts]);
                by_threshold[k] = keep_where(~place[k].settled, curve.slope_by_threshold(place[k], cut[k % cuts]));
            }
        for (int k = 0; k < vectors; ++k) {
            floats g = has_gradient ? load(gradient + at + k * width, lanes) : floats{};
            if (wants_weight) store(weight_gradient + at + k * width, g * by_weight[k], lanes);
            if (wants_threshold) slope[k % cuts] += (times_sign_of(x[k], g) + norm_gradient) * by_threshold[k];
        }
    }
};

// A tensor seen as (outer, groups, inner): weight i reads threshold[(i / inner) % groups].
struct Shape {
    int64_t outer, groups, inner;
    int64_t count() const { return outer * groups * inner; }
};

struct Sums {
    double norm = 0, slope = 0;
};

// One stretch of weights with the same threshold.
template <bool soft, class Step>
Sums walk(const Step& by, float threshold, float alpha, int64_t begin, int64_t end) {
    constexpr int side = soft ? soft_side : sharp_side;
    const Cut<soft> cut[1] = {{all_lanes(threshold), alpha}};
    Sums sums;
    while (begin < end) {
        floats norm = {}, slope[1] = {};
        int64_t fold_end = std::min(end, begin + fold_vectors * width);
        for (; begin + side * width <= fold_end; begin += side * width)
            by.template step<side>(cut, begin, width, norm, slope);
        for (; begin + width <= fold_end; begin += width) by.template step<1>(cut, begin, width, norm, slope);
        if (begin < fold_end) by.template step<1>(cut, begin, fold_end - begin, norm, slope);
        begin = fold_end;
        if (Step::norms) sums.norm += total(norm);
        if (Step::slopes) sums.slope += total(slope[0]);
    }
    return sums;
}

template <class Task>
void share(int64_t tasks, int64_t weights_per_task, int threads, const Task& task) {
    if (threads <= 1 || tasks * weights_per_task < parallel_min) {  // even idle, OpenMP slows down small layers
        // From the end: the part of the weights or the gradient that was written last is still in the cache.
        for (int64_t k = tasks; k-- > 0;) task(k);
        return;
    }
    int64_t batch = std::max<int64_t>(1, std::min(grain / weights_per_task, tasks / threads));
#pragma omp parallel for num_threads(threads) schedule(dynamic, batch)
    for (int64_t k = 0; k < tasks; ++k) task(k);
}

// Long runs of one threshold: a scalar, or one per filter. Each run is cut into blocks.
template <class Step>
double over_runs(const Step& by, const float* threshold, float alpha, Shape shape, float* slopes, int threads) {
    int64_t blocks = (shape.inner + block_max - 1) / block_max;
    int64_t runs = shape.outer * shape.groups;
    constexpr bool sums = Step::norms || Step::slopes;
    std::vector<Sums> partial(sums ? runs * blocks : 0);
    share(runs * blocks, std::min(shape.inner, block_max), threads, [&](int64_t k) {
        int64_t run = k / blocks, first = k % blocks * block_max, start = run * shape.inner;
        int64_t begin = start + first, end = start + std::min(shape.inner, first + block_max);
        float t = threshold[run % shape.groups];
        Sums of_block = (alpha * t <= soft_max ? walk<true, Step> : walk<false, Step>)(by, t, alpha, begin, end);
        if (sums) partial[k] = of_block;
    });
    if (!sums) return 0;
    double norm = 0;
    for (int64_t group = 0; group < shape.groups; ++group) {
        double slope = 0;
        for (int64_t outer = 0; outer < shape.outer; ++outer) {
            const Sums* of_run = &partial[(outer * shape.groups + group) * blocks];
            for (int64_t k = 0; k < blocks; ++k) norm += of_run[k].norm, slope += of_run[k].slope;
        }
        if (Step::slopes) slopes[group] = static_cast<float>(slope);
    }
    return norm;
}

// Thresholds that change every few weights: one per weight, per column, or per small kernel. A task is a slab of rows
// over some columns (whole groups), so that thresholds are spread over the lanes once for all its rows.
template <class Step>
double over_lanes(const Step& by, const float* threshold, float alpha, Shape shape, float* slopes, int threads) {
    int64_t row = shape.groups * shape.inner;
    int64_t groups_per_tile = columns_max / shape.inner;
    int64_t tiles = (shape.groups + groups_per_tile - 1) / groups_per_tile;
    int64_t slabs = (shape.outer + slab_rows - 1) / slab_rows;
    std::vector<double> norms(Step::norms ? slabs * tiles : 0);
    // With a single slab its sums are the result.
    std::unique_ptr<float[]> buffer(Step::slopes && slabs > 1 ? new float[slabs * shape.groups] : nullptr);
    float* partial = buffer ? buffer.get() : slopes;

    int64_t weights_per_task = std::min(row, columns_max) * std::min(shape.outer, slab_rows);
    share(slabs * tiles, weights_per_task, threads, [&](int64_t k) {
        int64_t slab = k / tiles, group = k % tiles * groups_per_tile;
        int64_t groups = std::min(groups_per_tile, shape.groups - group), columns = groups * shape.inner;
        float spread[columns_max], sums[columns_max + width] = {};
        if (shape.inner == 1)
            std::copy_n(threshold + group, groups, spread);
        else
            for (int64_t j = 0; j < columns; j += shape.inner)
                std::fill_n(spread + j, shape.inner, threshold[group + j / shape.inner]);

        double norm = 0;
        int64_t last = std::min(shape.outer, (slab + 1) * slab_rows);
        for (int64_t outer = slab * slab_rows; outer < last; ++outer) {
            int64_t start = outer * row + group * shape.inner;
            floats row_norm = {};
            auto visit = [&](auto vectors, int64_t j, int64_t lanes) __attribute__((always_inline)) {
                floats slope[vectors];
                Cut<false> cut[vectors];
                for (int k = 0; k < vectors; ++k) {
                    slope[k] = load(sums + j + k * width, width);
                    cut[k] = Cut<false>(load(spread + j + k * width, lanes), alpha);
                }
                by.template step<vectors>(cut, start + j, lanes, row_norm, slope);
                for (int k = 0; k < vectors; ++k) store(sums + j + k * width, slope[k], width);
            };
            std::integral_constant<int, lanes_side> some;
            std::integral_constant<int, 1> one;
            int64_t j = 0;
            for (; j + some * width <= columns; j += some * width) visit(some, j, width);
            for (; j + width <= columns; j += width) visit(one, j, width);
            if (j < columns) visit(one, j, columns - j);
            norm += total(row_norm);
        }
        if (Step::norms) norms[k] = norm;
        if (!Step::slopes) return;
        float* of_slab = partial + slab * shape.groups + group;
        if (shape.inner == 1)
            std::copy_n(sums, groups, of_slab);
        else
            for (int64_t j = 0; j < columns; j += shape.inner)
                of_slab[j / shape.inner] = std::accumulate(sums + j, sums + j + shape.inner, 0.f);
    });
    if (buffer)
        for (int64_t group = 0; group < shape.groups; ++group) {
            double slope = 0;
            for (int64_t slab = 0; slab < slabs; ++slab) slope += partial[slab * shape.groups + group];
            slopes[group] = static_cast<float>(slope);
        }
    double norm = 0;
    for (double part : norms) norm += part;
    return norm;
}

template <class Step>
double sweep(const Step& by, const float* threshold, float alpha, Shape shape, float* slopes, int threads) {
    if (shape.count() == 0) {
        if (Step::slopes) std::fill_n(slopes, shape.groups, 0.f);
        return 0;
    }
    return (shape.inner < run_min ? over_lanes<Step> : over_runs<Step>)(by, threshold, alpha, shape, slopes, threads);
}

// A fresh buffer of 151 MB costs 98 ms in page faults of 4 kB and 24 ms in huge ones.
void expect_first_touch(float* buffer, int64_t count) {
#ifdef __linux__
    constexpr uintptr_t page = 4096;
    int64_t bytes = count * sizeof(float);
    if (bytes < huge_bytes) return;
    uintptr_t first = (reinterpret_cast<uintptr_t>(buffer) + page - 1) / page * page;
    uintptr_t last = (reinterpret_cast<uintptr_t>(buffer) + bytes) / page * page;
    madvise(reinterpret_cast<void*>(first), last - first, MADV_HUGEPAGE);  // advice: failure changes nothing
#else
    (void)buffer, (void)count;
#endif
}

}  // namespace

// theta[i] = θ(weight[i]); returns Σ|θ| if `wants_norm`. Here and below a negative threshold reads as zero; `project` also
// stores the zero.
EXPORT double secateur_theta_forward(const float* weight, float* threshold, float alpha, int64_t outer, int64_t groups,
                                     int64_t inner, float* theta, int wants_norm, int project, int threads) {
    Shape shape{outer, groups, inner};
    if (project) std::replace_if(threshold, threshold + groups, [](float t) { return t < 0; }, 0.f);
    expect_first_touch(theta, shape.count());
    if (wants_norm) return sweep(Forward<true>{weight, theta}, threshold, alpha, shape, nullptr, threads);
    return sweep(Forward<false>{weight, theta}, threshold, alpha, shape, nullptr, threads);
}

// weight_gradient = gradient·∂θ/∂x and threshold_gradient (one per group) = Σ (gradient + norm_gradient·sign(x))·∂θ/∂t;
// either may be null, and so may `gradient`, if only the norm has one: then the weights get none.
EXPORT void secateur_theta_backward(const float* gradient, float norm_gradient, const float* weight,
                                    const float* threshold, float alpha, int64_t outer, int64_t groups, int64_t inner,
                                    float* weight_gradient, float* threshold_gradient, int threads) {
    Shape shape{outer, groups, inner};
    auto run = [&](auto step) { sweep(step, threshold, alpha, shape, threshold_gradient, threads); };
    if (weight_gradient) expect_first_touch(weight_gradient, shape.count());
    if (threshold_gradient) expect_first_touch(threshold_gradient, groups);
    if (!gradient)
        run(Backward<false, true, false>{gradient, weight, norm_gradient, nullptr});
    else if (weight_gradient && threshold_gradient)
        run(Backward<true, true>{gradient, weight, norm_gradient, weight_gradient});
    else if (weight_gradient)
        run(Backward<true, false>{gradient, weight, norm_gradient, weight_gradient});
    else if (threshold_gradient)
        run(Backward<false, true>{gradient, weight, norm_gradient, nullptr});
}
