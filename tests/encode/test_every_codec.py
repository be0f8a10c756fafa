"""One conformance suite for the table of codecs: a new one is covered by being listed."""

import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from secateur.encode.codecs import CODECS, by_number, choose
from secateur.encode.codecs.bounds import Bounds
from secateur.encode.errors import FormatError

every_codec = pytest.mark.parametrize("codec", CODECS, ids=lambda codec: codec.name)


@st.composite
def level_matrices(draw):
    rows, columns = draw(st.integers(0, 12)), draw(st.integers(0, 40))
    density = draw(st.sampled_from([0.0, 0.02, 0.1, 0.5, 1.0]))
    low = draw(st.sampled_from([0, -1, -3, -20, -300, -32_768]))
    high = draw(st.sampled_from([0, 1, 4, 17, 255, 32_767]))
    random = np.random.default_rng(draw(st.integers(0, 2**32)))
    levels = random.integers(low, high, (rows, columns), endpoint=True)
    return (levels * (random.random((rows, columns)) < density)).astype(np.int32)


def sparse_matrix(rows=40, columns=60, density=0.1, seed=0):
    random = np.random.default_rng(seed)
    levels = random.choice([-2, -1, 1, 2, 3], (rows, columns), p=[0.1, 0.3, 0.35, 0.2, 0.05])
    return (levels * (random.random((rows, columns)) < density)).astype(np.int32)


def decode(codec, stream, bounds):
    """Decode in both ways, which agree in what they give back and in what they refuse."""
    try:
        levels = codec.decode(memoryview(stream), bounds)
    except FormatError as error:
        with pytest.raises(FormatError, match=f"^{re.escape(str(error))}$"):
            codec.decode_sparse(memoryview(stream), bounds)
        raise
    places, kept = codec.decode_sparse(memoryview(stream), bounds)
    assert (places.dtype, kept.dtype) == (np.int32, np.int32)
    assert np.array_equal(places, np.flatnonzero(levels))
    assert np.array_equal(kept, levels.reshape(-1)[places])
    return levels


# Losslessness


@every_codec
@given(levels=level_matrices())
@settings(max_examples=60)
def test_decoding_gives_back_what_was_encoded(codec, levels):
    bounds = Bounds.of(levels)
    again = decode(codec, codec.encode(levels, bounds), bounds)
    assert again.dtype == np.int32
    assert np.array_equal(again, levels)


@every_codec
@given(levels=level_matrices(), below=st.integers(0, 40), above=st.integers(0, 40))
@settings(max_examples=30)
def test_bounds_need_not_be_tight(codec, levels, below, above):
    tight = Bounds.of(levels)
    loose = Bounds(tight.rows, tight.columns, tight.nonzero, tight.smallest - below, tight.largest + above)
    assert np.array_equal(decode(codec, codec.encode(levels, loose), loose), levels)


@every_codec
@pytest.mark.parametrize("level", [-32_768, -1, 0, 1, 65_535])
@pytest.mark.parametrize("shape", [(1, 1), (1, 7), (7, 1), (5, 9)])
def test_a_constant_matrix_comes_back(codec, level, shape):
    levels = np.full(shape, level, np.int32)
    bounds = Bounds.of(levels)
    assert np.array_equal(decode(codec, codec.encode(levels, bounds), bounds), levels)


@every_codec
@pytest.mark.parametrize("shape", [(0, 0), (0, 5), (5, 0)])
def test_an_empty_matrix_comes_back(codec, shape):
    levels = np.zeros(shape, np.int32)
    bounds = Bounds.of(levels)
    assert decode(codec, codec.encode(levels, bounds), bounds).shape == shape


@every_codec
@pytest.mark.parametrize("lowest", [0, -32_768, -65_535])
def test_all_65536_levels_come_back(codec, lowest):
    levels = np.random.default_rng(0).permutation(65_536).astype(np.int32).reshape(64, 1024) + lowest
    bounds = Bounds.of(levels)
    assert np.array_equal(decode(codec, codec.encode(levels, bounds), bounds), levels)


@every_codec
@pytest.mark.parametrize("place", [0, 255, 256, 257, 4095, 9999])
def test_a_single_level_far_from_everything_comes_back(codec, place):
    levels = np.zeros((10, 1000), np.int32)
    levels.reshape(-1)[place] = -3
    bounds = Bounds.of(levels)
    assert np.array_equal(decode(codec, codec.encode(levels, bounds), bounds), levels)


@every_codec
def test_memory_order_changes_nothing(codec):
    levels = sparse_matrix()
    bounds = Bounds.of(levels)
    assert codec.encode(np.asfortranarray(levels), bounds) == codec.encode(levels, bounds)


@every_codec
def test_the_same_levels_make_the_same_bytes_and_are_left_alone(codec):
    levels = sparse_matrix()
    before = levels.copy()
    bounds = Bounds.of(levels)
    assert codec.encode(levels, bounds) == codec.encode(levels, bounds)
    assert np.array_equal(levels, before)


# Size


@every_codec
@pytest.mark.parametrize("density", [0.03, 0.1, 0.5])
def test_independent_levels_cost_at_most_a_tenth_more_than_their_entropy(codec, density):
    levels = sparse_matrix(100, 300, density)
    counts = np.unique(levels, return_counts=True)[1] / levels.size
    entropy_bytes = -(counts * np.log2(counts)).sum() * levels.size / 8
    assert len(codec.encode(levels, Bounds.of(levels))) <= 1.1 * entropy_bytes + 100


# Streams that are not sound


@every_codec
def test_a_stream_cut_short_anywhere_is_refused(codec):
    levels = sparse_matrix(20, 20)
    bounds = Bounds.of(levels)
    stream = codec.encode(levels, bounds)
    for length in range(len(stream)):
        with pytest.raises(FormatError):
            decode(codec, stream[:length], bounds)


@every_codec
@pytest.mark.parametrize("more", [b"\0", b"\xff", b"\0" * 40])
def test_bytes_behind_a_stream_are_refused(codec, more):
    levels = sparse_matrix(20, 20)
    bounds = Bounds.of(levels)
    with pytest.raises(FormatError):
        decode(codec, codec.encode(levels, bounds) + more, bounds)


@every_codec
@pytest.mark.parametrize("change", [-1, 1])
def test_another_number_of_levels_than_announced_never_comes_out(codec, change):
    levels = sparse_matrix(20, 20)
    bounds = Bounds.of(levels)
    stream = codec.encode(levels, bounds)
    wrong = Bounds(bounds.rows, bounds.columns, bounds.nonzero + change, bounds.smallest, bounds.largest)
    try:
        decoded = decode(codec, stream, wrong)
    except FormatError:
        return
    assert np.count_nonzero(decoded) == wrong.nonzero


@every_codec
@given(flips=st.lists(st.tuples(st.integers(0, 10_000), st.integers(0, 7)), min_size=1, max_size=4))
@settings(max_examples=100)
def test_a_changed_stream_is_refused_or_stays_within_the_bounds(codec, flips):
    levels = sparse_matrix(20, 20)
    bounds = Bounds.of(levels)
    stream = bytearray(codec.encode(levels, bounds))
    for place, bit in flips:
        stream[place % len(stream)] ^= 1 << bit
    try:
        decoded = decode(codec, bytes(stream), bounds)
    except FormatError:
        return
    assert Bounds.of(decoded).nonzero == bounds.nonzero
    assert decoded.shape == levels.shape
    assert bounds.smallest <= decoded.min() <= decoded.max() <= bounds.largest


@every_codec
@given(stream=st.binary(max_size=60))
@settings(max_examples=100)
def test_chance_bytes_are_refused_or_stay_within_the_bounds(codec, stream):
    bounds = Bounds(5, 7, 12, -2, 3)
    try:
        decoded = decode(codec, stream, bounds)
    except FormatError:
        return
    assert decoded.shape == (5, 7)
    assert np.count_nonzero(decoded) == 12
    assert -2 <= decoded.min() <= decoded.max() <= 3


# The table


def test_names_and_numbers_are_given_once_and_stay():
    known = {"huffman": 1, "rans": 2, "context": 3}
    assert {codec.name: codec.number for codec in CODECS}.items() <= known.items()
    assert len({codec.number for codec in CODECS}) == len(CODECS)
    for codec in CODECS:
        assert by_number(codec.number) is codec
        assert choose(codec.name) == (codec,)
    assert (choose("smallest"), choose("raw")) == (CODECS, ())


def test_an_unknown_codec_is_answered_with_the_nearest():
    with pytest.raises(ValueError, match=r'there is no codec "hufman": did you mean "huffman"\?'):
        choose("hufman")
    with pytest.raises(FormatError, match="codec 15 is unknown"):
        by_number(15)
