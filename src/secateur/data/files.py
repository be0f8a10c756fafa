"""One file of a data set: find it in folders, read it, and compare it with its digest."""

import gzip
import hashlib
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from secateur.data.images import DataError


@dataclass(frozen=True)
class DataFile:
    """The name of a file, and the size and digest of its uncompressed content."""

    name: str
    size_bytes: int
    md5: str

    def find(self, folders: Sequence[Path]) -> Path | None:
        """Return the path of the file, raw or .gz, in the first folder that has it."""
        candidates = (folder / name for folder in folders for name in (self.name, f"{self.name}.gz"))
        return next((path for path in candidates if path.is_file()), None)

    def read(self, path: Path) -> bytes:
        """Return the uncompressed content of `path`, verified."""
        try:
            content = self.read_unchecked(path)
            fault = self.fault(content)
        except (OSError, EOFError, zlib.error) as error:
            fault = f"cannot be read ({error})"
        if fault is not None:
            raise DataError(f"{path} {fault}: remove it and load again to download a good copy")
        return content

    def read_unchecked(self, path: Path) -> bytes:
        """Return the uncompressed content of `path`, at most one byte more than this file has."""
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            return file.read(self.size_bytes + 1)

    def fault(self, content: bytes) -> str | None:
        """Say how `content` differs from that of this file, if it does."""
        if len(content) != self.size_bytes:
            got = f"{len(content)} bytes" if len(content) < self.size_bytes else "more"
            return f"holds {got} instead of {self.size_bytes} bytes"
        md5 = hashlib.md5(content, usedforsecurity=False).hexdigest()
        return f"has md5 {md5} instead of {self.md5}" if md5 != self.md5 else None
