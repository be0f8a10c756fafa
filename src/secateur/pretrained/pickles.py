"""Read arrays from a pickle without running code: a pickle may otherwise call any function when it is read."""

from __future__ import annotations

import io
import pickle
from typing import Any

import numpy as np

try:  # where numpy 2 and 1 have the function that pickles of arrays name
    from numpy._core.multiarray import _reconstruct
except ImportError:
    from numpy.core.multiarray import _reconstruct  # type: ignore[no-redef]

_ALLOWED = {
    ("numpy", "ndarray"): np.ndarray,
    ("numpy", "dtype"): np.dtype,
    ("numpy.core.multiarray", "_reconstruct"): _reconstruct,
    ("numpy._core.multiarray", "_reconstruct"): _reconstruct,
}


class _ArraysOnly(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        """Return one of the few names that a pickle of arrays needs; any other is refused."""
        if (module, name) not in _ALLOWED:
            raise pickle.UnpicklingError(f"it names {module}.{name}, and only arrays are read from a pickle")
        return _ALLOWED[module, name]


def read_arrays(content: bytes) -> Any:
    """Return the plain containers and numpy arrays of a pickle; a ValueError says why it holds anything else."""
    try:
        found = _ArraysOnly(io.BytesIO(content)).load()
    except (pickle.UnpicklingError, EOFError, AttributeError, IndexError, KeyError, TypeError) as error:
        raise ValueError(f"the pickle is refused: {error}") from error
    _require_numbers(found)
    return found


def _require_numbers(value: object) -> None:
    """Refuse arrays of objects."""
    if isinstance(value, dict):
        for each in value.values():
            _require_numbers(each)
    elif isinstance(value, list | tuple):
        for each in value:
            _require_numbers(each)
    elif isinstance(value, np.ndarray) and value.dtype.hasobject:
        raise ValueError("the pickle is refused: it holds an array of objects")
