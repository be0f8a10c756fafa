"""The non-zeros of a tensor, straight from its stream: sparse kernels need no dense tensor."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np
import torch

from secateur.encode.codecs.bounds import Places, empty_places
from secateur.encode.errors import FormatError
from secateur.encode.levels import Array, from_bits, unsigned


class SparseTensor(NamedTuple):
    """The non-zeros of a tensor: `places` in the flat tensor, in rising order, and the `values` there.

    Places are int32, or int64 in a tensor of 2³¹ elements and more. Values have the tensor's dtype; bfloat16 and
    float8, which NumPy does not know, become float32, which holds all of theirs. −0.0 is a value, as it is in the file.
    """

    places: Places
    values: Array
    shape: tuple[int, ...]


def sparse_tensor(places: Places, bits: Array, dtype: torch.dtype, shape: tuple[int, ...]) -> SparseTensor:
    """Return the sparse tensor with these bit patterns at these places."""
    values = from_bits(bits, dtype, (len(places),)) if len(places) else torch.empty(0, dtype=dtype)
    if dtype == torch.bfloat16 or (dtype.itemsize == 1 and dtype.is_floating_point):
        values = values.float()
    return SparseTensor(places, values.numpy(), shape)


def find_raw(read: Callable[[], Iterator[bytes]], dtype: torch.dtype, shape: tuple[int, ...]) -> tuple[Places, Array]:
    """Return where raw elements are not zero, and their bit patterns.

    Each call of `read` yields all bytes, in pieces of whole elements: non-zeros are counted first, so that only they
    take memory.
    """
    count = sum(int(np.count_nonzero(_marks(piece, dtype))) for piece in read())
    words = max(dtype.itemsize // 8, 1)  # per element: two where it is complex128
    places, values = empty_places(count, math.prod(shape)), np.empty((count, words), unsigned(dtype))
    start = done = 0
    for piece in read():
        marks = _marks(piece, dtype)
        found = np.flatnonzero(marks)
        if done + len(found) > count:
            raise FormatError("the file has changed while it was read", offset=start * dtype.itemsize)
        places[done : done + len(found)] = found + start
        values[done : done + len(found)] = np.frombuffer(piece, unsigned(dtype)).reshape(-1, words)[found]
        start, done = start + len(marks), done + len(found)
    return places[:done], values[:done].reshape(-1)


def _marks(piece: bytes, dtype: torch.dtype) -> Array:
    bits = np.frombuffer(piece, unsigned(dtype))
    return bits if dtype.itemsize <= 8 else np.any(bits.reshape(-1, 2), axis=1)
