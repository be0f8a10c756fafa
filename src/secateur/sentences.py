"""Errors as one sentence for the user."""

from __future__ import annotations

_WRITTEN_FOR_USERS = (
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


def sentence(error: Exception) -> str:
    """Return an error as one line, with its type if its text was not written for users."""
    if isinstance(error, OSError) and error.filename is not None:
        return f"{error.filename}: {error.strerror}"
    text = str(error).strip().splitlines()
    first = text[0] if text else type(error).__name__
    return first if type(error).__name__ in _WRITTEN_FOR_USERS else f"{type(error).__name__}: {first}"
