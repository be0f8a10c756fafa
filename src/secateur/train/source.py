"""Where the batches of training come from; an epoch that is repeated brings the same ones in the same order."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import chain, islice
from typing import Protocol, TypeAlias, runtime_checkable

import torch
from torch import Tensor

from secateur.train.recipe import Recipe
from secateur.train.task import Batch, samples_in

Part: TypeAlias = tuple[float, Batch]  # a part of a step's samples, and what its mean loss counts


class Samples(Protocol):
    """Samples by their numbers: the loop draws their order."""

    def __len__(self) -> int:
        """Return the number of samples in an epoch."""
        ...

    def batch(self, indices: Tensor, generator: torch.Generator) -> Batch:
        """Return the samples at `indices`, all randomness from the generator."""
        ...


@runtime_checkable
class ReadsAhead(Protocol):
    """Samples that are told which batches they will be asked for, so that they are read while the network trains."""

    def read_ahead(self, batches: Sequence[Tensor], seed: int) -> None:
        """Begin to read the batches of an epoch; the seed is the same in all processes that train together."""
        ...


@runtime_checkable
class Batches(Protocol):
    """Batches that are put together elsewhere, such as by a data loader of the user."""

    def __len__(self) -> int:
        """Return the number of samples in an epoch."""
        ...

    @property
    def number(self) -> int:
        """The number of batches in an epoch."""
        ...

    def epoch(self, seed: int) -> Iterator[Batch]:
        """Yield the batches of an epoch; the same seed gives the same ones."""
        ...


Source: TypeAlias = Samples | Batches


def steps_of(source: Source, recipe: Recipe) -> int:
    """Return the number of optimizer steps in an epoch."""
    if isinstance(source, Batches):
        return math.ceil(source.number / recipe.accumulate)
    return math.ceil(len(source) / recipe.batch_size)


def some_batches(source: Source, samples: int, batch_size: int, seed: int) -> Iterator[Batch]:
    """Yield batches of about so many samples, always the same for a seed; the global generator is left as it is."""
    with torch.random.fork_rng(devices=[]):  # inputs may be dropped by it
        torch.manual_seed(seed)
        if isinstance(source, Batches):
            left = samples
            for batch in source.epoch(seed):
                yield batch
                left -= samples_in(batch)
                if left <= 0:
                    return
            return
        generator = torch.Generator().manual_seed(seed)
        for indices in torch.randperm(len(source), generator=generator)[:samples].split(batch_size):
            yield source.batch(indices, generator)


def steps_in(
    source: Source,
    recipe: Recipe,
    *,
    order: torch.Generator,
    generator: torch.Generator,
    process: int = 0,
    processes: int = 1,
    first: int = 0,
) -> Iterator[Iterator[Part]]:
    """Return, for each step of an epoch from `first` on, the parts of its samples that one of several processes takes.

    Gradients are averaged over processes, so what the parts of a step count has a sum of 1 on average over them.
    Batches that are put together elsewhere are drawn before, and dropped, if they come before `first`.
    """
    if isinstance(source, Batches):
        groups = _groups(source, recipe.accumulate, order.initial_seed())
        for _ in range(first):
            next(groups, None)
        return groups
    indices = torch.randperm(len(source), generator=order).split(recipe.batch_size)[first:]
    return _shares(source, indices, recipe.accumulate, generator, order.initial_seed(), process, processes)


def _shares(
    source: Samples,
    steps: Sequence[Tensor],
    accumulate: int,
    generator: torch.Generator,
    seed: int,
    process: int,
    processes: int,
) -> Iterator[Iterator[Part]]:
    """Yield the share of one process in each step, read when its turn comes."""

    def parts(indices: Tensor) -> Iterator[tuple[float, Tensor]]:
        for part in indices[process::processes].tensor_split(accumulate):
            # A process without samples takes part with one that counts nothing.
            yield len(part) * processes / len(indices), part if len(part) else indices[:1]

    if isinstance(source, ReadsAhead):
        source.read_ahead([part for indices in steps for _, part in parts(indices)], seed)
    for indices in steps:
        yield ((count, source.batch(part, generator)) for count, part in parts(indices))


def _groups(source: Batches, size: int, seed: int) -> Iterator[Iterator[Part]]:
    """Yield the batches of an epoch in groups, each of which makes a step; samples count alike."""
    batches = source.epoch(seed)
    for first in batches:
        if size == 1:
            yield iter([(1.0, first)])
            continue
        group = list(chain([first], islice(batches, size - 1)))
        samples = [samples_in(batch) for batch in group]
        yield ((number / sum(samples), batch) for number, batch in zip(samples, group, strict=True))
