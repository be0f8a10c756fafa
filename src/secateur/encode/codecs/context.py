"""Codec "context", the smallest: binary decisions, each predicted by several adaptive probabilities at once.

A matrix is coded row by row. `context_model.py` predicts every binary decision, and `binary.py` turns decision and
probability into bytes. A stride makes neighbours of columns that lie above each other in an image (28 in a layer that
sees 28 × 28 pixels). The encoder tries both directions and a few strides and keeps what is smallest.

    stream = 2·stride + transposed (varint), then the bytes of the binary coder; empty if all levels are zero

Native code (native/context.cpp) does the work if it was built; the model in Python is the same, and defines the code.
"""

from __future__ import annotations

import ctypes
import math
from functools import cache

import numpy as np
import numpy.typing as npt

from secateur import native
from secateur.encode.codecs.binary import BinaryDecoder, BinaryEncoder
from secateur.encode.codecs.bounds import Bounds, Matrix, Places, SparseLevels, empty_places
from secateur.encode.codecs.context_model import ContextModel
from secateur.encode.errors import FormatError
from secateur.encode.varint import Cursor, put_varint

_SHORTEST_STRIDE, _LONGEST_STRIDE = 4, 256
_STRIDES_TRIED = 3
_KERNELS = (5, 7)  # widths of filters whose rows are tried as strides; 3 is too short
_TRIAL_CELLS = 1 << 20  # of a larger matrix, so many of its first levels are tried
_COLUMN_BYTES = 80  # what the model keeps of a column: 45, and with a stride as long as the row 28 of padding


def working_bytes(rows: int, columns: int) -> int:
    """Return the most memory that coding takes in addition to the matrix, in whichever direction it is coded."""
    return _COLUMN_BYTES * max(rows, columns)


def encode(levels: Matrix, bounds: Bounds) -> bytes:
    """Code a level matrix in the direction and with the stride that make it smallest."""
    if bounds.nonzero == 0:
        return b""
    trial = levels[: max(1, _TRIAL_CELLS // max(1, bounds.columns))]
    whole = trial.shape == levels.shape
    transposed, stride, best = False, 0, _stream(trial, bounds, stride=0)
    for other_way, other_stride in ((True, 0), *((False, each) for each in _strides(trial))):
        stream = _stream(trial.T if other_way else trial, bounds, stride=other_stride)
        if len(stream) < len(best):
            transposed, stride, best = other_way, other_stride, stream
    out = bytearray()
    put_varint(out, 2 * stride + transposed)
    return bytes(out) + (best if whole else _stream(levels.T if transposed else levels, bounds, stride=stride))


def decode(stream: memoryview, bounds: Bounds) -> Matrix:
    """Return the level matrix."""
    if bounds.nonzero == 0:
        Cursor(stream).end()
        return np.zeros((bounds.rows, bounds.columns), np.int32)
    body, turned, stride, transposed = _read_head(stream, bounds)
    levels = np.empty((turned.rows, turned.columns), np.int32)
    _require_end((_native_decode if _native_routines() else _twin_decode)(body, turned, stride, levels), stream)
    return np.ascontiguousarray(levels.T) if transposed else levels


def decode_sparse(stream: memoryview, bounds: Bounds) -> SparseLevels:
    """Return the non-zero levels and their places; at most two rows of the matrix are kept in memory."""
    places, levels = empty_places(bounds.nonzero, bounds.size), np.empty(bounds.nonzero, np.int32)
    if bounds.nonzero == 0:
        Cursor(stream).end()
        return places, levels
    body, turned, stride, transposed = _read_head(stream, bounds)
    _require_end((_native_list if _native_routines() else _twin_list)(body, turned, stride, places, levels), stream)
    if not transposed:
        return places, levels
    # Stable, since the places of a coded row rise already: there are few runs to merge.
    turned_places = places % places.dtype.type(turned.columns)
    turned_places *= turned.rows
    places //= turned.columns
    turned_places += places
    order = np.argsort(turned_places, kind="stable")
    np.take(turned_places, order, out=places)
    return places, levels[order]


def _read_head(stream: memoryview, bounds: Bounds) -> tuple[memoryview, Bounds, int, bool]:
    """Return the bytes of the binary coder, the bounds of the matrix as it was coded, its stride, and if transposed."""
    cursor = Cursor(stream)
    stride, transposed = divmod(cursor.varint(), 2)
    rows, columns = (bounds.columns, bounds.rows) if transposed else (bounds.rows, bounds.columns)
    if stride and not _SHORTEST_STRIDE <= stride < columns:
        raise cursor.wrong(f"a stride of {stride:,} does not fit {columns:,} columns")
    if bounds.smallest == bounds.largest == 0:
        raise cursor.wrong(f"{bounds.nonzero:,} levels are not zero, and none may be")
    turned = Bounds(rows, columns, bounds.nonzero, bounds.smallest, bounds.largest)
    return cursor.take(cursor.left), turned, stride, bool(transposed)


def _require_end(is_sound: bool, stream: memoryview) -> None:
    if not is_sound:
        raise FormatError("the stream ends too early or too late", offset=len(stream))


def _strides(levels: Matrix) -> list[int]:
    """Return the distances at which two levels of a row are most often both non-zero, and sides of possible squares."""
    marks = levels != 0
    columns = marks.shape[1]
    lags = range(_SHORTEST_STRIDE - 1, min(_LONGEST_STRIDE, columns // 2) + 1)
    # In whole numbers, so that every machine makes the same choice.
    pairs = [int(np.count_nonzero(marks[:, lag:] & marks[:, :-lag])) * columns // (columns - lag) for lag in lags]
    peaks = [i for i in range(1, len(pairs) - 1) if pairs[i - 1] < pairs[i] >= pairs[i + 1]]
    found = [lags[i] for i in sorted(peaks, key=lambda i: -pairs[i])[:_STRIDES_TRIED]]
    side = math.isqrt(columns)
    sides = [side] if side**2 == columns and side >= _SHORTEST_STRIDE else []
    sides += [kernel for kernel in _KERNELS if columns % kernel**2 == 0 and kernel < columns]
    return list(dict.fromkeys([*found, *sides]))


def _stream(levels: Matrix, bounds: Bounds, stride: int) -> bytes:
    levels = np.ascontiguousarray(levels)
    rows, columns = levels.shape
    own = Bounds(rows, columns, int(np.count_nonzero(levels)), bounds.smallest, bounds.largest)
    return (_native_encode if _native_routines() else _twin_encode)(levels, own, stride)


# The native coder, and the Python version that replaces it where it was not built.


@cache
def _native_routines() -> tuple[native.Routine, native.Routine, native.Routine] | None:
    pointer, size, level = ctypes.c_void_p, ctypes.c_int64, ctypes.c_int32
    bounds = (size, size, size, level, level, size)
    encode = native.routine("secateur_context_encode", size, pointer, *bounds, pointer, size)
    decode = native.routine("secateur_context_decode", size, pointer, size, *bounds, pointer)
    sparse = native.routine("secateur_context_list", size, pointer, size, *bounds, pointer, level, pointer)
    return None if encode is None or decode is None or sparse is None else (encode, decode, sparse)


def _native_encode(levels: Matrix, bounds: Bounds, stride: int) -> bytes:
    routines = _native_routines()
    assert routines is not None
    capacity = 64 + bounds.size // 8 + 4 * bounds.nonzero
    while True:
        out = np.empty(capacity, np.uint8)
        length = routines[0](levels.ctypes.data, *_plain(bounds), stride, out.ctypes.data, capacity)
        if length >= 0:
            return out[:length].tobytes()
        if length == -2:
            raise MemoryError("no memory for coding a tensor")
        capacity *= 2


def _native_decode(body: memoryview, bounds: Bounds, stride: int, levels: Matrix) -> bool:
    routines = _native_routines()
    assert routines is not None
    content = np.frombuffer(body, np.uint8)
    outcome = routines[1](content.ctypes.data, len(content), *_plain(bounds), stride, levels.ctypes.data)
    if outcome == -2:
        raise MemoryError("no memory for decoding a tensor")
    return bool(outcome == 0)


def _native_list(body: memoryview, bounds: Bounds, stride: int, places: Places, levels: npt.NDArray[np.int32]) -> bool:
    routines = _native_routines()
    assert routines is not None
    content = np.frombuffer(body, np.uint8)
    into = places.ctypes.data, places.itemsize == 8, levels.ctypes.data
    outcome = routines[2](content.ctypes.data, len(content), *_plain(bounds), stride, *into)
    if outcome == -2:
        raise MemoryError("no memory for decoding a tensor")
    return bool(outcome == 0)


def _plain(bounds: Bounds) -> tuple[int, int, int, int, int]:
    return bounds.rows, bounds.columns, bounds.nonzero, bounds.smallest, bounds.largest


def _twin_encode(levels: Matrix, bounds: Bounds, stride: int) -> bytes:
    coder = BinaryEncoder()
    for _ in ContextModel(coder, bounds, stride).run(levels.reshape(-1).tolist()):
        pass
    return coder.finish()


def _twin_decode(body: memoryview, bounds: Bounds, stride: int, levels: Matrix) -> bool:
    coder = BinaryDecoder(body)
    levels.fill(0)
    for place, level in ContextModel(coder, bounds, stride).run(None):
        levels.flat[place] = level
    return coder.consumed_exactly


def _twin_list(body: memoryview, bounds: Bounds, stride: int, places: Places, levels: npt.NDArray[np.int32]) -> bool:
    coder = BinaryDecoder(body)
    for index, found in enumerate(ContextModel(coder, bounds, stride).run(None)):
        places[index], levels[index] = found
    return coder.consumed_exactly
