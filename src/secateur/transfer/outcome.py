"""What a study of transfer finds, as typed data: the scores of several networks, and their differences in pairs."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from secateur.transfer.similarity import LayerSimilarity

# The first two are the paper's: a linear SVM for classes and attributes, Euclidean distance for retrieval.
Probe: TypeAlias = Literal["svm", "distance", "neighbours", "fine-tuned"]
Pair: TypeAlias = tuple[str, str]  # the network, and the one it is compared with


@dataclass(frozen=True, kw_only=True)
class StudiedNetwork:
    """A network of a study, with its prunable weights and those of them that are not zero."""

    name: str
    weights: int
    kept: int
    features: int = 0
    layer: str = ""  # empty: the input of the last linear layer

    @property
    def ratio(self) -> float:
        """All prunable weights ÷ those kept."""
        return self.weights / self.kept if self.kept else math.inf


@dataclass(frozen=True, kw_only=True)
class Difference:
    """The score of a network minus that of another one, from −1 to 1, with its interval of 95 %."""

    network: str
    against: str
    difference: float
    low: float
    high: float
    p_value: float
    sentence: str


@dataclass(frozen=True, kw_only=True)
class ProbeResult:
    """The scores of all networks under one probe, from 0 to 1, by their names.

    `penalties` are the values of C that cross-validation chose: one, or one for each attribute; none without an SVM.
    `lr` are the learning rates that fine-tuning chose.
    """

    probe: Probe
    scores: Mapping[str, float]
    differences: tuple[Difference, ...]
    penalties: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    lr: Mapping[str, float] = field(default_factory=dict)

    def difference(self, pair: Pair) -> Difference:
        """Return the difference of a pair of networks."""
        return _of_pair(self.differences, pair)


@dataclass(frozen=True, kw_only=True)
class TaskResult:
    """All networks on one task; the first probe is the paper's.

    `seconds` is the wall time of the command that wrote this; features and answers that it found in files took none of
    it. `similarity` is the linear CKA of each layer with the same one of the dense network, by the name of the network.
    """

    task: str
    measure: str
    items: int  # test pictures or queries
    probes: tuple[ProbeResult, ...]
    similarity: Mapping[str, tuple[LayerSimilarity, ...]] = field(default_factory=dict)
    seconds: float = math.nan  # not recorded in files of older versions

    def __post_init__(self) -> None:
        if not self.probes:
            raise ValueError(f"task {self.task} has no probe")

    @property
    def main(self) -> ProbeResult:
        """The paper's probe."""
        return self.probes[0]


@dataclass(frozen=True, kw_only=True)
class TransferStudy:
    """Several networks on several tasks. The first network is the dense one, the second the one that tables show first.

    `means` are the differences of the paper's probes, in the mean over tasks. Their intervals are those of the choice
    of test pictures, with the tasks as they are; their p-values are those of signs exchanged at random between tasks.
    """

    networks: tuple[StudiedNetwork, ...]
    tasks: tuple[TaskResult, ...] = ()
    means: tuple[Difference, ...] = ()
    threads: int = 0  # 0: not recorded
    versions: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        names = {network.name for network in self.networks}
        if len(names) != len(self.networks) or len(names) < 2:
            raise ValueError("a study needs two networks or more, with different names")
        for task in self.tasks:
            for probe in task.probes:
                if set(probe.scores) != names:
                    raise ValueError(f"task {task.task} has scores of other networks")

    @property
    def dense(self) -> StudiedNetwork:
        """The network that all others are compared with."""
        return self.networks[0]

    @property
    def pruned(self) -> tuple[StudiedNetwork, ...]:
        """All networks but the dense one."""
        return self.networks[1:]

    @property
    def seconds(self) -> float:
        """The wall time of all tasks; NaN if that of one is not recorded."""
        return sum(task.seconds for task in self.tasks)

    @property
    def pairs(self) -> tuple[Pair, ...]:
        """All pairs that were compared; those with the dense network come first."""
        return tuple((mean.network, mean.against) for mean in self.means)

    def mean(self, pair: Pair) -> Difference:
        """Return the mean difference of a pair over tasks."""
        return _of_pair(self.means, pair)


def _of_pair(differences: tuple[Difference, ...], pair: Pair) -> Difference:
    return next(each for each in differences if (each.network, each.against) == pair)
