"""Names of things on a page."""

from __future__ import annotations

import re


def identifier(name: str) -> str:
    """Return a name that may be an HTML id and a file's name: a data set may be a path."""
    return re.sub(r"[^\w.-]+", "-", name)


def letter(number: int) -> str:
    """Name a run of a comparison: A to Z, then A2 and so on."""
    return chr(ord("A") + number % 26) + (str(number // 26 + 1) if number >= 26 else "")
