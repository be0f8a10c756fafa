"""The log of a stage, one JSON object a line, and where its checkpoint lies."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from secateur.train.observers import LogLine


@dataclass(frozen=True, kw_only=True)
class Journal:
    """The checkpoint and the log of one stage of training."""

    checkpoint: Path
    log: Path

    @property
    def length(self) -> int:
        """The bytes of the log so far."""
        return self.log.stat().st_size if self.log.exists() else 0

    def append(self, line: LogLine) -> None:
        """Add an epoch to the log."""
        try:
            self.log.parent.mkdir(parents=True, exist_ok=True)
            with self.log.open("a") as file:
                # JSON has no infinity, which is the ratio of a network without weights.
                finite = {name: None if value == math.inf else value for name, value in line.items()}
                file.write(json.dumps(finite, allow_nan=False) + "\n")
        except OSError as error:
            raise OSError(error.errno, error.strerror, str(self.log)) from error

    def truncate(self, length: int) -> None:
        """Remove the lines that were written after the checkpoint: their epoch is about to be repeated."""
        if self.length > length:
            with self.log.open("r+b") as file:
                file.truncate(length)


def read_log(log: Path) -> Iterator[LogLine]:
    """Yield the lines of a log."""
    with log.open() as file:
        for text in file:
            line = json.loads(text)
            yield {name: math.inf if name == "ratio" and value is None else value for name, value in line.items()}
