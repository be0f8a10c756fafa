"""Keep links to lines of code true: `python docs/lines.py` finds the lines again after the code has moved.

A link reads [`code`](../path#L12): the code, with … for what is left out, must stand in that line, and in no other.
"""

import re
import sys
from pathlib import Path

DOCS = Path(__file__).parent
_LINK = re.compile(r"\[`([^`]+)`\]\((\.\./[\w./-]+)#L\d+\)")


def refreshed(page: str) -> str:
    """Return a page whose links point to the lines that hold their code now."""
    return _LINK.sub(lambda match: f"[`{match[1]}`]({match[2]}#L{line_of(match[1], DOCS / match[2])})", page)


def line_of(code: str, path: Path) -> int:
    """Return the number of the one line that holds the code."""
    pattern = re.compile(".*".join(re.escape(part.strip()) for part in code.split("…")))
    found = [number for number, line in enumerate(path.read_text().splitlines(), 1) if pattern.search(line)]
    if len(found) != 1:
        raise ValueError(f"{path.name}: {len(found)} lines hold `{code}`, a link needs exactly one")
    return found[0]


if __name__ == "__main__":
    for page in map(Path, sys.argv[1:] or sorted(DOCS.glob("*.md"))):
        page.write_text(refreshed(page.read_text()))
