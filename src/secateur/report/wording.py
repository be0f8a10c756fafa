"""How the quality of a network is written: as an error in percent or as a loss, on images or on samples."""

from __future__ import annotations

import math
from dataclasses import dataclass

from secateur.job import Job
from secateur.results import ERROR, figure


@dataclass(frozen=True)
class Wording:
    """The words for what the network of a run is measured by, and for what it is measured on."""

    measure: str = ERROR
    samples: str = "images"

    @property
    def name(self) -> str:
        """What is measured: "error", or "loss"."""
        return "error" if self.measure == ERROR else self.measure

    @property
    def title(self) -> str:
        """The same at the beginning of a sentence."""
        return self.name.capitalize()

    @property
    def unit(self) -> str:
        """What follows a number."""
        return " %" if self.measure == ERROR else ""

    def axis(self, what: str) -> str:
        """Return the label of an axis, with its unit: "error, %" and "loss"."""
        return f"{what}, %" if self.measure == ERROR else what

    def figure(self, value: float) -> str:
        """Return a number without its unit; a dash if it is not known."""
        return figure(value, self.measure) if math.isfinite(value) else "–"

    def amount(self, value: float) -> str:
        """Return a number with its unit: "2.00 %", or "0.1234"."""
        return f"{figure(value, self.measure)}{self.unit}"

    def change(self, value: float) -> str:
        """Return a difference with its sign: "+0.12 points", or "+0.01234"."""
        return f"{value:+.2f} points" if self.measure == ERROR else f"{value:+.4g}"


def wording(job: Job | None, measure: str) -> Wording:
    """Return the words for a run; data that are given need not be images."""
    return Wording(measure, "samples" if measure != ERROR or (job is not None and job.is_given) else "images")
