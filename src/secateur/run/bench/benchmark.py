"""Compare sparse and dense speed: layer by layer and for the whole network, next to the machine's limits."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn

from secateur.graph.layers import is_plain_layer
from secateur.measure import compare_latency, dense_bytes
from secateur.measure.engines import Run, prepare_all, require_same_answer
from secateur.measure.evaluating import evaluating
from secateur.measure.latency import Clock, calls_per_turn, turn
from secateur.run.bench.chains import (
    call_one_by_one,
    chains_of,
    layers_alone,
    multiplications,
    read_bytes,
    stored_bytes,
)
from secateur.run.bench.layer_clock import LayerClock
from secateur.run.bench.results import BatchSpeed, Bench, GroupSpeed, LayerSpeed
from secateur.run.bench.roofline import Limit, Machine, machine
from secateur.run.compile import compile_sparse
from secateur.run.plan import Group, Plan
from secateur.run.sparse_chain import SparseChain

LEAST_REPEATS = 6  # for an interval of the median at 95 %
_WARMUP = 3


def bench(
    model: nn.Module,
    sample_shape: Sequence[int],
    *,
    network: str | None = None,
    density: float | None = None,
    batches: Sequence[int] = (1,),
    threads: int | None = None,
    repeats: int = 50,
    engines: Collection[str] = ("eager", "onnxruntime", "openvino"),
    clock: Clock = time.perf_counter,
    observe: Callable[[BatchSpeed], None] | None = None,
) -> Bench:
    """Compile a pruned network for each batch size, and time it in turns with the dense one and with other engines.

    Samples are normal random numbers of `sample_shape`. `threads` are torch's own if not given. Eager torch is always
    timed: everything is compared with it. `network` and `density` are what the result will say about the model;
    `observe` is called with the speed at every batch size once it is measured.
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
    dense = LayerClock(_modules(model, [name for group in plan.groups for name in group.layers]), clock)
    chains = chains_of(fast, plan)
    calls_of = {group.layers[0]: chains.get(group) for group in plan.groups}
    kept = _modules(fast, [name for name, chain in calls_of.items() if chain is None])
    sparse = LayerClock({name: chain for name, chain in calls_of.items() if chain is not None} | kept, clock)
    with torch.inference_mode():
        with sparse:
            fast(x)  # notes the shapes
        alone = layers_alone(chains, sparse.shapes)
        apart = LayerClock({name: chain for name, (chain, _) in alone.items()}, clock)
        runs: dict[str, Run] = {"eager": model, "sparse": fast}
        runs |= {name: engine.run for name, engine in engines.items()}
        calls = {name: calls_per_turn(partial(run, x), clock) for name, run in runs.items()}
        rivals = {
            **{name: turn(partial(run, x), calls[name]) for name, run in runs.items()},
            # The same two once more, with a clock at every layer: that takes time, so the whole is timed without.
            "layers of eager": dense.turn(partial(model, x), calls["eager"]),
            "layers of sparse": sparse.turn(partial(fast, x), calls["sparse"]),
            "joined layers, apart": apart.turn(partial(call_one_by_one, alone.values()), calls["sparse"]),
        }
        found = compare_latency(rivals, repeats=repeats, warmup=_WARMUP, clock=clock, calls=calls)
    ms = {name: comparison.latency.median_ms for name, comparison in found.items()}
    low, high = found["sparse"].interval
    stored = sum(stored_bytes(chain) for chain in chains.values())
    sparse_bytes = dense_bytes(fast) - stored + sum(read_bytes(chain) for chain in chains.values())
    dense_ms, compiled_ms, apart_ms = (timed.medians_ms(repeats) for timed in (dense, sparse, apart))
    medians = _LayerTimes(
        _counted(model, plan), len(x), here, sparse_bytes, dense_ms, compiled_ms, apart_ms, sparse.moved, sparse.shapes
    )
    speed = BatchSpeed(
        batch=len(x),
        dense_ms=ms["eager"],
        sparse_ms=ms["sparse"],
        speedup=1 / found["sparse"].time_ratio,
        interval=(1 / high, 1 / low),
        engines_ms={name: ms[name] for name in engines},
        groups=tuple(medians.speed_of(group, chains.get(group)) for group in plan.groups),
        plan_s=plan_s,
        sparse_bytes=sparse_bytes,
        held_bytes=sparse_bytes + stored,
        missing=missing,
        stays_dense=plan.dense,
    )
    return speed, {name: engine.version for name, engine in engines.items()}


@dataclass(frozen=True)
class _LayerTimes:
    """What the clocks at the layers found at one batch size; times are medians by name of a layer."""

    weights: Mapping[str, tuple[tuple[int, ...], int]]  # shape and number of non-zeros
    batch: int
    here: Machine
    working_set: int  # bytes of all weights that the compiled network reads
    dense_ms: Mapping[str, float]
    compiled_ms: Mapping[str, float]  # of the call that begins with the layer
    apart_ms: Mapping[str, float]  # of joined layers, each as a call of its own
    moved: Mapping[str, int]  # bytes in and out of a call
    shapes: Mapping[str, tuple[int, ...]]  # of a call's input

    def speed_of(self, group: Group, chain: SparseChain | None) -> GroupSpeed:
        """Return how fast a group of layers is, which became this chain if it runs sparse."""
        own_ms = self.compiled_ms.get(group.layers[0], group.dense_ms if chain is None else group.sparse_ms)
        sparse_ms = own_ms if chain is not None else None if math.isnan(group.sparse_ms) else group.sparse_ms
        layers = tuple(self._layer_speed(name, group, sparse_ms) for name in group.layers)
        return GroupSpeed(
            layers, _way(group, chain), sparse_ms, own_ms, None if chain is None else self._limit(group, chain)
        )

    def _layer_speed(self, name: str, group: Group, sparse_ms: float | None) -> LayerSpeed:
        is_alone = len(group.layers) == 1
        shape, kept = self.weights[name]
        # A layer that the dense network computes together with others, as torch does in a transformer, is not called
        # by itself there: then the time counts that was measured when the plan was made.
        dense_ms = self.dense_ms.get(name, group.dense_ms if is_alone else 0.0)
        return LayerSpeed(name, math.prod(shape), kept, dense_ms, sparse_ms if is_alone else self.apart_ms.get(name))

    def _limit(self, group: Group, chain: SparseChain) -> Limit:
        first = group.layers[0]
        moved = read_bytes(chain) + self.moved.get(first, 0)
        flops = 2 * self.batch * sum(multiplications(chain, self.shapes.get(first)))
        return self.here.limit(moved, flops, max(self.working_set, moved))


def _way(group: Group, chain: SparseChain | None) -> str | None:
    """Return how a group runs, in a word or two."""
    if group.kernel is None or chain is None:
        return None
    return "depthwise" if all(layer.is_depthwise for layer in chain.layers()) else group.kernel.name


def _require_same_answer(fast: nn.Module, model: nn.Module, x: Tensor) -> None:
    with torch.inference_mode():
        expected, answer = model(x), fast(x)
    if not isinstance(expected, Tensor):
        raise TypeError(f"the model must return one tensor, got {type(expected).__name__}")
    require_same_answer(answer, expected)


def _counted(model: nn.Module, plan: Plan) -> dict[str, tuple[tuple[int, ...], int]]:
    """Return the shape of each layer's weight and its non-zeros: as given, if it is a module, else as compiled."""
    given = {
        name: module.get_parameter("weight")
        for name, module in _modules(model, list(plan.weights)).items()
        if "weight" in module._parameters
    }
    return {**plan.weights, **{name: (weight.shape, int(weight.count_nonzero())) for name, weight in given.items()}}


def _modules(model: nn.Module, names: Sequence[str]) -> dict[str, nn.Module]:
    """Return the modules of some layers; a product that a forward pass computes by itself has none."""
    if is_plain_layer(model):
        return dict.fromkeys(names, model)
    modules = dict(model.named_modules())
    return {name: modules[name] for name in names if name in modules and f"{name}@2" not in names}
