// Drives the native coders with streams and bounds that no encoder wrote, to be built with sanitizers: nothing may be
// read or written outside of its buffers and no arithmetic may be undefined. Prints how many streams were refused.

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <vector>

extern "C" {
int64_t secateur_context_encode(int32_t*, int64_t, int64_t, int64_t, int32_t, int32_t, int64_t, uint8_t*, int64_t);
int64_t secateur_context_decode(const uint8_t*, int64_t, int64_t, int64_t, int64_t, int32_t, int32_t, int64_t, int32_t*);
int64_t secateur_context_list(const uint8_t*, int64_t, int64_t, int64_t, int64_t, int32_t, int32_t, int64_t, void*,
                              int32_t, int32_t*);
int64_t secateur_rans_encode(const uint8_t*, int64_t, const uint32_t*, int64_t, uint16_t*, int64_t);
int64_t secateur_rans_decode(const uint16_t*, int64_t, int64_t, const uint32_t*, int64_t, uint8_t*);
int64_t secateur_rans_tokenize(const void*, int32_t, const int32_t*, int64_t, uint8_t*, uint8_t*, uint8_t*, int64_t);
int64_t secateur_rans_scatter(const uint8_t*, const uint8_t*, int64_t, const uint8_t*, int64_t, const void*, int32_t,
                              int64_t, int32_t, int32_t, void*);
int64_t secateur_rans_list(const uint8_t*, const uint8_t*, int64_t, const uint8_t*, int64_t, int64_t, int32_t, int32_t,
                           void*, int32_t, int32_t*);
}

static std::mt19937_64 random_bits;
static int64_t below(int64_t n) { return static_cast<int64_t>(random_bits() % static_cast<uint64_t>(n)); }

[[noreturn]] static void fail(const char* what, int64_t number) {
    std::printf("case %lld: %s\n", static_cast<long long>(number), what);
    std::exit(1);
}

template <class T>
static void spoil(std::vector<T>& stream) {
    switch (below(4)) {
        case 0:
            if (!stream.empty()) stream.resize(below(stream.size()));
            break;
        case 1:
            stream.resize(stream.size() + 1 + below(9), static_cast<T>(below(256)));
            break;
        default:
            for (int64_t k = below(8); k >= 0 && !stream.empty(); --k)
                stream[below(stream.size())] = static_cast<T>(random_bits());
    }
}

// Lists what is not zero, and makes sure that it is what a matrix holds.
template <class Place>
static int64_t list_context(const std::vector<uint8_t>& stream, int64_t rows, int64_t columns, int64_t nonzero,
                            int32_t smallest, int32_t largest, int64_t stride, const std::vector<int32_t>& matrix,
                            int64_t number) {
    std::vector<Place> places(nonzero);
    std::vector<int32_t> levels(nonzero), again(rows * columns, 0);
    const int64_t outcome =
        secateur_context_list(stream.data(), stream.size(), rows, columns, nonzero, smallest, largest, stride,
                              places.data(), sizeof(Place) == 8, levels.data());
    Place before = -1;
    for (int64_t i = 0; i < nonzero; before = places[i++]) {
        if (places[i] <= before || places[i] >= rows * columns) fail("a place does not rise, or lies outside", number);
        again[places[i]] = levels[i];
    }
    if (again != matrix) fail("list and matrix are not the same", number);
    return outcome;
}

static bool context(int64_t number) {
    const int64_t rows = 1 + below(20), columns = 1 + below(30), largest = int64_t(1) << below(16);
    const int64_t stride = columns > 5 && below(2) ? 4 + below(columns - 4) : 0;
    const int64_t percent = 1 + below(100);
    std::vector<int32_t> levels(rows * columns), back(rows * columns, 77);
    int64_t nonzero = 0;
    int32_t smallest = 0, most = 0;
    for (int32_t& level : levels) {
        level = below(100) < percent ? static_cast<int32_t>(1 + below(largest)) * (below(2) ? 1 : -1) : 0;
        nonzero += level != 0;
        smallest = std::min(smallest, level);
        most = std::max(most, level);
    }
    std::vector<uint8_t> stream(levels.size() * 8 + 64);
    const int64_t length = secateur_context_encode(levels.data(), rows, columns, nonzero, smallest, most, stride,
                                                   stream.data(), stream.size());
    if (length < 0) fail("no room for the stream", number);
    stream.resize(length);
    stream.shrink_to_fit();
    const std::vector<int32_t> wanted = levels;
    if (secateur_context_decode(stream.data(), length, rows, columns, nonzero, smallest, most, stride, back.data()) ||
        back != wanted)
        fail("levels were not given back", number);
    if (list_context<int32_t>(stream, rows, columns, nonzero, smallest, most, stride, wanted, number))
        fail("a sound stream was not listed", number);
    spoil(stream);
    stream.shrink_to_fit();
    if (below(3) == 0) nonzero = below(rows * columns + 1);
    if (below(3) == 0) smallest = -static_cast<int32_t>(below(70000)), most = 1 + static_cast<int32_t>(below(70000));
    if (smallest == 0 && most == 0) nonzero = 0;  // which a caller makes sure of
    const int64_t outcome = secateur_context_decode(stream.data(), stream.size(), rows, columns, nonzero, smallest, most,
                                                    stride, back.data());
    if (list_context<int64_t>(stream, rows, columns, nonzero, smallest, most, stride, back, number) != outcome)
        fail("a stream was refused in one way and not in the other", number);
    for (int32_t level : back) {
        if (level < smallest || level > most) fail("a level lies outside of its bounds", number);
        nonzero -= level != 0;
    }
    if (nonzero) fail("another number of levels is not zero than was announced", number);
    return outcome != 0;
}

static bool rans(int64_t number) {
    const int64_t count = 1 + below(3000), lanes = int64_t(1) << below(13), kinds = 1 + below(256);
    std::vector<uint8_t> symbols(count), back(count);
    std::vector<uint32_t> frequencies(256, 0);
    for (int64_t s = 0; s < kinds; ++s) frequencies[s] = static_cast<uint32_t>(4096 / kinds);
    frequencies[0] += static_cast<uint32_t>(4096 - 4096 / kinds * kinds);
    for (uint8_t& symbol : symbols) symbol = static_cast<uint8_t>(below(kinds));
    std::vector<uint16_t> buffer(count + 2 * lanes);
    const int64_t length =
        secateur_rans_encode(symbols.data(), count, frequencies.data(), lanes, buffer.data(), buffer.size());
    if (length < 0) fail("no room for the words", number);
    std::vector<uint16_t> words(buffer.end() - length, buffer.end());
    if (secateur_rans_decode(words.data(), length, count, frequencies.data(), lanes, back.data()) || back != symbols)
        fail("symbols were not given back", number);
    spoil(words);
    words.shrink_to_fit();
    if (below(3) == 0) frequencies[below(256)] = static_cast<uint32_t>(random_bits());
    const int64_t other_lanes = below(3) ? lanes : below(5000) - 5;
    return secateur_rans_decode(words.data(), words.size(), count, frequencies.data(), other_lanes, back.data()) != 0;
}

template <class Place>
static bool tokens(int64_t number) {
    const int64_t size = 1 + below(5000), largest = int64_t(1) << below(16), percent = 1 + below(100);
    std::vector<Place> places;
    std::vector<int32_t> levels, wanted(size, 0), back(size, 0);
    for (int64_t place = 0; place < size; ++place) {
        if (below(100) >= percent) continue;
        wanted[place] = static_cast<int32_t>(1 + below(largest)) * (below(2) ? 1 : -1);
        places.push_back(static_cast<Place>(place));
        levels.push_back(wanted[place]);
    }
    const int64_t count = places.size();
    auto smallest = static_cast<int32_t>(-largest), most = static_cast<int32_t>(largest);
    std::vector<uint8_t> gaps(count), kept(count), raw(8 * count);
    const int64_t length = secateur_rans_tokenize(places.data(), sizeof(Place) == 8, levels.data(), count, gaps.data(),
                                                  kept.data(), raw.data(), raw.size());
    if (length < 0) fail("no room for the raw bits", number);
    raw.resize(length);
    raw.shrink_to_fit();
    if (secateur_rans_scatter(gaps.data(), kept.data(), count, raw.data(), length, nullptr, 0, size, smallest, most,
                              back.data()) ||
        back != wanted)
        fail("levels were not put back", number);
    std::vector<Place> found(count);
    std::vector<int32_t> listed(count);
    if (secateur_rans_list(gaps.data(), kept.data(), count, raw.data(), length, size, smallest, most, found.data(),
                           sizeof(Place) == 8, listed.data()) ||
        found != places || listed != levels)
        fail("levels were not listed", number);
    switch (below(3)) {
        case 0: spoil(raw); break;
        case 1: for (int64_t k = below(8); k >= 0 && count; --k) gaps[below(count)] = static_cast<uint8_t>(below(256)); break;
        default: for (int64_t k = below(8); k >= 0 && count; --k) kept[below(count)] = static_cast<uint8_t>(below(256));
    }
    raw.shrink_to_fit();
    if (below(3) == 0) smallest = -static_cast<int32_t>(below(70000)), most = static_cast<int32_t>(below(70000));
    const int32_t width = 1 << below(4);
    const std::vector<uint8_t> table((int64_t(most) - smallest + 1) * width, 3);
    std::vector<uint8_t> out(size * width);
    const int64_t outcome = secateur_rans_scatter(gaps.data(), kept.data(), count, raw.data(), raw.size(), table.data(),
                                                  width, size, smallest, most, out.data());
    if (outcome != secateur_rans_list(gaps.data(), kept.data(), count, raw.data(), raw.size(), size, smallest, most,
                                      found.data(), sizeof(Place) == 8, listed.data()))
        fail("tokens were refused in one way and not in the other", number);
    return outcome != 0;
}

int main(int, char** arguments) {
    const int64_t cases = std::atoll(arguments[1]);
    int64_t refused = 0;
    for (int64_t number = 0; number < cases; ++number) {
        random_bits.seed(number);
        switch (number % 4) {
            case 0: refused += context(number); break;
            case 1: refused += rans(number); break;
            case 2: refused += tokens<int32_t>(number); break;
            default: refused += tokens<int64_t>(number);
        }
    }
    std::printf("%lld cases, %lld refused\n", static_cast<long long>(cases), static_cast<long long>(refused));
    return 0;
}
