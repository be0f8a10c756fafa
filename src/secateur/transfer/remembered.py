"""Arrays that took long to compute, kept in a file named after everything they depend on."""

from __future__ import annotations

import hashlib
import io
import json
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from secateur.atomic import write_atomically
from secateur.data import DataError
from secateur.data.features import unwritable
from secateur.data.pictures import printable

Arrays: TypeAlias = Mapping[str, npt.NDArray[Any]]


def remembered(folder: Path, key: object, make: Callable[[], Arrays]) -> Arrays:
    """Return the arrays that `make` computes, from a file if there is one; `key` is all that they depend on."""
    path = remembered_path(folder, key)
    if not path.exists():
        content, arrays = io.BytesIO(), make()
        np.savez(content, **arrays)  # type: ignore[arg-type]  # its other parameter has a name that no array has
        try:
            write_atomically(path, content.getvalue())
        except OSError as error:
            raise unwritable(path, error) from error
        return arrays
    try:
        with np.load(io.BytesIO(path.read_bytes()), allow_pickle=False) as found:
            return dict(found)
    except (ValueError, OSError, EOFError, zipfile.BadZipFile) as error:
        raise DataError(f"{printable(path)} is damaged: delete it") from error


def remembered_path(folder: Path, key: object) -> Path:
    """Return the file that `remembered` keeps arrays in."""
    return folder / f"{hashlib.sha256(json.dumps(key).encode()).hexdigest()[:32]}.npz"
