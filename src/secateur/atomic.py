"""A file is written whole or not at all."""

import os
from contextlib import suppress
from pathlib import Path


def write_atomically(path: Path, content: bytes) -> None:
    """Write a file so that a reader, or a crash, sees either the old one or the whole new one."""
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with partial.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
    except OSError as error:  # a full disk does not say by itself which file it has no room for
        raise OSError(error.errno, error.strerror, str(path)) from error
    finally:
        with suppress(OSError):
            partial.unlink()
