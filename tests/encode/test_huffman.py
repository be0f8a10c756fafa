import heapq
import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from secateur.encode.codecs import huffman
from secateur.encode.codecs.bounds import Bounds
from secateur.encode.errors import FormatError

counts = st.lists(st.integers(0, 1000), min_size=1, max_size=60).filter(any)


def bits_of_an_unlimited_code(counts):
    """Huffman's own algorithm: the sum of all merged weights is the length of the text."""
    heap = [count for count in counts if count]
    heapq.heapify(heap)
    total = 0
    while len(heap) > 1:
        merged = heapq.heappop(heap) + heapq.heappop(heap)
        total += merged
        heapq.heappush(heap, merged)
    return total


@given(counts=counts)
def test_a_code_is_as_short_as_huffmans(counts):
    lengths = huffman.code_lengths(np.array(counts))
    assert sum(counts * np.maximum(lengths, 0)) == bits_of_an_unlimited_code(counts)


@given(counts=counts)
def test_the_words_of_a_code_fill_the_tree(counts):
    lengths = huffman.code_lengths(np.array(counts))
    assert (lengths >= 0).tolist() == [count > 0 for count in counts]
    assert sum(2.0 ** -lengths[lengths >= 0]) == 1


def test_no_word_is_longer_than_15_bits_and_the_code_is_the_best_of_those():
    # Fibonacci numbers make Huffman's tree as deep as it gets.
    fibonacci = [1, 1]
    while len(fibonacci) < 24:
        fibonacci.append(fibonacci[-1] + fibonacci[-2])
    lengths = huffman.code_lengths(np.array(fibonacci))
    assert lengths.max() == 15
    assert sum(2.0**-lengths) == 1
    assert sum(lengths * fibonacci) > bits_of_an_unlimited_code(fibonacci)


def test_a_limited_code_is_optimal_by_trying_all(monkeypatch):
    monkeypatch.setattr(huffman, "_USUAL_LIMIT", 4)
    counts = np.array([1, 1, 2, 4, 8, 16, 32])
    lengths = huffman.code_lengths(counts)
    assert lengths.max() == 4
    whole = (tried for tried in itertools.product(range(1, 5), repeat=7) if sum(2.0**-bits for bits in tried) <= 1)
    assert sum(lengths * counts) == min(sum(counts * tried) for tried in whole)


def test_a_run_of_zeros_is_cut_by_fillers_as_in_the_paper():
    # Three bits hold gaps of 0 to 7: 18 zeros are two fillers, of 8 zeros each, and a gap of 2.
    levels = np.zeros(20, np.int32)
    levels[[0, 19]] = 5, 7
    gaps, symbols = huffman._with_fillers(levels, 8)
    assert gaps.tolist() == [0, 7, 7, 2]
    assert symbols.tolist() == [5, 0, 0, 7]


@pytest.mark.parametrize("gap_bits", [1, 4, 5, 8, 12])
def test_every_width_of_gaps_comes_back_and_is_signalled(gap_bits):
    random = np.random.default_rng(0)
    levels = (random.integers(-2, 3, (30, 200)) * (random.random((30, 200)) < 0.01)).astype(np.int32)
    bounds = Bounds.of(levels)
    stream = huffman.encode(levels, bounds, gap_bits)
    assert stream[0] == gap_bits
    assert np.array_equal(huffman.decode(memoryview(stream), bounds), levels)


@pytest.mark.parametrize("gap_bits", [0, 13])
def test_gaps_of_no_or_too_many_bits_are_refused(gap_bits):
    levels = np.ones((1, 3), np.int32)
    with pytest.raises(ValueError, match=f"gap_bits must lie in 1 to 12, got {gap_bits}"):
        huffman.encode(levels, Bounds.of(levels), gap_bits)
    with pytest.raises(FormatError, match=f"gaps of {gap_bits} bits do not exist"):
        huffman.decode(memoryview(bytes([gap_bits, 0])), Bounds.of(levels))


def test_the_bytes_of_a_small_matrix_are_these():
    levels = np.array([[0, 3, 0, 0], [-1, 0, 3, 3]], np.int32)
    stream = huffman.encode(levels, Bounds.of(levels), gap_bits=2)
    # 02: two bits; 00: no filler. Gaps 1 2 1 0, levels 3 −1 3 3 of the alphabet −1 … 3.
    # Gap code: runs 0+1 unused "1", 3 used "011", 1 unused "1"; lengths 2 "00010", 1 "110", 2 "10" → 1:0 0:10 2:11.
    # Level code: runs 0+1 "1", 1 "1", 3 "011", 1 "1"; lengths 1 "00001", 1 "0" → −1:0 3:1.
    bits = "101110001011010" + "110111000010" + "011010" + "1011"
    padded = bits.ljust(-(-len(bits) // 8) * 8, "0")
    assert stream == bytes([2, 0]) + int(padded, 2).to_bytes(len(padded) // 8, "big")


@pytest.mark.parametrize(
    ("bits", "complaint"),
    [
        ("00101", "a code has no symbols"),
        ("100100" + "00001000", "Kraft"),
        ("100100" + "00000", "a code word of 0 bits"),
        ("100100" + "11111", "a code word of 31 bits"),
        ("100100" + "00010" + "1" * 45, "unary is above"),
        ("0" * 30, "a run is longer"),
        ("10001000", "more than the 4 symbols"),
    ],
)
def test_a_code_that_is_none_is_refused(bits, complaint):
    padded = bits.ljust(-(-len(bits) // 8) * 8, "0")
    stream = bytes([2, 0]) + int(padded, 2).to_bytes(len(padded) // 8, "big")
    with pytest.raises(FormatError, match=complaint):
        huffman.decode(memoryview(stream), Bounds(1, 9, 3, 0, 1))


def test_the_bits_that_fill_up_the_last_byte_must_be_zero():
    levels = np.array([[0, 3, 0, 0], [-1, 0, 3, 3]], np.int32)
    bounds = Bounds.of(levels)
    stream = bytearray(huffman.encode(levels, bounds, gap_bits=2))
    stream[-1] |= 1
    with pytest.raises(FormatError, match="behind the last code word are not zero"):
        huffman.decode(memoryview(stream), bounds)


def test_a_long_stream_is_decoded_over_the_edges_of_chunks(monkeypatch):
    random = np.random.default_rng(0)
    levels = (random.integers(-9, 10, (40, 100)) * (random.random((40, 100)) < 0.3)).astype(np.int32)
    bounds = Bounds.of(levels)
    whole = huffman.encode(levels, bounds)
    monkeypatch.setattr(huffman, "_CHUNK", 64)
    assert huffman.encode(levels, bounds) == whole
    assert np.array_equal(huffman.decode(memoryview(whole), bounds), levels)
