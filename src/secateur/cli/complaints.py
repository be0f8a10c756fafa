"""Error messages for the user: one sentence, and no trace."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TextIO


class UsageError(Exception):
    """The user has typed something that is not valid."""


@contextmanager
def usage() -> Iterator[None]:
    """Turn a ValueError raised inside into a UsageError."""
    try:
        yield
    except ValueError as error:
        raise UsageError(str(error)) from error


MOST_THREADS = 4096  # more than any machine has, but few enough to do no harm


def require_at_least(least: int, *, most: int | None = None, **settings: int | None) -> None:
    """Raise a ValueError that names the first setting below the least or above the most; None is ignored."""
    for name, value in settings.items():
        if value is not None and value < least:
            raise ValueError(f"{name} must be ≥ {least}, got {value}")
        if value is not None and most is not None and value > most:
            raise ValueError(f"{name} must be ≤ {most:,}, got {value}")


def usable_threads(threads: int | None) -> int | None:
    """Return the number of CPU threads to use: more than there are CPUs would only slow each other down."""
    available = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    if threads is None or threads <= available:
        return threads
    complain(f"{threads} threads were asked for, and this machine has {available} CPUs: {available} are used", 0)
    return available


def sentence(error: Exception) -> str:
    """Return an error as one line, with its type if its text was not written for users."""
    if isinstance(error, OSError) and error.filename is not None:
        return f"{error.filename}: {error.strerror}"
    text = str(error).strip().splitlines()
    known = type(error).__name__ in (
        "DataError",
        "PlainDataError",
        "RunError",
        "CheckpointError",
        "EngineError",
        "ValueError",
        "FormatError",
        "NetworkError",
        "FloatingPointError",
        "ModuleNotFoundError",
    )
    first = text[0] if text else type(error).__name__
    return first if known else f"{type(error).__name__}: {first}"


def complain(said: str, code: int) -> int:
    """Print a sentence to stderr, and return the exit code."""
    print(f"secateur: {said}", file=sys.stderr)
    return code


def show_warning(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: TextIO | None = None,
    line: str | None = None,
) -> None:
    """Print a warning as a sentence, in place of `warnings.showwarning`."""
    print(f"secateur: {message}", file=sys.stderr)
