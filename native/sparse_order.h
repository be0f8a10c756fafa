// The order in which a kernel goes through the rows of a sparse weight.
//
// Consecutive rows should read the same parts of the input (columns or channels), which are then still in the L1 cache;
// it holds fewer of them than a block has. And each row should have about as many weights as the one before it, or the
// processor mispredicts the end of its loop.

#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

namespace {

constexpr double cooling = 0.85;  // how much less a part is worth with every row since it was read
constexpr double unlike = 0.05;   // what one weight more or less costs, where a row of which all was just read is worth 1

// Orders `count` rows, greedily: the next is the one whose parts were read most recently, on average. Weights of row r are
// numbers starts[r] to starts[r + 1]; `parts` are what they read, all below `most`. Among equals the first one goes first.
void order_rows(int64_t count, const int64_t* starts, const int32_t* parts, int64_t most, int32_t* order) {
    // The rows that read each part.
    int64_t first = starts[0], weights = starts[count] - first;
    std::vector<int64_t> begins(most + 1);
    for (int64_t j = 0; j < weights; ++j) ++begins[parts[first + j] + 1];
    for (int64_t p = 0; p < most; ++p) begins[p + 1] += begins[p];
    std::vector<int32_t> readers(weights);
    std::vector<int64_t> ends(begins.begin(), begins.end() - 1);
    for (int64_t r = 0; r < count; ++r)
        for (int64_t j = starts[r]; j < starts[r + 1]; ++j) readers[ends[parts[j]]++] = static_cast<int32_t>(r);
    // A part that was read at time k is worth coolingᵗ⁻ᵏ at time t. All worths are kept as if the time were 0, so that
    // those of a row change only when one of its parts is read. It is set back before they become too large.
    std::vector<double> warmth(most), worth(count);
    std::vector<bool> taken(count);
    double now = 1, latest = 1e100;
    int64_t next = 0;
    for (int64_t k = 0; k < count; ++k) {
        int64_t own = starts[next + 1] - starts[next];
        order[k] = static_cast<int32_t>(next);
        taken[next] = true;
        now /= cooling;
        if (now > latest) {
            for (double& each : warmth) each /= now;
            for (double& each : worth) each /= now;
            now = 1;
        }
        for (int64_t j = starts[next]; j < starts[next + 1]; ++j) {
            double gain = now - warmth[parts[j]];
            if (gain <= 0) continue;  // read by another weight of this row
            warmth[parts[j]] = now;
            for (int64_t i = begins[parts[j]]; i < begins[parts[j] + 1]; ++i) worth[readers[i]] += gain;
        }
        double best = -INFINITY;
        for (int64_t r = 0; r < count; ++r) {
            if (taken[r]) continue;
            double length = static_cast<double>(starts[r + 1] - starts[r]);
            double score = worth[r] / (now * std::max(length, 1.0)) - unlike * std::abs(length - static_cast<double>(own));
            if (score > best) best = score, next = r;
        }
    }
}

}  // namespace
