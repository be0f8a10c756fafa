// Sparse products: the layers of a pruned network, computed without its zeros.
//
// A chain is a sequence of steps, each a sparse linear layer or a convolution with its bias, its activation and its
// max-pooling; one call takes a batch through all of them, and intermediate results stay in thread-local memory,
// which stays in the cache if it fits. A chain runs in one of two ways:
//
//   sample by sample   A linear layer is a product of a sparse matrix and a vector (sparse_vector.h). A convolution is
//                      direct: a weight is an offset into the image, a vector register holds neighbouring pixels, and
//                      the image is padded band by band (sparse_images.h, sparse_slab.h, sparse_runs.h; and its kernels,
//                      which take the compiler longest and are sources of their own: sparse_kernels.h). A depthwise
//                      convolution has few weights, and multiplies zeros like the others (sparse_depthwise.h).
//   panel by panel     As many samples as lanes lie side by side, a vector register holds one feature of several of
//                      them, and a weight is the number of a feature (sparse_panels.h).
//
// A layer and its weights are in sparse_step.h, the order in which rows of weights are taken in sparse_order.h, the loop
// that images and panels have in common in sparse_sums.h, what follows a product in sparse_activations.h, and what
// threads need in sparse_threads.h. Below are the chain, how threads share it, and the functions that Python calls.
//
// Every sum is taken in an order that depends on the layer only: the bits of a result do not depend on the threads.
// Denormals are read and written as zeros while a chain runs.

#include <algorithm>
#include <cstdint>
#include <new>
#include <type_traits>
#include <utility>

#include "sparse_depthwise.h"
#include "sparse_images.h"
#include "sparse_order.h"
#include "sparse_panels.h"
#include "sparse_step.h"
#include "sparse_threads.h"
#include "sparse_vector.h"
#include "vectors.h"

namespace {

// The largest number of features between two steps.
int64_t largest_between(const Step* steps, int64_t count) {
    int64_t largest = 0;
    for (int64_t k = 0; k + 1 < count; ++k) largest = std::max(largest, steps[k].features_out());
    return largest;
}

// Takes one sample through a chain: results alternate between two buffers, the last goes to y. Returns, as all below do,
// whether there was enough memory.
bool run_sample(const Step* steps, int64_t count, const float* x, const float* residual, float* y, int threads) {
    int64_t largest = largest_between(steps, count), extra = 0;
    for (int64_t k = 0; k < count; ++k)
        if (steps[k].kind == convolution) extra = std::max(extra, image_floats(steps[k]));
    float* scratch = scratch_of_thread.take(2 * largest + extra + 1);  // at least one: nothing would be null
    if (!scratch) return false;
    float *in = scratch, *out = scratch + largest;
    for (int64_t k = 0; k < count; ++k) {
        bool ends = k + 1 == count;
        float* to = ends ? y : out;
        const float* added = ends ? residual : nullptr;
        bool whole = true;
        if (steps[k].kind == linear)
            multiply_vector(steps[k], x, added, to, threads);
        else if (steps[k].kind == depthwise)
            whole = convolve_depthwise(steps[k], x, added, to, threads);
        else
            whole = convolve(steps[k], x, added, to, scratch + 2 * largest, threads);
        if (!whole) return false;
        x = to;
        std::swap(in, out);
    }
    return true;
}

// Multiplications for one sample, with those of pixels that are dropped.
int64_t work(const Step* steps, int64_t count) {
    int64_t sum = 0;
    for (int64_t k = 0; k < count; ++k)
        sum += steps[k].weights() * (steps[k].kind == linear ? 1 : steps[k].run_length());
    return sum;
}

// Threads share the samples; or, if there are fewer samples than threads, each of their layers.
bool run_samples(const Step* steps, int64_t count, const float* x, const float* residual, int64_t batch, float* y,
                 int threads) {
    int64_t in = steps[0].features_in(), out = steps[count - 1].features_out(), each = work(steps, count);
    bool share_samples = batch >= threads && each * batch >= parallel_min;
    int within = share_samples || each < parallel_min ? 1 : threads;
    return over_pieces(batch, share_samples ? threads : 1, [&](int64_t n) {
        return run_sample(steps, count, x + n * in, residual ? residual + n * out : nullptr, y + n * out, within);
    });
}

// Calls body with a number of vectors of a panel that the compiler knows.
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

// Takes a batch through a chain in panels of `vectors` vectors, or of fewer if they hold it.
bool run_panels(const Step* steps, int64_t count, const float* x, const float* residual, int64_t batch, float* y,
                int64_t vectors, int threads) {
    int64_t in = steps[0].features_in(), features = steps[count - 1].features_out();
    if (work(steps, count) * batch < parallel_min) threads = 1;
    vectors = vectors_for(batch, vectors);
    bool alone = count == 1 && steps[0].kind == linear;
    // Pieces of work: panels; and of a single layer with fewer panels than threads, shares of its rows.
    int64_t panels = (batch + vectors * width - 1) / (vectors * width);
    int64_t shares = alone && panels < threads ? std::min<int64_t>(threads, steps[0].segments()) : 1;
    return over_pieces(panels * shares, threads, [&](int64_t k) {
        int64_t first = k / shares * vectors * width, share = k % shares;
        int64_t samples = std::min(vectors * width, batch - first);
        int64_t own = vectors_for(samples, vectors);
        const float* added = residual ? residual + first * features : nullptr;
        int64_t room = alone ? steps[0].inputs + steps[0].rows : Room(steps, count).all();
        float* scratch = scratch_of_thread.take(room * own * width + 1);
        if (!scratch) return false;
        with_panel(own, [&](auto n) {
            if (alone)
                run_layer<n()>(steps[0], x + first * in, added, samples, steps[0].cut(share, shares),
                               steps[0].cut(share + 1, shares), y + first * features, scratch);
            else
                run_panel<n()>(steps, count, x + first * in, added, samples, y + first * features, scratch);
        });
        return true;
    });
}

}  // namespace

// A chain, ready to run: sample by sample if `vectors` is 0, else in panels of so many vector registers (1, 2, 4 or 8).
struct Chain {
    const Step* steps;
    int64_t count, vectors;
};

// Takes `batch` samples x through a chain to y. `residual`, which may be null, is added before the last activation.
// Returns 0, or 1 if there was not enough memory.
EXPORT int secateur_chain(const Chain* chain, const float* x, int64_t batch, float* y, int threads,
                          const float* residual) {
    NoDenormals guard;
    bool whole = chain->vectors ? run_panels(chain->steps, chain->count, x, residual, batch, y, chain->vectors, threads)
                                : run_samples(chain->steps, chain->count, x, residual, batch, y, threads);
    return whole ? 0 : 1;
}

// Orders the rows of each cell, as many as `counts` says and at most `segment`: row i of cell c is number c·segment + i,
// its weights are numbers starts[c·segment + i] to the next of `starts`, and order[c·segment + k] is the row that comes
// k-th.
// Returns 0, or 1 if there was not enough memory.
EXPORT int secateur_order_rows(int64_t cells, int64_t segment, const int64_t* counts, const int64_t* starts,
                               const int32_t* parts, int64_t most, int32_t* order) {
    try {
        for (int64_t c = 0; c < cells; ++c)
            order_rows(counts[c], starts + c * segment, parts, most, order + c * segment);
    } catch (const std::bad_alloc&) {
        return 1;
    }
    return 0;
}

// The lanes of a vector register, and the bytes of a step: the caller checks that its own layout agrees.
EXPORT int64_t secateur_lanes() { return width; }
EXPORT int64_t secateur_step_bytes() { return sizeof(Step); }
