// Activations, and everything else between the sums of a row and the result.

#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "sparse_step.h"
#include "vectors.h"

namespace {

// 2^x for |x| < 126, to 4e-6 of its value; clamped beyond. NaN stays NaN.
INLINE floats exp2(floats x) {
    x = select(x > 126, all_lanes(126), select(x < -126, all_lanes(-126), x));
    const float round = 0x1.8p23f + 127;  // adding it leaves the nearest integer + 127, an exponent, in the low bits
    floats shifted = x + round;
    floats f = x - (shifted - round);
    // (2^f − 1)/f for |f| ≤ ½: the terms (ln 2)^k/k! of its power series, but for the last digits of two.
    floats series = 0.69314718f + f * (0.24022651f + f * (0.055503324f + f * (0.0096180291f + f * 0.0013333558f)));
    return from_bits(bits(shifted) << 23) * (1 + f * series);
}

// x·Φ(x). With z = |x|/√2 and u = 1/(1 + 0.3275911 z), erfc(z) ≈ e^(−z²)(a₁u + … + a₅u⁵): Abramowitz and Stegun,
// 7.1.26. In terms of x, z² is x²/2: 0.23164189 is 0.3275911/√2, and 0.72134752 is log₂(e)/2.
INLINE floats gelu_of(floats x) {
    floats u = 1 / (1 + 0.23164189f * magnitude(x));
    floats series = -1.453152027f + u * 1.061405429f;
    series = u * (0.254829592f + u * (-0.284496736f + u * (1.421413741f + u * series)));
    floats tail = 0.5f * series * exp2(x * x * -0.72134752f);  // Φ(−|x|)
    return x * select(x < 0, tail, 1 - tail);
}

// x·σ(2√(2/π)(x + 0.044715 x³)), the approximation by a hyperbolic tangent; 2.3022082 is 2√(2/π)·log₂(e), and
// 0.10294324 is 0.044715 times that. Below −10 σ is 0, and exp2 clamped at 2^126 is negligible even at −1e38.
INLINE floats gelu_tanh_of(floats x) {
    floats y = x / (1 + exp2(x * (-2.3022082f + x * x * -0.10294324f)));
    return select(x < -32, x * 0, y);
}

// x·σ(x); 1.442695 is log₂(e). Below −100 σ is 0, as above.
INLINE floats silu_of(floats x) {
    floats y = x / (1 + exp2(x * -1.442695f));
    return select(x < -100, x * 0, y);
}

// The least and the largest result of an activation that only clamps. NaN stays NaN.
struct Range {
    float least, most;

    explicit Range(int64_t activation)
        : least(activation == relu || activation == relu6 ? 0 : -__builtin_inff()),
          most(activation == relu6 ? 6 : __builtin_inff()) {}
    INLINE float clamp(float x) const { return x < least ? least : x > most ? most : x; }
};

// The same for vectors.
struct Ranges {
    floats least, most;

    explicit Ranges(int64_t activation)
        : least(all_lanes(Range(activation).least)), most(all_lanes(Range(activation).most)) {}
    INLINE floats clamp(floats x) const {
        x = select(x < least, least, x);
        return select(x > most, most, x);
    }
};

INLINE floats activated(floats x, int64_t activation) {
    if (activation == gelu) return gelu_of(x);
    if (activation == gelu_tanh) return gelu_tanh_of(x);
    if (activation == silu) return silu_of(x);
    if (activation == hardswish) return x * Ranges(relu6).clamp(x + 3) * (1.f / 6);
    return Ranges(activation).clamp(x);
}

// to[i] = activation(from[i] + residual[i]); `residual` may be null.
INLINE void finish(const float* from, const float* residual, int64_t count, int64_t activation, float* to) {
    if (activation <= last_clamp) {
        Range range(activation);
        if (residual)
            for (int64_t i = 0; i < count; ++i) to[i] = range.clamp(from[i] + residual[i]);
        else
            for (int64_t i = 0; i < count; ++i) to[i] = range.clamp(from[i]);
        return;
    }
    for (int64_t i = 0; i < count; i += width) {
        // Copied in place: with load and store GCC generates more code, and convolutions take 2 % longer, even without GELU.
        floats x = {}, r = {};
        int64_t lanes = std::min(width, count - i);
        std::memcpy(&x, from + i, lanes * sizeof(float));
        if (residual) std::memcpy(&r, residual + i, lanes * sizeof(float));
        x = activated(x + r, activation);
        std::memcpy(to + i, &x, lanes * sizeof(float));
    }
}

}  // namespace
