// The inner loops of the `rans` codec: symbols below 256 with frequencies that add up to 2¹², coded by many rANS states
// in turn. encode/rans.py says what is coded and holds the same loops in NumPy.
//
// Symbol i belongs to state i mod lanes. A state x in [2¹⁶, 2³²) takes up a symbol of frequency f that begins at c by
// x → (x / f)·2¹² + x mod f + c, after giving away its low 16 bits if it would grow past 2³²; decoding is the reverse.

#include <cstdint>
#include <new>
#include <vector>

namespace {

constexpr int scale_bits = 12;
constexpr uint32_t lowest = 1u << 16;
constexpr int64_t most_lanes = 4096;

struct Slot {
    uint16_t frequency, offset;
};

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
