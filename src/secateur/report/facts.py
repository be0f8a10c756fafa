"""Everything a page shows of a run, weights excepted."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from secateur.experiments.compress import Compression
from secateur.experiments.job import Job
from secateur.experiments.rundir import RunDirectory
from secateur.train.loop import Phase


@dataclass(frozen=True, kw_only=True)
class Epoch:
    """A line of a log. Steps count from the beginning of the run; 0 where an older log does not tell them."""

    phase: Phase
    epoch: int
    step: int
    error: float = math.nan
    sibling_error: float = math.nan
    ratio: float = math.nan
    kept: Mapping[str, int] = field(default_factory=dict)
    thresholds: Mapping[str, float] = field(default_factory=dict)
    loss: float = math.nan
    loss_terms: Mapping[str, float] = field(default_factory=dict)
    coded_bytes: float = math.nan  # what the file would have, as estimated


@dataclass(frozen=True, kw_only=True)
class Layer:
    """A prunable tensor: what there was, what is left, and by which thresholds."""

    name: str
    shape: tuple[int, ...]
    weights: int
    kept: int
    thresholds: tuple[float, ...] = ()

    @property
    def threshold(self) -> float:
        """The mean of its thresholds; NaN where it has none."""
        return sum(self.thresholds) / len(self.thresholds) if self.thresholds else math.nan


@dataclass(frozen=True, kw_only=True)
class Error:
    """An error rate in percent, and on which images."""

    percent: float
    images: str  # "test" or "validation"
    count: int = 0


@dataclass(frozen=True, kw_only=True)
class PackedFile:
    """A .cut file made out of the run."""

    name: str
    bytes: int
    dense_bytes: int
    error: Error
    steps: Mapping[str, float]  # validation error after each step on the way
    settings: Mapping[str, Any]
    compression: Compression | None  # None: settings of another version
    tensor_bytes: Mapping[str, int]
    history: tuple[Epoch, ...]

    @property
    def ratio(self) -> float:
        """How many times as many bytes 32-bit floats would take."""
        return self.dense_bytes / self.bytes if self.bytes else math.inf


@dataclass(frozen=True, kw_only=True)
class Speed:
    """Milliseconds of a call, dense and sparse, of the network and of its layers."""

    dense_ms: float
    sparse_ms: float
    batch: int
    threads: int
    layers: Mapping[str, tuple[float, float]]


@dataclass(frozen=True, kw_only=True)
class Dense:
    """The dense reference: errors of the run with the same seed, or else the mean over other seeds."""

    test: float
    validation: float
    seeds: tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class Run:
    """Everything a page shows of a run, weights excepted."""

    directory: RunDirectory
    settings: Mapping[str, Any]  # of the job, as it was written
    job: Job | None  # None: settings of another version
    state: str
    problems: tuple[str, ...]
    layers: tuple[Layer, ...]
    history: tuple[Epoch, ...]
    counts_steps: bool
    errors: tuple[Error, ...]  # test first
    forms: Mapping[str, float]  # error of each form of the network, on the images of the first error
    parameters: int
    parameters_kept: int
    files: tuple[PackedFile, ...]  # newest first
    speed: Speed | None
    dense: Dense | None
    seconds: Mapping[str, float]
    facts: Mapping[str, str]

    @property
    def name(self) -> str:
        """The name of its directory."""
        return self.directory.path.resolve().name

    @property
    def network(self) -> str:
        """The network's name."""
        return str(self.settings.get("network", "an unknown network"))

    @property
    def data(self) -> str:
        """The data set's name."""
        return str(self.settings.get("data", "unknown data"))

    @property
    def seed(self) -> object:
        """The seed."""
        return self.settings.get("seed", "unknown")

    @property
    def weights(self) -> int:
        """The number of prunable weights."""
        return sum(layer.weights for layer in self.layers)

    @property
    def kept(self) -> int:
        """How many of them are not zero."""
        return sum(layer.kept for layer in self.layers)

    @property
    def ratio(self) -> float:
        """All ÷ kept."""
        if not self.layers:
            return self.history[-1].ratio if self.history else math.nan
        return self.weights / self.kept if self.kept else math.inf

    @property
    def error(self) -> Error | None:
        """The error on test images, or else on validation images."""
        return self.errors[0] if self.errors else None

    @property
    def dense_error(self) -> float:
        """The dense network's error, on the images that the run is judged by; NaN if it is not known."""
        if self.dense is None or self.error is None:
            return math.nan
        return self.dense.test if self.error.images == "test" else self.dense.validation

    @property
    def is_pruned(self) -> bool:
        """Whether the run was to prune."""
        return bool(self.settings.get("method", "prune") == "prune")
