"""k-means on a line: with the values sorted, every cluster is a slice, so an iteration costs O(k log n), exactly.

Lloyd's two steps, on sorted values v with running sums S:

    boundaries   b_j = how many v lie below (c_j + c_{j+1}) / 2          (a tie goes to the upper centroid)
    centroids    c_j = (S[b_j] − S[b_{j−1}]) / (b_j − b_{j−1})

repeated until no boundary moves. The squared error falls with every round, so it ends. S runs outwards from zero, to
both sides: a sum of small values then never holds a large one, in whose rounding they would vanish.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

import torch
from torch import Tensor

Init: TypeAlias = Literal["linear", "density", "random"]

_MOST_ROUNDS = 100_000  # never met; rounding of the sums might in theory keep two assignments in turn


def cluster(values: Tensor, count: int, init: Init = "linear", *, seed: int = 0) -> Tensor:
    """Return `count` centroids of `values` in increasing order, in float64: a fixed point of Lloyd's iteration.

    Where there are no more than `count` distinct values they are the centroids, the last of them repeated. An empty
    cluster is moved to the value that is farthest from its centroid, so that otherwise no centroid is wasted.
    """
    ordered = values.detach().double().flatten().sort().values
    distinct = ordered.unique_consecutive()
    if len(distinct) <= count:
        return torch.cat([distinct, distinct[-1:].expand(count - len(distinct))])
    sums = _sums(ordered)
    centroids = _lloyd(ordered, sums, initial_centroids(ordered, count, init, seed=seed))
    errors = _errors(ordered, centroids)
    for _ in range(_MOST_ROUNDS):
        empty = _boundaries(ordered, centroids).diff() == 0
        if not empty.any():
            break
        seeded = centroids.clone()
        seeded[empty.nonzero()[0]] = ordered[errors.argmax()]
        seeded = _lloyd(ordered, sums, seeded.sort().values)
        left = _errors(ordered, seeded)
        if left.square().sum() >= errors.square().sum():  # only rounding does that, where values differ by hardly a bit
            break
        centroids, errors = seeded, left
    return centroids


def initial_centroids(ordered: Tensor, count: int, init: Init, *, seed: int = 0) -> Tensor:
    """Return Deep Compression's starts: even in value, even in probability, or values drawn at random."""
    if init == "linear":
        return torch.linspace(float(ordered[0]), float(ordered[-1]), count, dtype=ordered.dtype, device=ordered.device)
    if init == "density":
        ranks = (torch.arange(count, device=ordered.device) + 0.5) / count * len(ordered)
        return ordered[ranks.long()]
    drawn = torch.randperm(len(ordered), generator=torch.Generator().manual_seed(seed))[:count]
    return ordered[drawn.sort().values.to(ordered.device)]


def assign(values: Tensor, centroids: Tensor) -> Tensor:
    """Return for each value the index of the nearest of the ordered centroids."""
    return torch.bucketize(values.double().contiguous(), _midpoints(centroids), right=True)


def _midpoints(centroids: Tensor) -> Tensor:
    return (centroids[1:] + centroids[:-1]) / 2


def _boundaries(ordered: Tensor, centroids: Tensor) -> Tensor:
    """Return where each cluster's slice begins and, at last, where all of them end."""
    inner = torch.searchsorted(ordered, _midpoints(centroids))
    return torch.cat([inner.new_zeros(1), inner, inner.new_full((1,), len(ordered))])


def _errors(ordered: Tensor, centroids: Tensor) -> Tensor:
    return (ordered - centroids[assign(ordered, centroids)]).abs()


def _sums(ordered: Tensor) -> Tensor:
    """Return S, one longer than the values: S[b] − S[a] is the sum of ordered[a:b], and S is 0 where the sign turns."""
    turn = int((ordered < 0).sum())
    below = -ordered[:turn].flip(0).cumsum(0).flip(0)
    return torch.cat([below, ordered.new_zeros(1), ordered[turn:].cumsum(0)])


def _lloyd(ordered: Tensor, sums: Tensor, centroids: Tensor) -> Tensor:
    boundaries = _boundaries(ordered, centroids)
    for _ in range(_MOST_ROUNDS):
        sizes = boundaries.diff()
        means = sums[boundaries].diff() / sizes.clamp(min=1)
        # Rounding of the sums must not carry a mean out of its slice: the slice would be lost to a neighbour.
        first, last = boundaries[:-1].clamp(max=len(ordered) - 1), (boundaries[1:] - 1).clamp(min=0)
        means = means.clamp(ordered[first], ordered[last])
        centroids = torch.where(sizes > 0, means, centroids)
        moved = _boundaries(ordered, centroids)
        if torch.equal(moved, boundaries):
            break
        boundaries = moved
    return centroids
