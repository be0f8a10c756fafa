"""What a run trains and evaluates its network on, whether the data are named or given by the user."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from torch import nn

from secateur.measure import Answers
from secateur.results import AnswersResult
from secateur.train.source import Source
from secateur.train.task import Task


@dataclass(frozen=True)
class Evaluation:
    """How a network does on validation data: the smaller, the better."""

    error: float
    answers: Answers | None = None  # of a classifier


class Workload(Protocol):
    """What a run trains and evaluates its network on."""

    @property
    def training(self) -> Source:
        """Where the batches of training come from."""
        ...

    @property
    def task(self) -> Task:
        """The loss of a batch."""
        ...

    @property
    def measure(self) -> str:
        """What `error` is: "error %" of a classifier, or "loss"."""
        ...

    @property
    def validation_samples(self) -> int:
        """The number of samples that a network is evaluated on."""
        ...

    @property
    def faults(self) -> dict[str, list[str]]:
        """What the log says about samples that could not be read so far: nothing if there are none."""
        ...

    @property
    def guessing_error(self) -> float:
        """The error of the best answer that ignores its input; infinite where that is not known."""
        ...

    @property
    def metadata(self) -> Mapping[str, str]:
        """What the .cut file of the network says about its inputs."""
        ...

    @property
    def sizes(self) -> Mapping[str, str]:
        """What is needed to build the network of a run again, next to its name."""
        ...

    def evaluate(self, model: nn.Module) -> Evaluation:
        """Evaluate a network on the validation data."""
        ...

    def describe(self, answers: Answers, dense: Answers | None) -> AnswersResult | None:
        """Return the answers class by class and some of the mistakes; None if the samples cannot be shown."""
        ...
