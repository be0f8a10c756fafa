"""A table of words for the terminal and for Markdown, and how its numbers are written."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.table import Table


@dataclass(frozen=True)
class Grid:
    """A table with a title and a note below; the first column names the row."""

    title: str
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    note: str = ""

    def as_rich(self) -> Table:
        """Return the table for the terminal; cells that are too wide continue on the next line."""
        from rich.table import Table
        from rich.text import Text

        # As text: names of files and tensors may contain what rich would take for markup.
        note = Text(self.note) if self.note else None
        table = Table(title=Text(self.title), title_justify="left", caption=note, caption_justify="left")
        for index, heading in enumerate(self.header):
            table.add_column(Text(heading), justify="left" if index == 0 else "right", overflow="fold")
        for row in self.rows:
            table.add_row(*map(Text, row))
        return table

    def as_markdown(self) -> str:
        """Return the table for a document."""
        lines = [self.header, tuple("---" if i == 0 else "---:" for i in range(len(self.header))), *self.rows]
        body = "\n".join("| " + " | ".join(line) + " |" for line in lines)
        return f"{body}\n\n{self.note}" if self.note else body


def spread(value: tuple[float, float], digits: int, unit: str = "") -> str:
    """Write a mean with its deviation; "not run" for NaN, and no deviation where there is none."""
    mean, deviation = value
    if math.isnan(mean):
        return "not run"
    text = f"{mean:,.{digits}f}{unit}"
    return text if math.isnan(deviation) else f"{text} ± {deviation:,.{digits}f}"


def signed(value: tuple[float, float]) -> str:
    """Write a difference in points with its standard error."""
    mean, error = value
    if math.isnan(mean):
        return "not run"
    return f"{mean:+.2f}" if math.isnan(error) else f"{mean:+.2f} ± {error:.2f}"


def kilobytes(size_bytes: tuple[float, float], digits: int = 2, unit: str = " kB") -> str:
    """Write a size in kB of 1000 bytes."""
    return spread((size_bytes[0] / 1000, size_bytes[1] / 1000), digits, unit)


def minutes(seconds: tuple[float, float]) -> str:
    """Write a time in minutes."""
    return spread((seconds[0] / 60, seconds[1] / 60), 1)


def seeds(runs: int, dense: int) -> str:
    """Write the number of seeds, and that of the dense references where it differs."""
    return str(runs) if dense in (0, runs) else f"{runs}, dense {dense}"
