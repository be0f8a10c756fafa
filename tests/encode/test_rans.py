"""The codec "rans": frequencies, tokens, and the native loops and their NumPy twins."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from secateur import native
from secateur.encode.codecs import rans
from secateur.encode.codecs.bounds import Bounds
from secateur.encode.errors import FormatError

needs_native = pytest.mark.skipif(not native.is_available(), reason="the native library was not built")

counts = st.lists(st.sampled_from([0, 0, 1, 3, 100, 10**6]), min_size=256, max_size=256).filter(any).map(np.array)
tokens = st.builds(
    lambda seed, size, kinds: (np.random.default_rng(seed).random(size) ** 3 * kinds).astype(np.uint8),
    st.integers(0, 2**32),
    st.integers(1, 9000),
    st.integers(1, 256),
)


@given(counts)
def test_frequencies_add_up_and_leave_no_used_token_out(found):
    frequencies = rans.scaled_frequencies(found)
    assert frequencies.sum() == 4096
    np.testing.assert_array_equal(frequencies > 0, found > 0)


@given(st.lists(st.integers(0, 2**48 - 1), min_size=1, max_size=50), st.sampled_from([16, 128]))
def test_tokens_and_raw_bits_make_up_the_number(numbers, direct):
    wanted = np.array([number % (2**23 if direct == 128 else 2**34) for number in numbers])
    found, rest, digits = rans._tokenize(wanted, direct)
    start, length = rans._split(found, direct)
    np.testing.assert_array_equal(start + rest, wanted)
    np.testing.assert_array_equal(length, digits)


@settings(max_examples=25)
@given(tokens)
def test_the_numpy_loops_give_back_the_tokens(sent):
    frequencies, lanes = rans.scaled_frequencies(np.bincount(sent, minlength=256)), rans._lanes(len(sent))
    back = np.empty_like(sent)
    assert rans._twin_decode(rans._twin_encode(sent, frequencies, lanes), frequencies, lanes, back)
    np.testing.assert_array_equal(back, sent)


@needs_native
@settings(max_examples=25)
@given(tokens)
def test_native_and_numpy_loops_write_the_same_words(sent):
    frequencies, lanes = rans.scaled_frequencies(np.bincount(sent, minlength=256)), rans._lanes(len(sent))
    words = rans._encode_tokens(sent, frequencies, lanes)
    np.testing.assert_array_equal(words, rans._twin_encode(sent, frequencies, lanes))


sparse = st.builds(
    lambda seed, size, density, largest: np.where(
        np.random.default_rng(seed).random(size) < density,
        np.random.default_rng(seed + 1).integers(-largest, largest, size),
        0,
    ).astype(np.int32),
    st.integers(0, 2**32),
    st.integers(1, 9000),
    st.sampled_from([0.001, 0.1, 1.0]),
    st.sampled_from([1, 60, 70_000]),
).filter(np.any)


@needs_native
@given(sparse, st.sampled_from([np.int32, np.int64]))
def test_native_and_numpy_give_a_level_the_same_token_and_raw_bits(levels, index):
    places = np.flatnonzero(levels).astype(index)
    kept, bounds = levels[places], Bounds.of(levels.reshape(1, -1))
    found = rans._tokenize_all(places, kept, bounds)
    wanted = rans._twin_tokenize(places, kept)
    np.testing.assert_array_equal(found[0], wanted[0])
    np.testing.assert_array_equal(found[1], wanted[1])
    assert found[2] == wanted[2]


@pytest.mark.parametrize("without_native", [False, True])
@pytest.mark.parametrize("dtype", ["<u1", "<u2", "<u4", "<u8"])
def test_values_are_the_table_at_the_levels(monkeypatch, without_native, dtype):
    if without_native:
        monkeypatch.setattr(rans, "_native_routines", lambda: None)
    levels = example()
    bounds = Bounds.of(levels)
    table = np.array([0, 11, 22, 77, 88, 99], dtype)  # levels 0, 1, 2, −3, −2, −1
    values = rans.decode_values(memoryview(rans.encode(levels, bounds)), bounds, table)
    np.testing.assert_array_equal(values, table[levels.reshape(-1)])


@pytest.mark.parametrize("without_native", [False, True])
@pytest.mark.parametrize(
    ("bounds", "message"),
    [
        (Bounds(1, 300, 2, -3, 3), "past the end"),
        (Bounds(1, 302, 2, -3, 2), "outside of its bounds"),
        (Bounds(1, 302, 2, 0, 3), "outside of its bounds"),
    ],
)
def test_a_level_at_a_wrong_place_or_of_a_wrong_size_is_refused(monkeypatch, without_native, bounds, message):
    if without_native:
        monkeypatch.setattr(rans, "_native_routines", lambda: None)
    levels = np.zeros((1, 302), np.int32)
    levels[0, [3, 301]] = -2, 3
    stream = rans.encode(levels, Bounds.of(levels))
    with pytest.raises(FormatError, match=message):
        rans.decode(memoryview(stream), bounds)


@pytest.mark.parametrize("without_native", [False, True])
def test_raw_bits_too_many_and_bits_after_the_last_are_refused(monkeypatch, without_native):
    if without_native:
        monkeypatch.setattr(rans, "_native_routines", lambda: None)
    levels = np.zeros((1, 302), np.int32)
    levels[0, [3, 301]] = -2, 3
    bounds = Bounds.of(levels)
    stream = rans.encode(levels, bounds)
    with pytest.raises(FormatError, match="raw bits announced"):
        rans.decode(memoryview(stream + b"\0"), bounds)
    with pytest.raises(FormatError, match="after the last"):
        rans.decode(memoryview(stream[:-1] + bytes([stream[-1] | 1])), bounds)


def test_a_tensor_costs_its_entropy_and_a_small_table():
    draw = np.random.default_rng(0)
    levels = np.where(draw.random((400, 500)) < 0.05, draw.integers(1, 5, (400, 500)), 0).astype(np.int32)
    _, found = np.unique(levels, return_counts=True)
    entropy = (found * np.log2(levels.size / found)).sum() / 8
    assert len(rans.encode(levels, Bounds.of(levels))) < 1.02 * entropy + 200


def example():
    draw = np.random.default_rng(1)
    return np.where(draw.random((20, 30)) < 0.2, draw.integers(-3, 3, (20, 30)), 0).astype(np.int32)


def test_without_native_code_the_bytes_are_the_same(monkeypatch):
    levels = example()
    stream = rans.encode(levels, Bounds.of(levels))
    monkeypatch.setattr(rans, "_native_routines", lambda: None)
    assert rans.encode(levels, Bounds.of(levels)) == stream
    np.testing.assert_array_equal(rans.decode(memoryview(stream), Bounds.of(levels)), levels)


@pytest.mark.parametrize("without_native", [False, True])
def test_a_changed_stream_gives_other_levels_or_a_format_error(monkeypatch, without_native):
    if without_native:
        monkeypatch.setattr(rans, "_native_routines", lambda: None)
    levels = example()
    bounds = Bounds.of(levels)
    stream = rans.encode(levels, bounds)
    refused = 0
    for place in range(len(stream)):
        changed = bytearray(stream)
        changed[place] ^= 0x55
        try:
            back = rans.decode(memoryview(bytes(changed)), bounds)
        except FormatError:
            refused += 1
        else:
            assert Bounds.of(back).nonzero == bounds.nonzero
            assert (back != levels).any()
    assert refused > 0.5 * len(stream)


@pytest.mark.parametrize(
    ("stream", "message"),
    [
        (b"\x02\x01\x80\x20", "states"),
        (b"\x01\x00", "table"),
        (b"\x01\x01\x05", "add up"),
        (b"\x01\x01\x80\x20\x01\x80\x20\x7f\x7f", "announced"),
    ],
)
def test_a_broken_head_is_named(stream, message):
    with pytest.raises(FormatError, match=message):
        rans.decode(memoryview(stream), Bounds(10, 10, 3, -1, 1))
