"""How fast a network is: what a benchmark found, layer by layer and as a whole."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from secateur.run.bench.roofline import Limit, Machine


@dataclass(frozen=True)
class LayerSpeed:
    """A layer: how many weights it has and keeps, its time within the running dense network, and its sparse time.

    Where layers run as one call, `sparse_ms` is what this one would take as a call of its own. Of a layer that stays
    dense, it is the best time of the sparse ways that lost, if any was tried.
    """

    name: str
    weights: int
    kept: int
    dense_ms: float
    sparse_ms: float | None


@dataclass(frozen=True)
class GroupSpeed:
    """Layers that run as one sparse call, or one that stays dense (`kernel` is None).

    `sparse_ms` is that call's time within the running network, with the activations and poolings that it took over; of
    a layer that stays dense, the best time of the sparse ways that lost, if any was tried. `compiled_ms` is what the
    layers take in the compiled network, whichever way they run there.
    """

    layers: tuple[LayerSpeed, ...]
    kernel: str | None
    sparse_ms: float | None
    compiled_ms: float
    limit: Limit | None  # of a sparse call

    @property
    def dense_ms(self) -> float:
        """The time of its layers in the dense network."""
        return sum(layer.dense_ms for layer in self.layers)

    @property
    def achieved(self) -> float | None:
        """The share of the limit that a sparse call reaches."""
        if self.limit is None or not self.sparse_ms:
            return None
        return self.limit.ms / self.sparse_ms


@dataclass(frozen=True)
class BatchSpeed:
    """How fast a network is at one batch size: medians of calls in turns; ratios are taken within a turn."""

    batch: int
    dense_ms: float
    sparse_ms: float
    speedup: float
    interval: tuple[float, float]  # of the speed-up's median, at 95 %
    engines_ms: Mapping[str, float]  # other engines, dense
    groups: tuple[GroupSpeed, ...]
    plan_s: float
    sparse_bytes: int  # weights as the kernels and the layers that stay dense read them
    held_bytes: int  # the same, and what is kept to copy and save the network
    missing: Mapping[str, str] = field(default_factory=dict)  # engines that are not available, and why
    stays_dense: Mapping[str, str] = field(default_factory=dict)  # layers and weights that do, and why

    @property
    def ceiling(self) -> float | None:
        """Amdahl's: the speed-up if the layers that run sparse took no time; None if nothing else takes any.

        dense ÷ (dense − layers that are sparse now). Sparse calls also do the activations and poolings that follow,
        which count as something else here, so a speed-up may exceed it.
        """
        rest_ms = self.dense_ms - sum(group.dense_ms for group in self.groups if group.kernel is not None)
        return self.dense_ms / rest_ms if rest_ms > 0 else None

    @property
    def fused_ceiling(self) -> float | None:
        """The speed-up if sparse calls took no time, with all that they took over: an upper bound.

        dense ÷ (compiled − sparse calls)
        """
        rest_ms = self.sparse_ms - sum(group.compiled_ms for group in self.groups if group.kernel is not None)
        return self.dense_ms / rest_ms if rest_ms > 0 else None

    @property
    def other_ms(self) -> tuple[float, float]:
        """What the two networks spend outside of the layers, dense and compiled."""
        dense_ms = self.dense_ms - sum(group.dense_ms for group in self.groups)
        compiled_ms = self.sparse_ms - sum(group.compiled_ms for group in self.groups)
        return max(dense_ms, 0.0), max(compiled_ms, 0.0)


@dataclass(frozen=True)
class Bench:
    """How fast a network is, at one or more batch sizes. With `density`, its weights are random."""

    network: str
    threads: int
    repeats: int
    density: float | None
    dense_bytes: int
    machine: Machine
    speeds: tuple[BatchSpeed, ...]
    versions: Mapping[str, str]

    def to_json(self) -> str:
        """Return all of it as text."""
        speeds = []
        for speed in self.speeds:
            groups = [{**asdict(group), "achieved": group.achieved} for group in speed.groups]
            speeds.append(
                {
                    **asdict(speed),
                    "ceiling": speed.ceiling,
                    "fused_ceiling": speed.fused_ceiling,
                    "groups": groups,
                }
            )
        return json.dumps({**asdict(self), "speeds": speeds}, ensure_ascii=False, allow_nan=False)

    def summary(self) -> dict[str, Any]:
        """Return what a report shows, times to four digits: the first batch size, then all without layers.

        Layers go by the names of their weights. The sparse time of one that stays dense is its time in the sparse
        network.
        """
        first = self.speeds[0]
        return {
            "network": self.network,
            "threads": self.threads,
            "repeats": self.repeats,
            "versions": dict(self.versions),
            "dense_bytes": self.dense_bytes,
            **_whole(first),
            "layers": {
                f"{layer.name}.weight": {
                    "dense_ms": _short(layer.dense_ms),
                    "sparse_ms": _short(group.compiled_ms if group.kernel is None else layer.sparse_ms),
                }
                for group in first.groups
                for layer in group.layers
            },
            "batches": [_whole(speed) for speed in self.speeds],
        }


def _whole(speed: BatchSpeed) -> dict[str, Any]:
    return {
        "batch": speed.batch,
        "dense_ms": _short(speed.dense_ms),
        "sparse_ms": _short(speed.sparse_ms),
        "speedup": _short(speed.speedup),
        "ceiling": _short(speed.ceiling),
        "fused_ceiling": _short(speed.fused_ceiling),
        "sparse_bytes": speed.sparse_bytes,
        "engines_ms": {name: _short(ms) for name, ms in speed.engines_ms.items()},
    }


def _short(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.4g}")
