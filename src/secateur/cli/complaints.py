"""What a person is told when something cannot be done: one sentence, and no trace."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TextIO

from secateur.nearest import require_one_of


class UsageError(Exception):
    """What the user typed cannot be carried out as it is."""


@contextmanager
def usage() -> Iterator[None]:
    """Inside, a ValueError is the user's choice of words, not a failure."""
    try:
        yield
    except ValueError as error:
        raise UsageError(str(error)) from error


def require_known(network: str, data_set: str) -> None:
    """Raise a ValueError unless there are such a network to train and such a data set."""
    from secateur import data, models

    require_one_of("network", network, tuple(models.MODELS))
    require_one_of("data set", data_set, data.names())


MOST_THREADS = 4096  # more than any machine has, and fewer than would bring one down


def require_at_least(least: int, *, most: int | None = None, **settings: int | None) -> None:
    """Raise a ValueError that names the first setting below the least or above the most; None is no setting."""
    for name, value in settings.items():
        if value is not None and value < least:
            raise ValueError(f"{name} must be ≥ {least}, got {value}")
        if value is not None and most is not None and value > most:
            raise ValueError(f"{name} must be ≤ {most:,}, got {value}")


def sentence(error: Exception) -> str:
    """Say in one line what went wrong, with the kind of error where its text was not written for people."""
    if isinstance(error, OSError) and error.filename is not None:
        return f"{error.filename}: {error.strerror}"
    text = str(error).strip().splitlines()
    known = type(error).__name__ in (
        "DataError",
        "RunError",
        "CheckpointError",
        "ValueError",
        "FormatError",
        "FloatingPointError",
        "ModuleNotFoundError",
    )
    first = text[0] if text else type(error).__name__
    return first if known else f"{type(error).__name__}: {first}"


def complain(said: str, code: int) -> int:
    """Print a sentence where complaints go, and return the exit code that goes with it."""
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
