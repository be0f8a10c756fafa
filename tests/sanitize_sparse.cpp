// Drives the sparse kernels through random chains, to be built with sanitizers: every array has exactly the size it
// needs, so that one number read or written beside it stops the program. What comes out is compared with plain loops.
// The kernels' source is included rather than linked: its Step is what we lay out here.

#define SECATEUR_PARALLEL_MIN 1
#include "../native/sparse.cpp"

#include <cmath>
#include <cstdio>
#include <memory>
#include <random>
#include <vector>

namespace {

std::mt19937_64 random_bits;
int64_t below(int64_t n) { return static_cast<int64_t>(random_bits() % static_cast<uint64_t>(n)); }
float number() { return static_cast<float>(below(2001) - 1000) / 500.f; }

[[noreturn]] void fail(const char* what, int64_t number) {
    std::printf("case %lld: %s\n", static_cast<long long>(number), what);
    std::exit(1);
}

template <class T>
using Exact = std::unique_ptr<T[]>;  // a vector may have room behind its end

template <class T>
Exact<T> exact(const std::vector<T>& from) {
    Exact<T> made(new T[from.size()]);
    std::copy(from.begin(), from.end(), made.get());
    return made;
}

struct Weight {
    int64_t row, channel, down, right;
    float value;
    int64_t block, place;  // as the kernel wants them
    int64_t group = 0;     // of its row
};

// A step, what it points to, and its weights as plain loops want them.
struct Made {
    Step step{};
    std::vector<Weight> weights;
    int64_t down = 0, right = 0;  // the extent of a filter
    Exact<int32_t> order, starts, wide, phases;
    Exact<uint16_t> narrow;
    Exact<float> values, table, bias;
    Exact<uint8_t> codes;
};

// Rows stand `side` by side, and those of a slice end where its longest one does.
void pack(Made& made, int64_t side) {
    Step& step = made.step;
    step.side = side;
    std::vector<int32_t> order, starts{0}, places;
    std::vector<float> values;
    for (int64_t s = 0; s < step.segments(); ++s)
        for (int64_t b = 0; b < step.blocks; ++b) {
            int64_t count = std::min(step.segment, step.rows - s * step.segment);
            std::vector<int32_t> rows(count);
            for (int64_t i = 0; i < count; ++i) rows[i] = static_cast<int32_t>(s * step.segment + i);
            std::shuffle(rows.begin(), rows.end(), random_bits);
            rows.resize(step.segment, -1);  // which nobody may look at
            order.insert(order.end(), rows.begin(), rows.end());
            // In each slice one group after the other; where rows stand side by side there is one group.
            for (int64_t number = 0; number < step.slices() * step.groups(); ++number) {
                int64_t first = number / step.groups() * side, group = number % step.groups();
                std::vector<std::vector<const Weight*>> slice(side);
                size_t longest = 0;
                for (int64_t i = 0; i < side && first + i < count; ++i) {
                    for (const Weight& weight : made.weights)
                        if (weight.row == rows[first + i] && weight.block == b && weight.group == group)
                            slice[i].push_back(&weight);
                    longest = std::max(longest, slice[i].size());
                }
                for (size_t k = 0; k < longest; ++k)
                    for (const std::vector<const Weight*>& row : slice) {
                        places.push_back(k < row.size() ? static_cast<int32_t>(row[k]->place) : 0);
                        values.push_back(k < row.size() ? row[k]->value : 0.f);
                    }
                starts.push_back(static_cast<int32_t>(places.size()));
            }
        }
    made.order = exact(order), made.starts = exact(starts);
    step.order = made.order.get(), step.starts = made.starts.get();
#ifdef SECATEUR_ONE_TYPE
    step.wide = true;
#else
    step.wide = places.empty() ? below(2) : *std::max_element(places.begin(), places.end()) > 65535 || below(2);
#endif
    if (step.wide)
        made.wide = exact(places), step.places = made.wide.get();
    else
        made.narrow = exact(std::vector<uint16_t>(places.begin(), places.end())), step.places = made.narrow.get();
#ifdef SECATEUR_ONE_TYPE
    bool own = true;
#else
    bool own = below(2);
#endif
    if (own) {
        made.values = exact(values), step.values = made.values.get();
        return;
    }
    std::vector<float> table(256, 0.f);  // all values are of a few
    std::vector<uint8_t> codes;
    for (float value : values) {
        codes.push_back(static_cast<uint8_t>(value * 4 + 128));
        table[codes.back()] = value;
    }
    made.codes = exact(codes), made.table = exact(table);
    step.codes = made.codes.get(), step.table = made.table.get();
}

float weight_value() { return static_cast<float>(below(33) - 16) / 4.f; }

void set_bias(Made& made) {
    std::vector<float> bias(made.step.rows);
    for (float& one : bias) one = number();
    made.bias = exact(bias), made.step.bias = made.bias.get();
}

void make_linear(Made& made, int64_t inputs, bool panels) {
    Step& step = made.step;
    step.kind = linear, step.activation = below(7), step.rows = 1 + below(70), step.inputs = inputs;
    step.block = 1 + below(inputs);
    step.blocks = (inputs + step.block - 1) / step.block;
    step.segment = 1 + below(step.rows);
    int64_t percent = below(3) ? below(101) : 0;
    for (int64_t r = 0; r < step.rows; ++r)
        for (int64_t c = 0; c < inputs; ++c)
            if (below(100) < percent)
                made.weights.push_back({r, c, 0, 0, weight_value(), c / step.block, c % step.block});
    set_bias(made);
    pack(made, panels ? 1 : width);
}

void make_convolution(Made& made, int64_t channels, int64_t height, int64_t wide, bool panels) {
    Step& step = made.step;
    step.kind = convolution, step.activation = below(7), step.rows = 1 + below(12), step.inputs = channels;
    step.height = height, step.width = wide;
    bool plain = below(3) == 0;  // these read the image where it stands, with nothing around it
    step.stride_y = plain ? 1 : 1 + below(3), step.stride_x = plain ? 1 : 1 + below(3);
    int64_t around = below(8) ? 3 : 40;  // sometimes more than a vector
    step.pad_y = plain ? 0 : below(3), step.pad_x = plain ? 0 : below(around);
    made.down = std::min<int64_t>(1 + below(5), height + 2 * step.pad_y);
    made.right = std::min<int64_t>(1 + below(5), wide + 2 * step.pad_x);
    step.out_height = (height + 2 * step.pad_y - made.down) / step.stride_y + 1;
    step.out_width = (wide + 2 * step.pad_x - made.right) / step.stride_x + 1;
    step.pool = below(2) ? below(std::min<int64_t>(std::min(step.out_height, step.out_width), 3) + 1) : 0;
    step.pool_stride = step.pool ? 1 + below(3) : 1;
    step.pooled_height = step.pool ? (step.out_height - step.pool) / step.pool_stride + 1 : step.out_height;
    step.pooled_width = step.pool ? (step.out_width - step.pool) / step.pool_stride + 1 : step.out_width;
    step.block = panels ? channels : 1 + below(channels);
    step.blocks = (channels + step.block - 1) / step.block;
    step.segment = panels ? step.rows : 1 + below(step.rows);
    int64_t strides[2] = {panels ? 1 : step.stride_y, panels ? 1 : step.stride_x};
    // An image that must be padded or split is so in bands of output rows.
    plain = !panels && step.stride_y == 1 && step.stride_x == 1 && step.pad_y == 0 && step.pad_x == 0 && below(2);
    step.span = step.out_width, step.tile_rows = 1;
    step.band = panels || plain ? step.out_height : 1 + below(step.out_height);
    step.plane_rows = panels ? height + 2 * step.pad_y : plain ? height : step.band + (made.down - 1) / strides[0];
    step.pitch = (wide + 2 * step.pad_x + strides[1] - 1) / strides[1];
    step.plane = step.plane_rows * step.pitch;
    if (!panels && !plain && strides[1] == 1 && below(2)) {  // zeros on the left of a row serve the row before
        step.pitch = std::max(wide + step.pad_x, step.out_width);
        step.plane = step.plane_rows * step.pitch + step.pad_x + below(20);
    }
    step.packs = !panels && (!plain || step.run_length() < width);
    int64_t vectors = (step.out_width + width - 1) / width, farthest = (made.right - 1) / strides[1];
    if (!panels && !plain && vectors > 1 && below(2)) {  // tiles, whose rows begin as vectors do
        step.tile = 2 + below(std::min(vectors, longest_tile) - 1);
        step.tile_rows = below(2) ? lowest(step.tile) : highest(step.tile);
        bool strips = below(2);  // of whole tiles
        if (strips) step.span = std::min(step.tile * (1 + below(vectors / step.tile)) * width, step.out_width);
        step.pitch = (std::max(strips ? 0 : step.pitch, step.span + farthest) + width - 1) / width * width;
        step.plane = step.plane_rows * step.pitch;
    } else if (!panels && !plain && farthest && below(7)) {  // tiles of sums that move, as wide as a slab
        step.tile = farthest / width + 1 + below(2);
        step.tile_rows = below(2) ? lowest(step.tile) : highest(step.tile);
        step.span = std::min(step.tile * width - farthest - below(2), step.out_width);
        bool fits = step.tile <= longest_tile && step.span > 0 && step.span >= (step.tile - 1) * width;
        if (fits && step.span + farthest > (step.tile - 1) * width && step.tile_rows <= step.out_height) {
            step.turns = farthest, step.pitch = step.tile * width;
            step.band = std::max(step.band, step.tile_rows);
            step.plane_rows = step.band + (made.down - 1) / strides[0];
            step.plane = step.plane_rows * step.pitch;
        } else {
            step.tile = 0, step.tile_rows = 1, step.span = step.out_width;
        }
    }
    step.slab_blocks = panels || plain || below(2) ? step.blocks : 1 + below(step.blocks);
    int64_t percent = below(3) ? below(101) : 0;
    for (int64_t r = 0; r < step.rows; ++r)
        for (int64_t c = 0; c < channels; ++c)
            for (int64_t i = 0; i < made.down; ++i)
                for (int64_t j = 0; j < made.right; ++j)
                    if (below(100) < percent) made.weights.push_back({r, c, i, j, weight_value(), c / step.block, 0});
    std::vector<int64_t> number(strides[0] * strides[1], -1);  // phases that are read, one after the other
    std::vector<int32_t> phases;
    for (Weight& weight : made.weights) {
        int64_t dy = weight.down % strides[0], dx = weight.right % strides[1], &phase = number[dy * strides[1] + dx];
        if (phase < 0) {
            phase = static_cast<int64_t>(phases.size()) / 3;
            int64_t reach = step.span + (made.right - 1 - dx) / strides[1];
            for (int64_t each : {dy, dx, step.tile ? reach : step.pitch}) phases.push_back(static_cast<int32_t>(each));
        }
        int64_t held = panels ? channels : step.slab_channels();
        weight.place = (phase * held + weight.channel % held) * step.plane + weight.down / strides[0] * step.pitch +
                       (step.turns ? 0 : weight.right / strides[1]);
        weight.group = step.turns ? step.turns - weight.right / strides[1] : 0;
    }
    step.phase_count = static_cast<int64_t>(phases.size()) / 3;
    made.phases = exact(phases), step.phases = made.phases.get();
    set_bias(made);
    pack(made, 1);
}

void make_depthwise(Made& made, int64_t channels, int64_t height, int64_t wide) {
    Step& step = made.step;
    step.kind = depthwise, step.activation = below(7), step.rows = step.inputs = channels;
    step.height = height, step.width = wide;
    step.stride_y = 1 + below(3), step.stride_x = 1 + below(3);
    step.pad_y = below(3), step.pad_x = below(below(8) ? 3 : 40);
    int64_t high = height + step.pad_y + below(3), across = wide + step.pad_x + below(3);  // with zeros on all sides
    step.filter_height = made.down = std::min(1 + below(8), high);
    step.filter_width = made.right = std::min(1 + below(8), across);
    step.pooled_height = step.out_height = (high - made.down) / step.stride_y + 1;
    step.pooled_width = step.out_width = (across - made.right) / step.stride_x + 1;
    std::vector<float> values;
    for (int64_t c = 0; c < channels; ++c)
        for (int64_t i = 0; i < made.down; ++i)
            for (int64_t j = 0; j < made.right; ++j) {
                made.weights.push_back({c, c, i, j, weight_value(), 0, 0});
                values.push_back(made.weights.back().value);
            }
    made.values = exact(values), step.values = made.values.get();
    set_bias(made);
}

double activated_plainly(double x, int64_t activation) {
    if (activation == relu) return std::max(x, 0.0);
    if (activation == relu6) return std::min(std::max(x, 0.0), 6.0);
    if (activation == silu) return x / (1 + std::exp(-x));
    if (activation == hardswish) return x * std::min(std::max(x + 3, 0.0), 6.0) / 6;
    if (activation == gelu) return 0.5 * x * std::erfc(-x / std::sqrt(2.0));
    if (activation == gelu_tanh) return 0.5 * x * (1 + std::tanh(std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)));
    return x;
}

std::vector<double> run_plainly(const Made& made, const std::vector<double>& x, const float* residual) {
    const Step& step = made.step;
    bool images = step.kind != linear;
    int64_t high = images ? step.out_height : 1, wide = images ? step.out_width : 1;
    std::vector<double> y(step.rows * high * wide);
    for (int64_t k = 0; k < static_cast<int64_t>(y.size()); ++k) y[k] = step.bias[k / (high * wide)];
    for (const Weight& weight : made.weights)
        for (int64_t i = 0; i < high; ++i)
            for (int64_t j = 0; j < wide; ++j) {
                int64_t down = images ? i * step.stride_y + weight.down - step.pad_y : 0;
                int64_t right = images ? j * step.stride_x + weight.right - step.pad_x : 0;
                if (images && (down < 0 || down >= step.height || right < 0 || right >= step.width)) continue;
                int64_t from = images ? (weight.channel * step.height + down) * step.width + right : weight.channel;
                y[(weight.row * high + i) * wide + j] += weight.value * x[from];
            }
    for (int64_t k = 0; k < static_cast<int64_t>(y.size()); ++k)
        y[k] = activated_plainly(y[k] + (residual ? residual[k] : 0), step.activation);
    if (!images || !step.pool) return y;
    std::vector<double> pooled(step.features_out(), -INFINITY);
    for (int64_t k = 0; k < step.features_out(); ++k) {
        int64_t j = k % step.pooled_width, i = k / step.pooled_width % step.pooled_height;
        int64_t r = k / (step.pooled_width * step.pooled_height);
        for (int64_t p = 0; p < step.pool * step.pool; ++p)
            pooled[k] = std::max(pooled[k], y[(r * high + i * step.pool_stride + p / step.pool) * wide +
                                              j * step.pool_stride + p % step.pool]);
    }
    return pooled;
}

void run_case(int64_t which) {
    int64_t vectors = below(2) ? 0 : int64_t(1) << below(7), count = 1 + below(3);
    std::vector<Made> made(count);
    bool images = below(2);
    int64_t side = below(2) ? 5 : below(7) ? 20 : 70;
    int64_t channels = 1 + below(6), height = 1 + below(side), wide = 1 + below(below(8) ? side : 8 * side);
    int64_t features = 1 + below(90);
    for (Made& one : made) {
        if (images) {
            if (vectors || below(3))
                make_convolution(one, channels, height, wide, vectors);
            else
                make_depthwise(one, channels, height, wide);
            channels = one.step.rows, height = one.step.pooled_height, wide = one.step.pooled_width;
            features = one.step.features_out();
            images = below(3);
        } else {
            make_linear(one, features, vectors);
            features = one.step.rows;
        }
    }
    std::vector<Step> steps;
    for (const Made& one : made) steps.push_back(one.step);
    Exact<Step> exact_steps = exact(steps);
    const Step &first = steps.front(), &last = steps.back();
    int64_t batch = 1 + below(vectors ? 3 * width : 4), in = first.features_in(), out = last.features_out();
    std::vector<float> given(batch * in), added(batch * out);
    for (float& one : given) one = number();
    for (float& one : added) one = number();
    bool adds = !(last.kind == convolution && last.pool) && below(2);
    Exact<float> x = exact(given), residual = exact(added), y(new float[batch * out]);
    Chain chain{exact_steps.get(), count, vectors};
    int threads = static_cast<int>(1 + below(3));
    if (secateur_chain(&chain, x.get(), batch, y.get(), threads, adds ? residual.get() : nullptr))
        fail("no memory", which);
    for (int64_t n = 0; n < batch; ++n) {
        std::vector<double> wanted(given.begin() + n * in, given.begin() + (n + 1) * in);
        double most = 1;  // of all layers: what is left where large numbers cancel is as wrong as they are
        for (int64_t k = 0; k < count; ++k) {
            wanted = run_plainly(made[k], wanted, adds && k + 1 == count ? &added[n * out] : nullptr);
            for (double one : wanted) most = std::max(most, std::abs(one));
        }
        for (int64_t k = 0; k < out; ++k)
            if (!(std::abs(y[n * out + k] - wanted[k]) < 1e-4 * most)) fail("another result", which);
    }
}

}  // namespace

int main(int, char** arguments) {
    const int64_t cases = std::atoll(arguments[1]);
    for (int64_t which = 0; which < cases; ++which) {
        random_bits.seed(which);
        run_case(which);
    }
    std::printf("%lld cases\n", static_cast<long long>(cases));
    return 0;
}
