"""The native library: the hot loops of `native/`, found and loaded through ctypes.

Nothing is loaded before the first call. Where the library was not built or does not load, `is_available` is false
and slower Python code does the same work.
"""

import ctypes
from collections.abc import Callable
from functools import cache
from importlib.util import find_spec
from typing import Any, TypeAlias

import torch


def is_available() -> bool:
    """Whether the native library was built and loads on this machine."""
    return _library() is not None


@cache
def _library() -> ctypes.CDLL | None:
    return next((library for library in map(_open, _builds()) if library is not None), None)


def _builds() -> tuple[str, ...]:
    """Name the instruction sets of this machine that we build for, best first."""
    levels = ("x86_64_v4", "x86_64_v3", "x86_64", "generic")
    best = {"AVX512": 0, "AVX2": 1}.get(torch.backends.cpu.get_cpu_capability(), 2)
    return levels[best:]


def _open(build: str) -> ctypes.CDLL | None:
    # Python's import system knows where the file is, also in an editable install. Nothing is imported.
    spec = find_spec(f"{__package__}._native_{build}")
    if spec is None or spec.origin is None:
        return None
    try:
        # All symbols are resolved now: if torch has not brought the OpenMP runtime we call, it shows here.
        return ctypes.CDLL(spec.origin)
    except OSError:
        return None


Routine: TypeAlias = Callable[..., Any]


def routine(name: str, result: type | None, *arguments: type) -> Routine | None:
    """Return a routine of the native library with its types declared, or None where there is no library."""
    library = _library()
    if library is None:
        return None
    found: Routine = library[name]
    found.restype, found.argtypes = result, arguments  # type: ignore[attr-defined]  # a ctypes function
    return found
