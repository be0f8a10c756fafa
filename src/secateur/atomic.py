"""Atomic writes: a file is written completely or not at all."""

import os
from contextlib import suppress
from pathlib import Path


def require_file(path: Path) -> Path:
    """Return the path with links resolved; raise a ValueError if it cannot be a regular file."""
    where = path.resolve()
    if where.is_dir() or (where.exists() and not where.is_file()):
        raise ValueError(f"{path} is a directory, a pipe or a device: name a file to write")
    return where


def write_atomically(path: Path, content: bytes) -> None:
    """Write a file so that readers see either the old or the complete new content, even after a crash.

    Links are followed. A directory, a pipe or a device is refused instead of replaced.
    """
    where = require_file(path)
    partial = where.with_name(f".{where.name}.{os.getpid()}.partial")
    try:
        where.parent.mkdir(parents=True, exist_ok=True)
        with partial.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(where)
    except OSError as error:  # an error such as a full disk does not name the file
        raise OSError(error.errno, error.strerror, str(path)) from error
    finally:
        with suppress(OSError):
            partial.unlink()
