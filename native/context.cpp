// The `context` codec: an adaptive binary coder for a sparse matrix of integer levels, zero where pruned.
//
// Level by level, row by row, it codes "is it zero?", then the sign, then the size, each as binary decisions. A decision
// is predicted by several adaptive probabilities at once, each chosen by another context (this column so far, this row so
// far, the neighbours, ...). Their log odds are added with weights that are learned as well:
//
//   P(y = 1) = σ( Σ wᵢ·sᵢ ),  sᵢ = log(pᵢ / (1 − pᵢ))         then  wᵢ += η·(y − P)·sᵢ  and  pᵢ += (y − pᵢ)/(nᵢ + 3/2)
//
// and a range coder turns decision and P into bytes. Everything is integer arithmetic with a fixed order of operations,
// so that every machine writes the same bytes; encode/codecs/context_model.py is the same coder in Python and says what
// each context is for. The number of non-zeros is known beforehand: nothing is coded where the rest must be all zeros or
// none.

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <new>
#include <vector>

namespace {

#define INLINE inline __attribute__((always_inline))

constexpr int largest_logit = 2815;             // 11 nats, in units of 1/256
constexpr uint32_t certain = (1u << 22) - 1;    // a probability of one
constexpr int weight_bits = 20, dot_bits = 14;  // weights are kept finer than they are used
constexpr int32_t largest_weight = (4 << weight_bits) - 1;
constexpr int learning_shift = 13;
constexpr int unary_max = 16;  // more sizes than these are coded by their number of digits first

struct Tables {
    int16_t stretch[2][4096];  // log odds of p·2²²: of p >> 4 below 1/64, of p >> 10 from there on
    uint16_t squash[2 * largest_logit + 1];
    uint16_t rate[1024];

    Tables() {
        uint64_t fine[2 * largest_logit + 1];  // σ(x)·2³², from e⁻ˣ by repeated multiplication: no libm, same everywhere
        uint64_t e = uint64_t(1) << 32;
        for (int x = 0; x <= largest_logit; ++x) {
            uint64_t p = UINT64_MAX / ((uint64_t(1) << 32) + e);
            fine[largest_logit + x] = p;
            fine[largest_logit - x] = (uint64_t(1) << 32) - p;
            e = (e * 4278222805u) >> 32;  // exp(−1/256)·2³²
        }
        for (int i = 0; i <= 2 * largest_logit; ++i)
            squash[i] = static_cast<uint16_t>(std::clamp<uint64_t>((fine[i] + 32768) >> 16, 1, 65535));
        for (int coarse = 0; coarse < 2; ++coarse)
            for (int i = 0, x = 0; i < 4096; ++i) {
                uint64_t middle = (uint64_t(2 * i + 1) << (coarse ? 9 : 3)) << 10;
                while (x < 2 * largest_logit && fine[x + 1] <= middle) ++x;
                stretch[coarse][i] = static_cast<int16_t>(x - largest_logit);
            }
        for (int n = 0; n < 1024; ++n) rate[n] = static_cast<uint16_t>(8192 / (2 * n + 3));
    }
};

const Tables tables;

INLINE int stretch(uint32_t p) {
    return p < 1u << 16 ? tables.stretch[0][p >> 4] : tables.stretch[1][p >> 10];
}

// A probability that learns: the mean of what it has seen, an average over the last `limit` decisions later on.
struct Bit {
    uint32_t p;  // P(1)·2²²
    uint32_t n;  // decisions seen

    INLINE void learn(int y, uint32_t limit) {
        uint32_t mask = -static_cast<uint32_t>(y) & certain;
        uint32_t other = p ^ mask;
        other -= ((other >> 3) * tables.rate[n]) >> 9;
        p = other ^ mask;
        n += n < limit;
    }
};

class Encoder {
public:
    Encoder(uint8_t* out, int64_t capacity) : begin(out), out(out), end(out + capacity) {}

    INLINE int code(int y, uint32_t p) {  // p: P(y = 1)·2¹⁶, at least 1 and at most 65535
        auto bound = static_cast<uint32_t>((uint64_t(range) * p) >> 16);
        if (y) {
            range = bound;
        } else {
            low += bound;
            range -= bound;
        }
        for (; range < 1u << 24; range <<= 8) shift();
        return y;
    }

    // Ends the stream with the number in [low, low + range) that has most zeros at its end, and leaves those out.
    // Returns the length, or −1 if the buffer was too small.
    int64_t finish() {
        uint64_t last = low + range - 1;
        int zeros = 32;
        while ((last >> zeros << zeros) < low) zeros -= 8;
        low = last >> zeros << zeros;
        for (int i = 0; i < 5; ++i) shift();
        if (overflow) return -1;
        out -= std::min<int64_t>(zeros / 8, out - begin);
        return out - begin;
    }

private:
    void shift() {
        if (static_cast<uint32_t>(low) < 0xff000000u || low >> 32) {
            auto carry = static_cast<uint8_t>(low >> 32);
            if (started) put(static_cast<uint8_t>(cache + carry));
            for (; pending; --pending) put(static_cast<uint8_t>(0xff + carry));
            started = true;  // the first byte is a zero that is left out
            cache = static_cast<uint8_t>(low >> 24);
        } else {
            ++pending;
        }
        low = (low & 0x00ffffff) << 8;
    }

    void put(uint8_t byte) {
        if (out < end)
            *out++ = byte;
        else
            overflow = true;
    }

    uint8_t *begin, *out, *end;
    uint64_t low = 0;
    uint32_t range = UINT32_MAX;
    int64_t pending = 0;
    uint8_t cache = 0;
    bool started = false, overflow = false;
};

class Decoder {
public:
    Decoder(const uint8_t* in, int64_t length) : in(in), end(in + length) {
        for (int i = 0; i < 4; ++i) next();
        value = window;
    }

    INLINE int code(int, uint32_t p) {
        auto bound = static_cast<uint32_t>((uint64_t(range) * p) >> 16);
        if (__builtin_expect(value < bound, 0)) {
            range = bound;
            for (; range < 1u << 24; range <<= 8) value = value << 8 | next();
            return 1;
        }
        value -= bound;
        range -= bound;
        for (; range < 1u << 24; range <<= 8) value = value << 8 | next();
        return 0;
    }

    // Whether the stream ends as an encoder would have ended it. The last four bytes less `value` are the encoder's low.
    bool consumed_exactly() const {
        if (in != end) return false;
        const auto low = static_cast<uint32_t>(window - value);
        const uint64_t last = uint64_t(low) + range - 1;
        int zeros = 32;
        while ((last >> zeros << zeros) < low) zeros -= 8;
        return past == zeros / 8 && static_cast<uint32_t>(last >> zeros << zeros) == window;
    }

private:
    INLINE uint32_t next() {
        uint32_t byte = 0;
        if (in < end)
            byte = *in++;
        else
            ++past;  // zeros that the encoder left out
        window = window << 8 | byte;
        return byte;
    }

    const uint8_t *in, *end;
    int64_t past = 0;
    uint32_t range = UINT32_MAX, value = 0, window = 0;  // the last four bytes read
};

template <int count>
struct Weights {
    int32_t w[count];
};

template <int y, int bit_count, int count>
INLINE void update(Weights<count>& weights, const int (&s)[count], uint32_t p, Bit* const* bits, const uint32_t* limits) {
    int error = (y << 16) - static_cast<int>(p);
    for (int i = 0; i < count; ++i) {
        int32_t moved = weights.w[i] + ((s[i] * error + (1 << (learning_shift - 1))) >> learning_shift);
        weights.w[i] = std::clamp(moved, -largest_weight, largest_weight);
    }
    for (int i = 0; i < bit_count; ++i) bits[i]->learn(y, limits[i]);
}

// Codes one decision from the probabilities `bits`, and from `given`, log odds that come without one, if `count` is one
// more than the bits are.
template <int bit_count, int count, class Coder>
INLINE int mix(Coder& coder, int y, Weights<count>& weights, Bit* const* bits, const uint32_t* limits, int given) {
    static_assert(count - bit_count <= 1, "one value may be given");
    int s[count], dot = 0;
    for (int i = 0; i < count; ++i) s[i] = i < bit_count ? stretch(bits[i]->p) : given;
    for (int i = 0; i < count; ++i) dot += (weights.w[i] >> (weight_bits - dot_bits)) * s[i];
    uint32_t p = tables.squash[std::clamp(dot >> dot_bits, -largest_logit, largest_logit) + largest_logit];
    // A branch, not a value: most decisions are predicted, so the following code can start before they are known.
    if (coder.code(y, p)) {
        update<1, bit_count>(weights, s, p, bits, limits);
        return 1;
    }
    update<0, bit_count>(weights, s, p, bits, limits);
    return 0;
}

template <class Coder>
INLINE int code_alone(Coder& coder, int y, Bit& bit, uint32_t limit) {
    y = coder.code(y, std::clamp<uint32_t>(bit.p >> 6, 1, 65535));
    bit.learn(y, limit);
    return y;
}

INLINE int digits(uint64_t x) { return x ? 64 - __builtin_clzll(x) : 0; }

// 8·log2(x), its fraction linear.
INLINE int eighths(uint64_t x) {
    int e = digits(x) - 1;
    return e * 8 + static_cast<int>((e >= 3 ? x >> (e - 3) : x << (3 - e)) & 7);
}

struct Problem {
    int64_t rows, columns, nonzero;
    int32_t smallest, largest;
    int64_t stride;  // columns that lie above each other in an image are so many apart; 0: none do
};

// The non-zeros of a region compared with the number expected from the density of the matrix, in half octaves:
// (k + 1/4) / (n·density + 1/4) for k non-zeros among n levels.
class Densities {
public:
    explicit Densities(uint32_t density) : density(density) {}
    int16_t found(uint64_t k) const { return static_cast<int16_t>(eighths((4 * k + 1) << 16)); }
    int16_t expected(uint64_t n) const { return static_cast<int16_t>(eighths(((n * density) >> 4) + (1 << 16))); }
    static INLINE int bucket(int found, int expected) { return std::clamp((found - expected + 22) >> 2, 0, 15); }

private:
    uint64_t density;
};

constexpr uint32_t place_limit = 1020, context_limit = 400, value_limit = 255;

template <int count>
Weights<count> start(const int (&sixteenths)[count]) {
    Weights<count> weights;
    for (int i = 0; i < count; ++i) weights.w[i] = sixteenths[i] * (1 << (weight_bits - 4));
    return weights;
}

// Sign and size of the levels that are not zero.
class Values {
public:
    explicit Values(const Problem& problem) : problem(problem), column_sign(problem.columns, even) {}

    void begin_row() { row_sign = even; }

    // `left`, `up`, `above`: the neighbouring levels; `row`, `column`: mean size of the row and of the column so far,
    // doubled, or −1 if there was none.
    template <class Coder>
    int32_t code(Coder& coder, int32_t level, int64_t j, int32_t left, int32_t up, int32_t above, int64_t row,
                 int64_t column) {
        int negative = sign(coder, level < 0, j, left, up, above);
        int32_t largest = negative ? -problem.smallest : problem.largest;
        int32_t size = largest <= unary_max ? few(coder, std::abs(level), largest, negative, left, up, above, row, column)
                                            : many(coder, std::abs(level), largest, negative, left, up, above, row, column);
        return negative ? -size : size;
    }

private:
    static constexpr Bit even{1u << 21, 2}, blank{1u << 21, 0};
    static constexpr uint32_t limits[5] = {value_limit, value_limit, value_limit, value_limit, value_limit};

    static INLINE int side(int32_t level) { return level == 0 ? 0 : level < 0 ? 1 : 2; }

    template <class Coder>
    int sign(Coder& coder, int negative, int64_t j, int32_t left, int32_t up, int32_t above) {
        if (problem.smallest == 0) return 0;
        if (problem.largest == 0) return 1;
        int beside = side(left) + 3 * side(above);
        Bit* bits[5] = {&all_sign, &column_sign[j], &row_sign, &near_sign[beside * 3 + side(up)], &beside_sign[beside]};
        return mix<5>(coder, negative, sign_weights, bits, limits, 0);
    }

    // One decision "larger than k?" for each k.
    template <class Coder>
    int32_t few(Coder& coder, int32_t size, int32_t largest, int negative, int32_t left, int32_t up, int32_t above,
                int64_t row, int64_t column) {
        int row_mean = row < 0 ? 15 : static_cast<int>(std::min<int64_t>(row, 15));
        int column_mean = column < 0 ? 15 : static_cast<int>(std::min<int64_t>(column, 15));
        int near = std::min(7, std::abs(left) + std::abs(above)) * 8 + std::min(7, std::abs(up));
        int32_t k = 1;
        while (k < largest && larger(coder, size > k, k, negative, row_mean, column_mean, near)) ++k;
        return k;
    }

    // The number of digits like that, then the digits below the first one.
    template <class Coder>
    int32_t many(Coder& coder, int32_t size, int32_t largest, int negative, int32_t left, int32_t up, int32_t above,
                 int64_t row, int64_t column) {
        int row_mean = row < 0 ? 15 : std::min(15, eighths(std::max<int64_t>(row / 2, 1)) >> 2);
        int column_mean = column < 0 ? 15 : std::min(15, eighths(std::max<int64_t>(column / 2, 1)) >> 2);
        int near = std::min(7, digits(std::max(std::abs(left), std::abs(above)))) * 8 + std::min(7, digits(std::abs(up)));
        int count = 1, most = digits(largest);
        while (count < most && larger(coder, digits(size) > count, count, negative, row_mean, column_mean, near)) ++count;
        int32_t value = 1;
        for (int digit = count - 2; digit >= 0; --digit) {
            Bit& bit = value < 4 ? first_digits[count][value] : later_digits[count][digit];
            value = 2 * value + code_alone(coder, (size >> digit) & 1, bit, value_limit);
        }
        return std::min(value, largest);  // only a corrupt stream exceeds it
    }

    template <class Coder>
    INLINE int larger(Coder& coder, int y, int k, int negative, int row_mean, int column_mean, int near) {
        Bit* bits[4] = {&by_sign[k][negative], &by_row[k][row_mean], &by_column[k][column_mean], &by_near[k][near]};
        return mix<4>(coder, y, size_weights[k], bits, limits, 0);
    }

    template <class T>
    static std::vector<T> filled(std::size_t count, T value) {
        return std::vector<T>(count, value);
    }

    template <int inner>
    struct Row {
        Bit bits[inner];
        Row(Bit value = blank) { std::fill_n(bits, inner, value); }
        Bit& operator[](int i) { return bits[i]; }
    };

    static constexpr int sizes = 33;  // sizes or numbers of digits
    const Problem problem;
    Bit all_sign = even, row_sign = even;
    std::vector<Bit> column_sign;
    Row<27> near_sign{even};
    Row<9> beside_sign{even};
    Row<2> by_sign[sizes];
    Row<16> by_row[sizes], by_column[sizes];
    Row<64> by_near[sizes];
    std::vector<Row<4>> first_digits = filled(sizes, Row<4>(even));
    std::vector<Row<32>> later_digits = filled(sizes, Row<32>(even));
    Weights<5> sign_weights = start({4, 4, 4, 4, 4});
    std::vector<Weights<4>> size_weights = filled(sizes, start({4, 4, 4, 4}));
};

constexpr Bit Values::even, Values::blank;
constexpr uint32_t Values::limits[5];

// Where levels are read from or written to: a whole matrix, or a list of non-zeros. With a list, the row that is being
// decoded and the one above are kept as well, because contexts need them. One class for both, so that the loop below is
// compiled once for each coder and everything in it inlined.
class Levels {
public:
    Levels(int32_t* matrix, int64_t columns) : rows(matrix), columns(columns) {}
    Levels(void* places, bool wide, int32_t* levels, const Problem& problem)
        : kept(std::min<int64_t>(problem.rows, 2) * problem.columns, 0), rows(kept.data()), columns(problem.columns),
          wide(wide), listed(levels), places(places) {}
    Levels(const Levels&) = delete;

    int32_t* row(int64_t i) { return rows + (listed ? i % 2 : i) * columns; }
    void begin_row(int64_t i) {
        if (listed && i > 1) std::fill_n(row(i), columns, 0);
    }
    void found(int64_t place, int32_t level) {
        if (!listed) return;
        if (wide)
            static_cast<int64_t*>(places)[count] = place;
        else
            static_cast<int32_t*>(places)[count] = static_cast<int32_t>(place);
        listed[count++] = level;
    }

private:
    std::vector<int32_t> kept;
    int32_t* const rows;
    const int64_t columns;
    const bool wide = false;
    int32_t* const listed = nullptr;
    void* const places = nullptr;
    int64_t count = 0;
};

// Codes the matrix, level by level. A decoder must find zeros wherever it has not yet written.
template <class Coder>
void run(Coder& coder, Levels& levels, const Problem& problem) {
    const int64_t rows = problem.rows, columns = problem.columns, stride = problem.stride;
    int64_t cells = rows * columns, left = problem.nonzero;
    if (left == 0) return;

    auto share = [&] { return static_cast<uint32_t>(std::min<uint64_t>(certain, (uint64_t(left) << 22) / cells)); };
    const uint32_t density = std::clamp<uint32_t>(share(), 64, certain - 64);
    const Densities densities(density);
    // A column or row is assumed to be as dense as the matrix until a quarter of a non-zero is expected in it.
    const Bit place{density, std::clamp<uint32_t>((1u << 20) / density, 1, 1000)}, fresh{density, 2};

    Bit row;
    std::vector<Bit> column(columns, place), by_places(16 * 16 * 4, fresh), by_near(512, fresh), by_count(30 * 16, fresh),
        by_smooth(16 * 16 * 16, fresh), by_window(16 * 16, fresh);
    std::vector<Weights<8>> weights(3, start({5, 5, 3, 1, 1, 1, 2, -5}));
    constexpr uint32_t limits[7] = {place_limit,   place_limit,   context_limit, context_limit,
                                    context_limit, context_limit, context_limit};
    Values values(problem);

    // Where levels are not zero: three rows in turn, and how many there were in this row before each column. Padded, so
    // that neighbours need no bounds check.
    const int64_t pad = 2 * stride + 8, padded = columns + 2 * pad;
    std::vector<uint8_t> marks(3 * padded, 0);
    std::vector<uint32_t> marks_before(padded, 0);
    uint32_t* const before = marks_before.data() + pad;
    // Non-zeros of each column, of the columns around it, and the sum of its sizes.
    std::vector<uint32_t> column_count(columns, 0), around_count(columns, 0);
    std::vector<int64_t> column_size(columns, 0);
    std::vector<int16_t> column_found(columns, densities.found(0)), around_found(columns, densities.found(0));
    std::vector<int16_t> expected(columns);
    for (int64_t j = 0; j < columns; ++j) expected[j] = densities.expected(j);
    constexpr int reach = 3;
    const int area = stride ? 48 : 6;

    for (int64_t i = 0; i < rows; ++i) {
        uint8_t* const here = marks.data() + (i % 3) * padded + pad;
        const uint8_t* const up = marks.data() + ((i + 2) % 3) * padded + pad;
        const uint8_t* const up2 = marks.data() + ((i + 1) % 3) * padded + pad;
        const int column_expected = densities.expected(i);
        const int around_expected = densities.expected(uint64_t(i) * area + area / 2);
        levels.begin_row(i);
        int32_t* const line = levels.row(i);
        const int32_t* const line_above = i ? levels.row(i - 1) : nullptr;
        row = place;
        values.begin_row();
        uint32_t row_count = 0;
        int64_t row_size = 0;
        int row_found = densities.found(0), rest = 0;
        for (int64_t j = 0; j < columns; ++j) {
            if (j % 64 == 0) rest = stretch(share());
            here[j] = 0;
            int y;
            if (left == cells) {
                y = 1;
            } else {
                int l = here[j - 1], l2 = here[j - 2], u = up[j], u2 = up2[j], ul = up[j - 1], ur = up[j + 1];
                int s = 0, sl = 0, sr = 0;
                uint32_t window;
                if (stride) {
                    s = here[j - stride], sl = here[j - stride - 1], sr = here[j - stride + 1];
                    window = before[j] - before[j - 3];
                    window += before[j - stride + 4] - before[j - stride - 3];
                    window += before[j - 2 * stride + 4] - before[j - 2 * stride - 3];
                } else {
                    window = before[j] - before[j - 6];
                }
                int beside = l + l2 + s + sl + sr, over = u + u2 + ul + ur;
                int near = l | l2 << 1 | u << 2 | u2 << 3 | ul << 4 | ur << 5 | s << 6 | sl << 7 | sr << 8;
                int c = Densities::bucket(column_found[j], column_expected);
                int a = Densities::bucket(around_found[j], around_expected);
                int r = Densities::bucket(row_found, expected[j]);
                Bit* bits[7] = {&column[j],
                                &row,
                                &by_places[(c * 16 + r) * 4 + l + s],
                                &by_near[near],
                                &by_count[(beside * 5 + over) * 16 + c],
                                &by_smooth[(a * 16 + c) * 16 + r],
                                &by_window[std::min<uint32_t>(window, 15) * 16 + a]};
                int set = std::min((beside + over + 1) / 2, 2);
                y = mix<7>(coder, line[j] != 0, weights[set], bits, limits, rest);
            }
            --cells;
            here[j] = static_cast<uint8_t>(y);
            before[j + 1] = before[j] + y;
            if (!y) continue;
            int32_t above = stride && j >= stride ? line[j - stride] : 0;
            line[j] = values.code(coder, line[j], j, j ? line[j - 1] : 0, i ? line_above[j] : 0, above,
                                  row_count ? 2 * row_size / row_count : -1,
                                  column_count[j] ? 2 * column_size[j] / column_count[j] : -1);
            levels.found(i * columns + j, line[j]);
            row_size += std::abs(line[j]);
            column_size[j] += std::abs(line[j]);
            row_found = densities.found(++row_count);
            column_found[j] = densities.found(++column_count[j]);
            for (int64_t middle = stride ? j - reach * stride : j; middle <= j + (stride ? reach * stride : 0);
                 middle += stride ? stride : 1)
                for (int64_t k = std::max<int64_t>(0, middle - reach); k <= std::min(columns - 1, middle + reach); ++k)
                    around_found[k] = densities.found(++around_count[k]);
            if (--left == 0) return;
        }
    }
}

}  // namespace

#define EXPORT extern "C" __attribute__((visibility("default")))

// Writes the stream for `levels` and returns its length, or −1 if it is longer than `capacity`, −2 if memory ran out.
// `nonzero`, `smallest` ≤ 0 and `largest` ≥ 0 must be those of the levels; `stride` is 0 or at least 4.
EXPORT int64_t secateur_context_encode(int32_t* levels, int64_t rows, int64_t columns, int64_t nonzero, int32_t smallest,
                                       int32_t largest, int64_t stride, uint8_t* out, int64_t capacity) {
    try {
        Encoder coder(out, capacity);
        Levels matrix(levels, columns);
        run(coder, matrix, {rows, columns, nonzero, smallest, largest, stride});
        return coder.finish();
    } catch (const std::bad_alloc&) {
        return -2;
    }
}

// Fills `levels` from a stream. Returns 0, or −1 if the stream is too short or too long, −2 if memory ran out.
// Whatever the bytes are, it writes rows·columns levels within the bounds, `nonzero` of them not zero.
EXPORT int64_t secateur_context_decode(const uint8_t* in, int64_t length, int64_t rows, int64_t columns, int64_t nonzero,
                                       int32_t smallest, int32_t largest, int64_t stride, int32_t* levels) {
    try {
        Decoder coder(in, length);
        Levels matrix(levels, columns);
        std::fill_n(levels, rows * columns, 0);
        run(coder, matrix, {rows, columns, nonzero, smallest, largest, stride});
        return coder.consumed_exactly() ? 0 : -1;
    } catch (const std::bad_alloc&) {
        return -2;
    }
}

// The same without a matrix: writes the `nonzero` places that are not zero (32 or, if `wide`, 64 bits each), rising, and
// the level of each. Whatever the bytes are, all of them are written, and lie within the matrix and the bounds.
EXPORT int64_t secateur_context_list(const uint8_t* in, int64_t length, int64_t rows, int64_t columns, int64_t nonzero,
                                     int32_t smallest, int32_t largest, int64_t stride, void* places, int32_t wide,
                                     int32_t* levels) {
    try {
        const Problem problem{rows, columns, nonzero, smallest, largest, stride};
        Decoder coder(in, length);
        Levels list(places, wide, levels, problem);
        run(coder, list, problem);
        return coder.consumed_exactly() ? 0 : -1;
    } catch (const std::bad_alloc&) {
        return -2;
    }
}
