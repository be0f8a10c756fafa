"""Everything that a page shows of a run, except its weights."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from secateur.experiments.directory import RunDirectory
from secateur.experiments.reference import Reference
from secateur.job import Job
from secateur.report.wording import Wording, wording
from secateur.results import ERROR, AnswersResult, EvaluationResult, RunResult, SpeedResult, last

Images = Literal["test", "validation"]


@dataclass(frozen=True, kw_only=True)
class Epoch:
    """A line of a stage's log. Steps count from the beginning of the run; 0 where a log does not have them."""

    stage: str
    phase: str
    epoch: int
    epochs: int  # of the stage; 0 where a log does not say
    step: int
    error: float = math.nan
    measure: str = ERROR  # what the errors are
    sibling_error: float = math.nan
    ratio: float = math.nan
    kept: Mapping[str, int] = field(default_factory=dict)
    thresholds: Mapping[str, float] = field(default_factory=dict)
    loss: float = math.nan
    loss_terms: Mapping[str, float] = field(default_factory=dict)
    coded_bytes: float = math.nan  # the estimated size of the file
    target: Mapping[str, float] = field(default_factory=dict)  # "ratio" or "bytes" that the stage is to end with


@dataclass(frozen=True, kw_only=True)
class Layer:
    """A prunable tensor: its weights, how many are kept, and its thresholds if it has any."""

    name: str
    shape: tuple[int, ...]
    weights: int
    kept: int
    thresholds: tuple[float, ...] = ()

    @property
    def threshold(self) -> float:
        """The mean of its thresholds; NaN if it has none."""
        return sum(self.thresholds) / len(self.thresholds) if self.thresholds else math.nan


@dataclass(frozen=True, kw_only=True)
class Error:
    """An error, or a loss, and the images or samples it was measured on."""

    value: float
    images: Images
    count: int = 0


@dataclass(frozen=True, kw_only=True)
class PageFile:
    """The .cut file of a run."""

    bytes: int
    dense_bytes: int
    tensor_bytes: Mapping[str, int]  # empty if the file cannot be read

    @property
    def ratio(self) -> float:
        """How many times as many bytes 32-bit floats take."""
        return self.dense_bytes / self.bytes if self.bytes else math.inf


@dataclass(frozen=True, kw_only=True)
class Run:
    """Everything that a page shows of a run, except its weights."""

    directory: RunDirectory
    settings: Mapping[str, Any]  # of the job, as it was written
    job: Job | None  # None: settings of another version
    problems: tuple[str, ...]
    layers: tuple[Layer, ...]
    history: tuple[Epoch, ...]
    result: RunResult | None = None
    test: EvaluationResult | None = None
    file: PageFile | None = None
    answers: AnswersResult | None = None
    speed: SpeedResult | None = None
    reference: Reference | None = None

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
    def is_given(self) -> bool:
        """Whether its network and data were given in Python: no command repeats it."""
        return self.job is not None and self.job.is_given

    @property
    def title(self) -> str:
        """The network and its data in words."""
        return f"{self.network} on {self.job.data_name if self.job is not None else self.data}"

    @property
    def measure(self) -> str:
        """What its errors are: "error %", or "loss"."""
        if self.result is not None:
            return self.result.measure
        return self.history[-1].measure if self.history else ERROR

    @property
    def wording(self) -> Wording:
        """The words for its errors."""
        return wording(self.job, self.measure)

    @property
    def seed(self) -> object:
        """The seed."""
        return self.settings.get("seed", "unknown")

    @property
    def state(self) -> str:
        """Whether the run is finished, or how far it is."""
        if self.result is not None:
            return "finished"
        if self.directory.result.exists():
            return "damaged"
        if not self.history:
            return "no epoch is done yet"
        latest = self.history[-1]
        goal = f" of {latest.epochs}" if latest.epochs else ""
        return f"unfinished: epoch {latest.epoch}{goal}, stage {latest.stage}"

    @property
    def is_finished(self) -> bool:
        """Whether the run has a result."""
        return self.result is not None

    @property
    def is_pruned(self) -> bool:
        """Whether the run makes the network smaller: it is not a dense reference."""
        return self.kept < self.weights if self.job is None else not self.job.is_dense

    @property
    def counts_steps(self) -> bool:
        """Whether the steps of all epochs are known."""
        return bool(self.history) and all(epoch.step for epoch in self.history)

    @property
    def weights(self) -> int:
        """The number of prunable weights."""
        return sum(layer.weights for layer in self.layers)

    @property
    def kept(self) -> int:
        """The number of prunable weights that are not zero."""
        return sum(layer.kept for layer in self.layers)

    @property
    def ratio(self) -> float:
        """All prunable weights ÷ those kept."""
        if not self.layers:
            return self.history[-1].ratio if self.history else math.nan
        return self.weights / self.kept if self.kept else math.inf

    @property
    def errors(self) -> tuple[Error, ...]:
        """The errors of the network as it is now, on test images first."""
        found = []
        if self.test is not None:
            found.append(Error(value=self.test.error, images="test", count=self.test.images))
        if self.result is not None:
            images = self.result.validation_images
            found.append(Error(value=last(self.result.errors), images="validation", count=images))
        elif self.history:
            found.append(Error(value=self.history[-1].error, images="validation"))
        return tuple(each for each in found if math.isfinite(each.value))

    @property
    def error(self) -> Error | None:
        """The error on test images, or on validation images if the run was not evaluated."""
        return self.errors[0] if self.errors else None

    def error_on(self, images: Images) -> Error | None:
        """Return the error of the network as it is now on these images; None if it is not known."""
        return next((error for error in self.errors if error.images == images), None)

    def dense_error(self, images: Images) -> float:
        """Return the error of the dense reference on these images; NaN if it is not known."""
        if self.reference is None:
            return math.nan
        return self.reference.test if images == "test" else self.reference.validation

    @property
    def compared(self) -> Error | None:
        """The run's error on images on which the dense error is known too: test images if possible."""
        return next((error for error in self.errors if math.isfinite(self.dense_error(error.images))), None)
