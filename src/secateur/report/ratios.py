"""How ratios are written, on the page and on the terminal."""

from __future__ import annotations

import math


def times(ratio: float) -> str:
    """Write a ratio with three digits, or with all of those before the point."""
    if not math.isfinite(ratio):
        return "∞×"
    digits = next((digits for bound, digits in ((9.995, 2), (99.95, 1)) if ratio < bound), 0)
    return f"{ratio:,.{digits}f}×"
