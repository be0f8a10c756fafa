"""How small a network has to become, in the words of the user."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from typing import Annotated

from typing_extensions import Doc


@dataclass(frozen=True, kw_only=True)
class Budget:
    """What the compressed network may cost at most: exactly one of the four is given."""

    ratio: Annotated[float | None, Doc("all prunable weights ÷ weights kept")] = None
    sparsity: Annotated[float | None, Doc("share of the prunable weights that are zero")] = None
    bytes: Annotated[int | None, Doc("size of the whole file")] = None
    error_increase: Annotated[float | None, Doc("points of validation error above the dense network's")] = None

    def __post_init__(self) -> None:
        given = {each.name: value for each in fields(self) if (value := getattr(self, each.name)) is not None}
        if len(given) != 1:
            got = " and ".join(given) or "none"
            raise ValueError(f"a budget is one of ratio, sparsity, bytes and error_increase, got {got}")
        [(name, value)] = given.items()
        if not isinstance(value, int | float) or isinstance(value, bool) or not math.isfinite(value):
            raise ValueError(f"{name} must be a finite number, got {value!r}")
        if name == "ratio" and value <= 1:
            raise ValueError(f"ratio must be above 1, got {value:g}: a network of 1/20 of the weights has the ratio 20")
        if name == "sparsity" and not 0 < value < 1:
            raise ValueError(f"sparsity must lie between 0 and 1, got {value:g}: 0.95 keeps one weight in twenty")
        if name == "bytes" and (value < 1 or value != int(value)):
            raise ValueError(f"bytes must be a whole number above 0, got {value:g}")
        if name == "error_increase" and value < 0:
            raise ValueError(
                f"error_increase must be ≥ 0, got {value:g}: an error below the dense network's cannot be promised"
            )

    @property
    def final_ratio(self) -> float | None:
        """All prunable weights ÷ weights kept, if the budget says so."""
        if self.sparsity is not None:
            return 1 / (1 - self.sparsity)
        return self.ratio

    def __str__(self) -> str:
        if self.ratio is not None:
            return f"{self.ratio:g}×"
        if self.sparsity is not None:
            return f"{100 * self.sparsity:g} % zeros"
        if self.bytes is not None:
            return f"{self.bytes:,} bytes"
        return f"+{self.error_increase:g} points of error"
