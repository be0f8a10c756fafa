// The inner loops of the `rans` codec: symbols below 256 with frequencies that add up to 2¹², coded by many rANS states
// in turn. encode/codecs/rans.py says what is coded and holds the same loops in NumPy.
//
// Symbol i belongs to state i mod lanes. A state x in [2¹⁶, 2³²) encodes a symbol of frequency f that begins at c by
// x → (x / f)·2¹² + x mod f + c, after writing its low 16 bits if it would exceed 2³²; decoding is the reverse.

#include <algorithm>
#include <cstdint>
#include <new>
#include <type_traits>
#include <vector>

#define INLINE inline __attribute__((always_inline))

namespace {

constexpr int scale_bits = 12;
constexpr uint32_t lowest = 1u << 16;
constexpr int64_t most_lanes = 4096;

struct Slot {
    uint16_t frequency, offset;
};

constexpr int gap_direct_bits = 4, level_direct_bits = 7;  // numbers below 2 to these are their own tokens

// The first value of a token, and the number of raw bits that follow.
struct Meaning {
    int64_t start[256];
    uint8_t digits[256];

    explicit Meaning(int direct_bits) {
        for (int token = 0; token < 256; ++token) {
            const int beyond = token - (1 << direct_bits);
            digits[token] = static_cast<uint8_t>(beyond < 0 ? 0 : beyond / 8 + direct_bits - 3);
            start[token] = beyond < 0 ? token : int64_t(8 + beyond % 8) << digits[token];
        }
    }
};

class BitWriter {
public:
    BitWriter(uint8_t* out, int64_t capacity) : out(out), capacity(capacity) {}
    void put(uint64_t value, int digits) {  // at most 48 of them
        held = held << digits | value;
        count += digits;
        for (; count >= 8; count -= 8) append(static_cast<uint8_t>(held >> (count - 8)));
    }
    int64_t finish() {  // the length in bytes, or −1 if it does not fit
        if (count) append(static_cast<uint8_t>(held << (8 - count)));
        return length <= capacity ? length : -1;
    }

private:
    void append(uint8_t byte) {
        if (length < capacity) out[length] = byte;
        ++length;
    }
    uint8_t* const out;
    const int64_t capacity;
    int64_t length = 0;
    uint64_t held = 0;
    int count = 0;
};

// Reads from any bit position. The caller checks that there are enough bits.
class BitReader {
public:
    BitReader(const uint8_t* in, int64_t bit) : in(in + bit / 8), count(0), held(0) {
        const int skipped = static_cast<int>(bit % 8);
        if (skipped) held = *this->in++, count = 8 - skipped;
    }
    int64_t take(int digits) {
        for (; count < digits; count += 8) held = held << 8 | *in++;
        count -= digits;
        return static_cast<int64_t>(held >> count & ((uint64_t(1) << digits) - 1));
    }

private:
    const uint8_t* in;
    int count;
    uint64_t held;
};

INLINE int put_number(BitWriter& raw, uint64_t number, int direct_bits) {
    if (number < uint64_t(1) << direct_bits) return static_cast<int>(number);
    const int top = 63 - __builtin_clzll(number), digits = top - 3;
    raw.put(number & ((uint64_t(1) << digits) - 1), digits);
    return (1 << direct_bits) + 8 * (top - direct_bits) + static_cast<int>(number >> digits & 7);
}

template <class Place>
int64_t tokenize(const Place* places, const int32_t* levels, int64_t count, uint8_t* gap_tokens, uint8_t* level_tokens,
                 uint8_t* raw, int64_t capacity) {
    BitWriter writer(raw, capacity);
    int64_t next = 0;
    for (int64_t i = 0; i < count; ++i) {
        gap_tokens[i] = static_cast<uint8_t>(put_number(writer, places[i] - next, gap_direct_bits));
        next = int64_t(places[i]) + 1;
    }
    for (int64_t i = 0; i < count; ++i) {
        const int64_t level = levels[i];
        const uint64_t folded = level < 0 ? -2 * level - 1 : 2 * level - 2;
        level_tokens[i] = static_cast<uint8_t>(put_number(writer, folded, level_direct_bits));
    }
    return writer.finish();
}

// Combines tokens and raw bits, and calls `found` with the index of every level, its position and the level.
template <class Found>
INLINE int64_t untokenize(const uint8_t* gap_tokens, const uint8_t* level_tokens, int64_t count, const uint8_t* raw,
                          int64_t length, int64_t size, int64_t smallest, int64_t largest, Found found) {
    static const Meaning gap(gap_direct_bits), level(level_direct_bits);
    int64_t gap_bits = 0, bits = 0;
    for (int64_t i = 0; i < count; ++i) gap_bits += gap.digits[gap_tokens[i]], bits += level.digits[level_tokens[i]];
    bits += gap_bits;
    if (length != (bits + 7) / 8) return -1;
    if (bits % 8 && raw[length - 1] & ((1 << (8 - bits % 8)) - 1)) return -2;
    BitReader gap_reader(raw, 0), level_reader(raw, gap_bits);
    int64_t place = -1;
    for (int64_t i = 0; i < count; ++i) {
        const uint8_t g = gap_tokens[i], t = level_tokens[i];
        place += gap.start[g] + gap_reader.take(gap.digits[g]) + 1;  // a gap is below 2³⁴, and `size` below 2⁴⁸
        if (place >= size) return -3;
        const int64_t folded = level.start[t] + level_reader.take(level.digits[t]);
        const int64_t unfolded = folded & 1 ? -(folded + 1) / 2 : folded / 2 + 1;
        if (unfolded < smallest || unfolded > largest) return -4;
        found(i, place, unfolded);
    }
    return 0;
}

}  // namespace

#define EXPORT extern "C" __attribute__((visibility("default")))

// Writes 16-bit words from the end of `out` towards its begin, last the states: a reader goes forwards. Returns how many,
// or −1 if they do not fit, −2 if memory ran out. Every symbol must have a frequency.
EXPORT int64_t secateur_rans_encode(const uint8_t* symbols, int64_t count, const uint32_t* frequencies, int64_t lanes,
                                    uint16_t* out, int64_t capacity) try {
    uint32_t begin[257] = {0};
    for (int s = 0; s < 256; ++s) begin[s + 1] = begin[s] + frequencies[s];
    std::vector<uint32_t> states(lanes, lowest);
    int64_t left = capacity;
    for (int64_t i = count - 1, lane = (count - 1) % lanes; i >= 0; --i, lane = lane ? lane - 1 : lanes - 1) {
        uint32_t& x = states[lane];
        const uint32_t f = frequencies[symbols[i]];
        if (x >= uint64_t(f) << (32 - scale_bits)) {
            if (left == 0) return -1;
            out[--left] = static_cast<uint16_t>(x);
            x >>= 16;
        }
        x = ((x / f) << scale_bits) + x % f + begin[symbols[i]];
    }
    if (left < 2 * lanes) return -1;
    for (int64_t lane = lanes - 1; lane >= 0; --lane) {
        out[--left] = static_cast<uint16_t>(states[lane] >> 16);
        out[--left] = static_cast<uint16_t>(states[lane]);
    }
    return capacity - left;
} catch (const std::bad_alloc&) {
    return -2;
}

// Reads `count` symbols from exactly `length` words. Returns 0, or −1 if the words are too few, too many or no such code,
// −2 if memory ran out. The frequencies must add up to 2¹²; `lanes` is at most 4096.
EXPORT int64_t secateur_rans_decode(const uint16_t* in, int64_t length, int64_t count, const uint32_t* frequencies,
                                    int64_t lanes, uint8_t* symbols) try {
    if (lanes < 1 || lanes > most_lanes || length < 2 * lanes) return -1;
    std::vector<Slot> slots(1u << scale_bits);
    std::vector<uint8_t> symbol_of(1u << scale_bits);
    uint32_t slot = 0;
    for (int s = 0; s < 256; ++s)
        for (uint32_t k = 0; k < frequencies[s]; ++k, ++slot) {
            if (slot >> scale_bits) return -1;
            slots[slot] = {static_cast<uint16_t>(frequencies[s]), static_cast<uint16_t>(k)};
            symbol_of[slot] = static_cast<uint8_t>(s);
        }
    if (slot != 1u << scale_bits) return -1;
    std::vector<uint32_t> states(lanes);
    int64_t position = 0;
    for (uint32_t& x : states) {
        x = in[position] | static_cast<uint32_t>(in[position + 1]) << 16;
        position += 2;
        if (x < lowest) return -1;
    }
    auto step = [&](uint32_t& x, uint8_t& symbol) {
        const uint32_t low = x & ((1u << scale_bits) - 1);
        symbol = symbol_of[low];
        x = slots[low].frequency * (x >> scale_bits) + slots[low].offset;
    };
    int64_t i = 0;
    // Without a branch: a word is read in any case and used only where it is needed.
    for (; i + lanes <= count && position + lanes < length; i += lanes)
        for (int64_t lane = 0; lane < lanes; ++lane) {
            uint32_t& x = states[lane];
            step(x, symbols[i + lane]);
            const bool needs = x < lowest;
            const uint32_t filled = x << 16 | in[position];
            x = needs ? filled : x;
            position += needs;
        }
    for (int64_t lane = 0; i < count; ++i, lane = lane + 1 == lanes ? 0 : lane + 1) {
        uint32_t& x = states[lane];
        step(x, symbols[i]);
        if (x < lowest) {
            if (position == length) return -1;
            x = x << 16 | in[position++];
        }
    }
    for (uint32_t x : states)
        if (x != lowest) return -1;
    return position == length ? 0 : -1;
} catch (const std::bad_alloc&) {
    return -2;
}

// Turns places (32 or, if `wide`, 64 bits each, rising) and levels that are not zero into tokens, and the raw bits of
// gaps and levels into `raw`. Returns the bytes of those, or −1 if they are more than `capacity`.
EXPORT int64_t secateur_rans_tokenize(const void* places, int32_t wide, const int32_t* levels, int64_t count,
                                      uint8_t* gap_tokens, uint8_t* level_tokens, uint8_t* raw, int64_t capacity) {
    return wide ? tokenize(static_cast<const int64_t*>(places), levels, count, gap_tokens, level_tokens, raw, capacity)
                : tokenize(static_cast<const int32_t*>(places), levels, count, gap_tokens, level_tokens, raw, capacity);
}

// Combines tokens and `length` bytes of raw bits and writes the value of each level to its position in `out`,
// which has `size` elements of `width` bytes; the others are left alone. `table` holds the values of levels 0, 1 …
// `largest`, `smallest` … −1; with a width of 0 there is none, and the levels themselves are written, in 32 bits.
// Returns 0, or −1 if the raw bits are too few or too many, −2 if those after the last one are not zero, −3 if a place
// lies past the end, −4 if a level lies outside of its bounds, −5 for another width.
EXPORT int64_t secateur_rans_scatter(const uint8_t* gap_tokens, const uint8_t* level_tokens, int64_t count,
                                     const uint8_t* raw, int64_t length, const void* table, int32_t width, int64_t size,
                                     int32_t smallest, int32_t largest, void* out) {
    auto with = [&](auto* values) {
        using Value = std::remove_pointer_t<decltype(values)>;
        auto worth = static_cast<const Value*>(table);
        return untokenize(gap_tokens, level_tokens, count, raw, length, size, smallest, largest,
                          [=](int64_t, int64_t place, int64_t level) {
                              if constexpr (std::is_same_v<Value, int32_t>)
                                  values[place] = static_cast<int32_t>(level);
                              else
                                  values[place] = worth[level < 0 ? int64_t(largest) - smallest + 1 + level : level];
                          });
    };
    switch (width) {
        case 0: return with(static_cast<int32_t*>(out));
        case 1: return with(static_cast<uint8_t*>(out));
        case 2: return with(static_cast<uint16_t*>(out));
        case 4: return with(static_cast<uint32_t*>(out));
        case 8: return with(static_cast<uint64_t*>(out));
        default: return -5;
    }
}

// The same without a tensor to fill: writes the place of every level (32 or, if `wide`, 64 bits) and the level.
EXPORT int64_t secateur_rans_list(const uint8_t* gap_tokens, const uint8_t* level_tokens, int64_t count,
                                  const uint8_t* raw, int64_t length, int64_t size, int32_t smallest, int32_t largest,
                                  void* places, int32_t wide, int32_t* levels) {
    auto into = [&](auto* each) {
        return untokenize(gap_tokens, level_tokens, count, raw, length, size, smallest, largest,
                          [=](int64_t i, int64_t place, int64_t level) {
                              each[i] = static_cast<std::remove_pointer_t<decltype(each)>>(place);
                              levels[i] = static_cast<int32_t>(level);
                          });
    };
    return wide ? into(static_cast<int64_t*>(places)) : into(static_cast<int32_t*>(places));
}
