"""Which layers run sparse, and which run together as one call: decided by timing them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence

import torch
from torch import Tensor

from secateur.run import timing
from secateur.run.assembly import chain_of
from secateur.run.fusion import FusedLayer
from secateur.run.kernels import bindings
from secateur.run.kernels.kernel import Kernel
from secateur.run.kernels.tiling import aligns
from secateur.run.plan import Group
from secateur.run.sparse_chain import SparseChain
from secateur.run.sparse_layer import SparseLayer

WIN = 1.1  # how many times faster a sparse layer must be to replace a dense one
DENSEST = 0.7  # denser layers are not tried
_STEM_CHANNELS = 4  # but for convolutions of so few, to which oneDNN takes up to twice as long as our kernels
# Longer sequences of layers gain nothing from being one call: with one sample it saves the calls, with several also
# copying samples to panels and back.
_FUSED_MS, _FUSED_MS_OF_BATCH = 1.0, 20.0
# For each image, since a call takes one after the other through all of its layers: what depthwise convolutions read and
# write is large for the work on it, and stays in the cache between the layers of a call.
_FUSED_MS_OF_DEPTHWISE = 5.0


def choose(sequence: Sequence[FusedLayer], shared: bool) -> list[Group]:
    """Decide about layers in a row: which run sparse, and whether they run as one."""
    single = [_time_chain([fused], shared) for fused in sequence]
    groups = _join([(fused, group) for fused, group in zip(sequence, single, strict=True)], shared)
    dense_ms = sum(group.dense_ms for group in single)
    if len(sequence) < 2 or dense_ms > _longest_fused_ms(sequence):
        return groups
    # All of them as one, those included that lost by themselves: small ones cost less than the call they save.
    whole = _time_chain(sequence, shared)
    apart = sum(group.sparse_ms if group.kernel else group.dense_ms for group in groups)
    if whole.kernel is not None and whole.sparse_ms < min(apart, whole.dense_ms / WIN):
        return [whole]
    return groups


def _join(decided: Sequence[tuple[FusedLayer, Group]], shared: bool) -> list[Group]:
    """Join neighbours that run sparse, where one call is faster than several."""
    groups: list[Group] = []
    rest = list(decided)
    while rest:
        length = next((k for k, (_, group) in enumerate(rest) if group.kernel is None), len(rest))
        winners, rest = rest[: max(length, 1)], rest[max(length, 1) :]
        apart = [group for _, group in winners]
        sequence = [fused for fused, _ in winners]
        if len(winners) > 1 and sum(group.dense_ms for group in apart) <= _longest_fused_ms(sequence):
            joined = _time_chain(sequence, shared)
            if joined.kernel is not None and joined.sparse_ms < sum(group.sparse_ms for group in apart):
                apart = [joined]
        groups += apart
    return groups


def _longest_fused_ms(sequence: Sequence[FusedLayer]) -> float:
    batch = sequence[0].source.meta["shape"][0]
    longest = _FUSED_MS if batch == 1 else _FUSED_MS_OF_BATCH
    is_depthwise = any(fused.layer.is_depthwise for fused in sequence)
    return max(longest, _FUSED_MS_OF_DEPTHWISE * batch) if is_depthwise else longest


def _candidates(batch: int, shared: bool, convolves: bool, may_align: bool) -> list[Kernel]:
    alignments = (False, True) if may_align else (False,)
    ways = [Kernel(0, spread, shared, aligned) for aligned in alignments for spread in ((1, 2) if convolves else (1,))]
    if batch > 1:
        lanes = bindings.lanes()
        ways += [Kernel(v, 1, shared) for v in (1, 2, 4, 8) if v == 1 or v * lanes < 2 * batch]
    return ways


def _time_chain(sequence: Sequence[FusedLayer], shared: bool) -> Group:
    """Time layers in a row, densely and as one sparse call in the ways that promise something."""
    first, last = sequence[0], sequence[-1]
    x = torch.randn(first.source.meta["shape"])
    residual = torch.randn(last.residual.meta["shape"]) if last.residual is not None else None
    names = tuple(fused.name for fused in sequence)

    def dense() -> Tensor:
        y = x
        for fused in sequence:
            y = fused.dense(y, residual if fused is last else None)
        return y

    if _is_too_dense(fused.layer for fused in sequence):
        return Group(names, None, timing.race([dense])[0], math.nan)
    convolves = any(fused.layer.window is not None and not fused.layer.is_depthwise for fused in sequence)
    batch = math.prod(x.shape[:-1]) if first.layer.window is None and not first.flattens else x.shape[0]
    lanes = bindings.lanes()
    may_align = any(
        aligns(fused.layer, fused.source.meta["shape"], lanes) for fused in sequence if not fused.layer.is_depthwise
    )
    ways = _candidates(batch, shared, convolves, may_align)
    chains = [chain_of(sequence, kernel) for kernel in ways]
    calls: list[Callable[[], object]] = [dense, *(_call(chain, x, residual) for chain in chains)]
    times = timing.race(calls)
    best = min(range(len(ways)), key=lambda k: times[k + 1])
    wins = times[0] >= WIN * times[best + 1]
    return Group(names, ways[best] if wins else None, times[0], times[best + 1])


def _call(chain: SparseChain, x: Tensor, residual: Tensor | None) -> Callable[[], Tensor]:
    return (lambda: chain(x)) if residual is None else (lambda: chain(x, residual))


def _is_too_dense(layers: Iterable[SparseLayer]) -> bool:
    """Return whether kernels that skip zeros have too few to skip, and are not the faster ones without any."""
    weights = [layer.weight for layer in layers if not (layer.is_depthwise or _is_stem(layer))]
    return sum(one.count for one in weights) > DENSEST * sum(math.prod(one.shape) for one in weights)


def _is_stem(layer: SparseLayer) -> bool:
    return layer.window is not None and layer.inputs <= _STEM_CHANNELS
