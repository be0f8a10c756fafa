"""One file of a set: found in a folder, read, and compared with its digest."""

import gzip
import hashlib
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from secateur.data.images import DataError


@dataclass(frozen=True)
class DataFile:
    """What a file of a set is called and what is in it, uncompressed."""

    name: str
    size_bytes: int
    md5: str

    def find(self, folders: Sequence[Path]) -> Path | None:
        """Return where the file lies, raw or as .gz; the first folder that has it wins."""
        candidates = (folder / name for folder in folders for name in (self.name, f"{self.name}.gz"))
        return next((path for path in candidates if path.is_file()), None)

    def read(self, path: Path) -> bytes:
        """Return the uncompressed content of `path`, once it is known to be that of this file."""
        try:
            content = self.read_unchecked(path)
            fault = self.fault(content)
        except (OSError, EOFError, zlib.error) as error:
            fault = f"cannot be read ({error})"
        if fault is not None:
            raise DataError(f"{path} {fault}: remove it and load again to fetch a good copy")
        return content

    def read_unchecked(self, path: Path) -> bytes:
        """Return the uncompressed content of `path`, cut off where it exceeds what this file holds."""
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            return file.read(self.size_bytes + 1)

    def fault(self, content: bytes) -> str | None:
        """Say in what `content` differs from that of this file, if it does."""
        if len(content) != self.size_bytes:
            got = f"{len(content)} bytes" if len(content) < self.size_bytes else "more"
            return f"holds {got} instead of {self.size_bytes} bytes"
        md5 = hashlib.md5(content, usedforsecurity=False).hexdigest()
        return f"has md5 {md5} instead of {self.md5}" if md5 != self.md5 else None
