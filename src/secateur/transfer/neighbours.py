"""Where two networks disagree: test pictures or queries that one of them gets right, and what each finds nearest."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path

import numpy as np

from secateur.data.features import FeatureType
from secateur.transfer.features import FeatureNetwork, extract_by_folder, normalized
from secateur.transfer.probing import groups_of, probe
from secateur.transfer.task import Attributes, Classification, Picture, Retrieval, TransferTask

NEAREST = 5
_SAME = 1e-9  # scores that differ by less are equal


@dataclass(frozen=True)
class Neighbour:
    """A picture that a network finds near another one; `is_right` if both show the same."""

    picture: Picture
    is_right: bool


@dataclass(frozen=True)
class Shown:
    """A query with its score under two networks, and what each finds nearest."""

    query: Picture
    label: str
    scores: tuple[float, float]
    nearest: tuple[tuple[Neighbour, ...], tuple[Neighbour, ...]]


@dataclass(frozen=True, kw_only=True)
class Disagreement:
    """How many test pictures or queries of a task score higher under the first of two networks, or under the second.

    The examples are those with the greatest differences, in either direction by turns.
    """

    task: str
    networks: tuple[str, str]
    items: int
    first: int
    second: int
    examples: tuple[Shown, ...]


def disagreement(
    networks: tuple[FeatureNetwork, FeatureNetwork],
    name: str,
    task: TransferTask,
    cache: Path,
    *,
    examples: int = 4,
    dtype: FeatureType = "float32",
    seed: int = 0,
) -> Disagreement | None:
    """Return where two networks disagree, from features and answers in `cache`; None for attributes.

    Neighbours of a test picture are training pictures; those of a query are the pictures that are searched, without
    those that its score ignores.
    """
    if isinstance(task, Attributes):
        return None
    before, after = (
        probe(network, task, cache, dtype=dtype, seed=seed)[0].items.astype(np.float64) for network in networks
    )
    change = after - before
    order = np.argsort(change, kind="stable").tolist()
    losses = [index for index in order if change[index] < -_SAME]
    gains = [index for index in reversed(order) if change[index] > _SAME]
    by_turns = [index for pair in zip_longest(losses, gains) for index in pair if index is not None]
    chosen = (by_turns or order)[:examples]
    nearest = [_nearest(network, task, cache, dtype, chosen) for network in networks]
    return Disagreement(
        task=name,
        networks=(networks[0].name, networks[1].name),
        items=len(change),
        first=len(losses),
        second=len(gains),
        examples=tuple(
            Shown(*_described(task, index), (float(before[index]), float(after[index])), (first, second))
            for index, first, second in zip(chosen, *nearest, strict=True)
        ),
    )


def _described(task: Classification | Retrieval, index: int) -> tuple[Picture, str]:
    if isinstance(task, Classification):
        return task.test[index], task.classes[int(task.test_labels[index])]
    return task.queries[index].picture, ""


def _nearest(
    network: FeatureNetwork,
    task: Classification | Retrieval,
    cache: Path,
    dtype: FeatureType,
    chosen: Sequence[int],
) -> list[tuple[Neighbour, ...]]:
    features = [normalized(extract_by_folder(network, group, cache, dtype=dtype)) for group in groups_of(task)]
    found = []
    if isinstance(task, Classification):
        train, test = features
        for index in chosen:
            ranking = np.argsort(-(train @ test[index]), kind="stable")[:NEAREST].tolist()
            label = task.test_labels[index]
            found.append(tuple(Neighbour(task.train[row], bool(task.train_labels[row] == label)) for row in ranking))
        return found
    row_of = {picture: row for row, picture in enumerate(groups_of(task)[0])}
    searched = features[0][[row_of[picture] for picture in task.pictures]]
    for query in (task.queries[index] for index in chosen):
        ranking = np.argsort(-(searched @ features[0][row_of[query.picture]]), kind="stable").tolist()
        near = [row for row in ranking if row not in query.ignored][:NEAREST]
        found.append(tuple(Neighbour(task.pictures[row], row in query.relevant) for row in near))
    return found
