"""Output for terminals that cannot show θ, × or ±: ASCII replacements instead of an encoding error."""

from __future__ import annotations

import codecs
import sys
from io import TextIOWrapper

_IN_ASCII = {
    "×": "x",
    "–": "-",
    "−": "-",
    "…": "...",
    "±": "+/-",
    "≥": ">=",
    "≤": "<=",
    "≈": "~",
    "→": "->",
    "·": "*",
    "÷": "/",
    "°": " deg",
    "∞": "inf",
    "‖": "|",
    "Σ": "sum",
    "θ": "theta",
    "γ": "gamma",
    "α": "alpha",
    "λ": "lambda",
    "ρ": "rho",
    "µ": "u",
    "²": "^2",
    "⁻": "^-",
    "¹": "1",
    "█": "#",
    "━": "-",
}
_HANDLER = "secateur-ascii"


def write_what_the_terminal_can_show() -> None:
    """Replace characters that the encoding of an output stream lacks; UTF streams are left alone."""
    codecs.register_error(_HANDLER, _replaced)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper) and not codecs.lookup(stream.encoding).name.startswith("utf"):
            stream.reconfigure(errors=_HANDLER)


def _replaced(error: UnicodeError) -> tuple[str, int]:
    assert isinstance(error, UnicodeEncodeError)
    text = error.object[error.start : error.end]
    return "".join(_IN_ASCII.get(character, "?") for character in text), error.end
