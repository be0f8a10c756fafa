"""Single lines on the terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console


def say(console: Console, line: str) -> None:
    """Print a line as it is: a path may be long, and its brackets are not markup."""
    console.print(line, soft_wrap=True, highlight=False, markup=False)
