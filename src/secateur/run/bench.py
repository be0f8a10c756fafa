"""The truth about speed: a network sparse and dense, layer by layer and whole, beside what the machine allows."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from secateur.measure import compare_latency, dense_bytes
from secateur.measure.engines import Run, prepare_all, require_same_answer
from secateur.measure.evaluating import evaluating
from secateur.measure.latency import Clock, calls_per_turn, turn
from secateur.run.chain import SparseChain
from secateur.run.layers import Layer
from secateur.run.machine import Limit, Machine, machine
from secateur.run.plan import Group, Plan
from secateur.run.planner import compile_sparse
from secateur.run.watch import Watch

LEAST_REPEATS = 6  # for an interval of the median at 95 %
_WARMUP = 3


# ---- what was found ----


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
    missing: Mapping[str, str] = field(default_factory=dict)  # engines that cannot be had, and why

    @property
    def ceiling(self) -> float | None:
        """Amdahl's: the speed-up if the layers that run sparse took no time; None if nothing else takes any.

        dense ÷ (dense − layers that are sparse now). Sparse calls also do the activations and poolings that follow,
        which count as something else here, so that it can be passed.
        """
        rest_ms = self.dense_ms - sum(group.dense_ms for group in self.groups if group.kernel is not None)
        return self.dense_ms / rest_ms if rest_ms > 0 else None

    @property
    def fused_ceiling(self) -> float | None:
        """The speed-up if sparse calls took no time, with all that they took over: this cannot be passed.

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
        """Return the little that a report shows, times to four digits: the first batch size, then all without layers.

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


# ---- how it is found ----


def bench(
    model: nn.Module,
    sample_shape: Sequence[int],
    *,
    network: str | None = None,
    density: float | None = None,
    batches: Sequence[int] = (1,),
    threads: int | None = None,
    repeats: int = 50,
    engines: Collection[str] = ("eager", "onnxruntime"),
    clock: Clock = time.perf_counter,
    observe: Callable[[BatchSpeed], None] | None = None,
) -> Bench:
    """Compile a pruned network for each batch size, and time it in turns with the dense one and with other engines.

    Samples are normal random numbers of `sample_shape`. `threads` are torch's own if not given. Eager torch is always
    there: it is what all is compared with. `network` and `density` are what the result will say about the model;
    `observe` is told about every batch size once it is measured.
    """
    if repeats < LEAST_REPEATS:
        raise ValueError(f"repeats must be ≥ {LEAST_REPEATS} for an interval of the median, got {repeats}")
    if not batches or min(batches) < 1:
        raise ValueError(f"batch sizes must be ≥ 1, got {', '.join(map(str, batches)) or 'none'}")
    others = [name for name in dict.fromkeys(engines) if name != "eager"]
    speeds: list[BatchSpeed] = []
    versions = {"torch": torch.__version__, "cpu": torch.backends.cpu.get_cpu_capability()}
    with _threads(threads) as used, evaluating(model):
        here = machine(used)
        for batch in batches:
            x = torch.randn(batch, *sample_shape, generator=torch.Generator().manual_seed(0))
            speed, found = _bench_batch(model, x, others, repeats, here, clock)
            versions |= found
            speeds.append(speed)
            if observe is not None:
                observe(speed)
    name = network or type(model).__name__
    return Bench(name, used, repeats, density, dense_bytes(model), here, tuple(speeds), versions)


@contextmanager
def _threads(wanted: int | None) -> Iterator[int]:
    before = torch.get_num_threads()
    if wanted is not None:
        torch.set_num_threads(wanted)
    try:
        yield torch.get_num_threads()
    finally:
        torch.set_num_threads(before)


def _bench_batch(
    model: nn.Module, x: Tensor, others: Sequence[str], repeats: int, here: Machine, clock: Clock
) -> tuple[BatchSpeed, dict[str, str]]:
    start = time.perf_counter()
    fast = compile_sparse(model, x)
    plan_s = time.perf_counter() - start
    _require_same_answer(fast, model, x)
    plan = fast.plan
    assert isinstance(plan, Plan)
    engines, missing = prepare_all(model, x, others)
    dense = Watch({name: _layer(model, name) for group in plan.groups for name in group.layers}, clock)
    chains = _chains(fast, plan)
    sparse = Watch(
        {group.layers[0]: chains.get(group) or _layer(fast, group.layers[0]) for group in plan.groups}, clock
    )
    with torch.inference_mode():
        with sparse:
            fast(x)  # which tells the shapes
        alone = _alone(chains, sparse.shapes)
        apart = Watch({name: chain for name, (chain, _) in alone.items()}, clock)
        runs: dict[str, Run] = {"eager": model, "sparse": fast}
        runs |= {name: engine.run for name, engine in engines.items()}
        calls = {name: calls_per_turn(partial(run, x), clock) for name, run in runs.items()}
        rivals = {
            **{name: turn(partial(run, x), calls[name]) for name, run in runs.items()},
            # The same two once more, with a clock at every layer: that takes time, so the whole is timed without.
            "layers of eager": dense.turn(partial(model, x), calls["eager"]),
            "layers of sparse": sparse.turn(partial(fast, x), calls["sparse"]),
            "joined layers, apart": apart.turn(partial(_one_by_one, alone.values()), calls["sparse"]),
        }
        found = compare_latency(rivals, repeats=repeats, warmup=_WARMUP, clock=clock, calls=calls)
    ms = {name: comparison.latency.median_ms for name, comparison in found.items()}
    low, high = found["sparse"].interval
    stored_bytes = sum(_stored_bytes(chain) for chain in chains.values())
    sparse_bytes = dense_bytes(fast) - stored_bytes + sum(_read_bytes(chain) for chain in chains.values())

    def speed_of(group: Group) -> GroupSpeed:
        first, chain = group.layers[0], chains.get(group)
        own_ms = compiled_ms.get(first, group.dense_ms if chain is None else group.sparse_ms)
        sparse_ms = own_ms if chain is not None else None if math.isnan(group.sparse_ms) else group.sparse_ms
        limit = None
        if chain is not None:
            moved = _read_bytes(chain) + sparse.moved.get(first, 0)
            flops = 2 * len(x) * sum(_multiplications(chain, sparse.shapes.get(first)))
            limit = here.limit(moved, flops, max(sparse_bytes, moved))
        layers = []
        for name in group.layers:
            weight = _layer(model, name).get_parameter("weight")
            alone_ms = sparse_ms if len(group.layers) == 1 else apart_ms.get(name)
            kept = int(torch.count_nonzero(weight))
            # A layer that the dense network computes together with others, as torch does in a transformer, is not
            # called by itself there: then it counts as when it was decided about.
            in_dense_ms = dense_ms.get(name, group.dense_ms if len(group.layers) == 1 else 0.0)
            layers.append(LayerSpeed(name, weight.numel(), kept, in_dense_ms, alone_ms))
        kernel = None if group.kernel is None else group.kernel.name
        return GroupSpeed(tuple(layers), kernel, sparse_ms, own_ms, limit)

    dense_ms, compiled_ms, apart_ms = (watch.medians_ms(repeats) for watch in (dense, sparse, apart))
    speed = BatchSpeed(
        batch=len(x),
        dense_ms=ms["eager"],
        sparse_ms=ms["sparse"],
        speedup=1 / found["sparse"].time_ratio,
        interval=(1 / high, 1 / low),
        engines_ms={name: ms[name] for name in engines},
        groups=tuple(speed_of(group) for group in plan.groups),
        plan_s=plan_s,
        sparse_bytes=sparse_bytes,
        held_bytes=sparse_bytes + stored_bytes,
        missing=missing,
    )
    return speed, {name: engine.version for name, engine in engines.items()}


def _require_same_answer(fast: nn.Module, model: nn.Module, x: Tensor) -> None:
    with torch.inference_mode():
        expected, answer = model(x), fast(x)
    if not isinstance(expected, Tensor):
        raise TypeError(f"the model must answer with one tensor, got {type(expected).__name__}")
    require_same_answer(answer, expected)


def _layer(model: nn.Module, name: str) -> nn.Module:
    return model if Layer.of_kind(model) else model.get_submodule(name)


def _chains(fast: nn.Module, plan: Plan) -> dict[Group, SparseChain]:
    """Return the chain that each sparse group of a plan became."""
    chains = {module.names: module for module in fast.modules() if isinstance(module, SparseChain)}
    return {group: chains[group.layers] for group in plan.sparse_groups}


def _samples(chain: SparseChain, shape: tuple[int, ...]) -> list[tuple[int, ...]]:
    """Return the shape of the samples that each layer of a chain is given, for an input of this shape."""
    samples, sample = [], shape[1:]
    for layer in chain.layers():
        samples.append(sample)
        sample = (*sample[:-1], layer.weight.shape[0]) if _vectors(layer, sample) > 1 else layer.out_shape(sample)
    return samples


def _vectors(layer: Layer, sample: tuple[int, ...]) -> int:
    """Count how often a layer is applied to a sample: a linear one to every vector in it."""
    return math.prod(sample) // max(layer.inputs, 1) if layer.window is None else 1


def _multiplications(chain: SparseChain, shape: tuple[int, ...] | None) -> list[int]:
    """Count the multiplications of each layer of a chain, for one of the samples of an input of this shape."""
    if shape is None:
        return []
    given = zip(chain.layers(), _samples(chain, shape), strict=True)
    return [layer.multiplications(sample) * _vectors(layer, sample) for layer, sample in given]


def _alone(
    chains: Mapping[Group, SparseChain], shapes: Mapping[str, tuple[int, ...]]
) -> dict[str, tuple[SparseChain, Tensor]]:
    """Return the layers that share a call with others as calls of their own, by name."""
    calls = {}
    for group, chain in chains.items():
        shape = shapes.get(group.layers[0])
        if len(group.layers) == 1 or shape is None:
            continue
        for name, layer, sample in zip(group.layers, chain.layers(), _samples(chain, shape), strict=True):
            alone = SparseChain([layer], chain.kernel, flattens="samples" if _vectors(layer, sample) == 1 else None)
            calls[name] = (alone, torch.randn(shape[0], *sample))
    return calls


def _one_by_one(calls: Collection[tuple[SparseChain, Tensor]]) -> None:
    for chain, x in calls:
        chain(x)


def _read_bytes(chain: SparseChain) -> int:
    """Return what is read of a chain's weights: as laid out for the kernels, or else in torch's compressed rows."""
    layers = chain.layers()
    rows = sum(8 * layer.weight.count + 4 * (layer.weight.shape[0] + 1) + layer.bias.nbytes for layer in layers)
    return chain.nbytes() or rows


def _stored_bytes(chain: SparseChain) -> int:
    return sum(buffer.nbytes for buffer in chain.buffers())
