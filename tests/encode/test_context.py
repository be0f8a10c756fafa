"""The codec "context": its Python definition and its native code agree, and it finds what is to be found."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from secateur import native
from secateur.encode.codecs import context, rans
from secateur.encode.codecs.binary import BinaryDecoder, BinaryEncoder
from secateur.encode.codecs.bounds import Bounds
from secateur.encode.errors import FormatError

needs_native = pytest.mark.skipif(not native.is_available(), reason="the native library was not built")


def matrix(seed, rows, columns, density, largest):
    draw = np.random.default_rng(seed)
    sizes = draw.integers(1, largest + 1, (rows, columns)) * draw.choice([-1, 1], (rows, columns))
    return np.where(draw.random((rows, columns)) < density, sizes, 0).astype(np.int32)


matrices = st.builds(
    matrix,
    st.integers(0, 2**32),
    st.integers(1, 16),
    st.integers(1, 20),
    st.sampled_from([0.03, 0.3, 0.9, 1.0]),
    st.sampled_from([1, 3, 16, 17, 300, 32_767]),
).filter(lambda levels: levels.any())


def entropy_bytes(levels):
    """Bytes that place and level take if each is drawn for itself."""
    _, counts = np.unique(levels, return_counts=True)
    return float((counts * np.log2(levels.size / counts)).sum() / 8)


decisions = st.lists(st.tuples(st.integers(0, 1), st.integers(1, 65_535)), max_size=300)


@given(decisions)
def test_the_binary_coder_gives_back_every_decision(made):
    coder = BinaryEncoder()
    for decision, probability in made:
        coder.code(decision, probability)
    reader = BinaryDecoder(coder.finish())
    assert [reader.code(0, probability) for _, probability in made] == [decision for decision, _ in made]
    assert reader.consumed_exactly


@given(decisions)
def test_the_binary_coder_takes_a_byte_more_than_the_decisions_weigh(made):
    coder = BinaryEncoder()
    bits = 0.0
    for decision, probability in made:
        coder.code(decision, probability)
        bits -= math.log2((probability if decision else 65_536 - probability) / 65_536)
    assert len(coder.finish()) <= bits / 8 * 1.001 + 1.1


def test_a_carry_runs_through_bytes_that_wait():
    coder = BinaryEncoder()
    made = [(0, 65_535)] * 3 + [(0, 1)] * 4000 + [(1, 3), (0, 65_535)] * 20
    for decision, probability in made:
        coder.code(decision, probability)
    reader = BinaryDecoder(coder.finish())
    assert [reader.code(0, probability) for _, probability in made] == [decision for decision, _ in made]


@needs_native
@settings(max_examples=25)
@given(matrices, st.sampled_from([0, 4, 5, 9]))
def test_native_code_and_python_write_the_same_bytes(levels, stride):
    stride = stride if stride < levels.shape[1] else 0
    bounds = Bounds.of(levels)
    assert context._native_encode(levels, bounds, stride) == context._twin_encode(levels, bounds, stride)


@settings(max_examples=25)
@given(matrices, st.sampled_from([0, 4, 5, 9]))
def test_python_reads_what_it_wrote(levels, stride):
    stride = stride if stride < levels.shape[1] else 0
    bounds, back = Bounds.of(levels), np.empty_like(levels)
    assert context._twin_decode(memoryview(context._twin_encode(levels, bounds, stride)), bounds, stride, back)
    np.testing.assert_array_equal(back, levels)


@needs_native
@settings(max_examples=40)
@given(st.binary(max_size=40), matrices, st.sampled_from([0, 4]))
def test_native_code_and_python_read_garbage_alike(garbage, levels, stride):
    stride = stride if stride < levels.shape[1] else 0
    bounds, one, two = Bounds.of(levels), np.empty_like(levels), np.empty_like(levels)
    sound = context._native_decode(memoryview(garbage), bounds, stride, one)
    assert sound == context._twin_decode(memoryview(garbage), bounds, stride, two)
    np.testing.assert_array_equal(one, two)
    found = Bounds.of(one)
    assert found.nonzero == bounds.nonzero
    assert bounds.smallest <= found.smallest
    assert found.largest <= bounds.largest


def test_without_native_code_the_bytes_are_the_same(monkeypatch):
    levels = matrix(0, 12, 20, 0.2, 3)
    stream = context.encode(levels, Bounds.of(levels))
    monkeypatch.setattr(context, "_native_routines", lambda: None)
    assert context.encode(levels, Bounds.of(levels)) == stream
    np.testing.assert_array_equal(context.decode(memoryview(stream), Bounds.of(levels)), levels)


def test_the_bytes_stay_what_they_were():
    levels = matrix(7, 6, 9, 0.3, 20)
    assert context.encode(levels, Bounds.of(levels)).hex() == ("00636a7aef43f773cbd8c0610df77595068b")


def test_levels_without_a_pattern_cost_little_more_than_their_entropy():
    levels = matrix(0, 300, 400, 0.05, 4)
    assert len(context.encode(levels, Bounds.of(levels))) < 1.03 * entropy_bytes(levels)


def test_dense_rows_and_columns_are_found():
    draw = np.random.default_rng(0)
    shares = np.outer(draw.gamma(0.3, size=200), draw.gamma(0.3, size=300))
    levels = (draw.random((200, 300)) < shares / shares.mean() * 0.03).astype(np.int32)
    assert len(context.encode(levels, Bounds.of(levels))) < 0.75 * entropy_bytes(levels)


def test_the_rows_of_an_image_are_found():
    draw = np.random.default_rng(0)
    levels = np.zeros((60, 20, 20), np.int32)
    for unit in range(60):  # each unit sees a patch
        y, x = draw.integers(0, 16, 2)
        levels[unit, y : y + 4, x : x + 4] = draw.random((4, 4)) < 0.7
    levels = levels.reshape(60, 400)
    assert 20 in context._strides(levels)
    plain = len(context._stream(levels, Bounds.of(levels), stride=0))
    assert len(context.encode(levels, Bounds.of(levels))) < 0.8 * plain


def test_the_rows_of_a_filter_are_tried():
    assert 5 in context._strides(np.zeros((50, 500), np.int32))
    assert context._strides(np.zeros((4, 5), np.int32)) == []


def test_levels_of_many_sizes_are_no_larger_than_with_static_tables():
    draw = np.random.default_rng(0)
    sizes = np.round(draw.laplace(0, 40, (200, 300))).astype(np.int32)
    levels = np.where(draw.random((200, 300)) < 0.05, sizes, 0)
    bounds = Bounds.of(levels)
    assert len(context.encode(levels, bounds)) < len(rans.encode(levels, bounds))


@pytest.mark.parametrize("header", [2 * 3, 2 * 20, 2 * 10**6])
def test_a_stride_that_does_not_fit_is_refused(header):
    levels = matrix(0, 8, 20, 0.5, 2)
    stream = bytes([header]) if header < 128 else bytes([header & 127 | 128, header >> 7 & 127 | 128, header >> 14])
    with pytest.raises(FormatError, match="stride"):
        context.decode(memoryview(stream + b"abc"), Bounds.of(levels))


@pytest.mark.parametrize(
    "change",
    [
        lambda stream: stream[:-6],
        lambda stream: stream[:-1],
        lambda stream: stream + b"\0",
        lambda stream: stream + b"\1",
    ],
)
def test_a_stream_of_another_length_is_refused(change):
    levels = matrix(0, 30, 40, 0.3, 2)
    stream = context.encode(levels, Bounds.of(levels))
    with pytest.raises(FormatError, match="too early or too late"):
        context.decode(memoryview(change(stream)), Bounds.of(levels))
