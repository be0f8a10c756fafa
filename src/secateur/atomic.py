"""A file is written whole or not at all."""

import os
from contextlib import suppress
from pathlib import Path


def require_file(path: Path) -> Path:
    """Return where a file is to be written, all links followed; raise a ValueError if no file can be there."""
    where = path.resolve()
    if where.is_dir() or (where.exists() and not where.is_file()):
        raise ValueError(f"{path} is a directory, a pipe or a device: name a file to write")
    return where


def write_atomically(path: Path, content: bytes) -> None:
    """Write a file so that a reader, or a crash, sees either the old one or the whole new one.

    A link is followed. What is no file, such as a directory, a pipe or a device, is refused instead of replaced.
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
    except OSError as error:  # a full disk does not say by itself which file it has no room for
        raise OSError(error.errno, error.strerror, str(path)) from error
    finally:
        with suppress(OSError):
            partial.unlink()
