"""Where two networks disagree, and what each finds nearest.

Items are the test pictures of classes, the queries of retrieval, or attributes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from pathlib import Path
from typing import Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from secateur.data.features import FeatureType
from secateur.transfer.features import FeatureNetwork, extract_by_folder, normalized
from secateur.transfer.metrics import Numbers
from secateur.transfer.probes import SCORES
from secateur.transfer.probing import groups_of, probe
from secateur.transfer.statistics import mean_score
from secateur.transfer.task import Attributes, Classification, Picture, Retrieval, TransferTask

Kind: TypeAlias = Literal["test pictures", "attributes", "queries"]

NEAREST = 5
_KINDS: dict[type, Kind] = {Classification: "test pictures", Attributes: "attributes", Retrieval: "queries"}
_MEASURES = {"ap11": "AP (11 points)", "ap": "AP", "auc": "AUC", "recall@4": "Recall@4"}  # of one item
_SAME = 1e-9  # scores that differ by less are equal


@dataclass(frozen=True)
class Neighbour:
    """A picture that a network finds near another one, or ranks high for an attribute; `is_right` if it should be."""

    picture: Picture
    is_right: bool


@dataclass(frozen=True)
class Shown:
    """A test picture, a query or an attribute (no picture): its score under two networks, and what each finds first."""

    query: Picture | None
    label: str
    scores: tuple[float, float]
    nearest: tuple[tuple[Neighbour, ...], tuple[Neighbour, ...]]


@dataclass(frozen=True, kw_only=True)
class Disagreement:
    """How many items of a task score higher under the first of two networks, or under the second.

    The examples are those with the greatest differences, in either direction by turns. `measure` is what the score of
    an item is; empty for classes, where it is 1 if the answer is right and 0 otherwise. `by_attribute` are the scores
    of every attribute under both networks.
    """

    task: str
    networks: tuple[str, str]
    kind: Kind
    measure: str
    items: int
    first: int
    second: int
    examples: tuple[Shown, ...]
    by_attribute: Mapping[str, tuple[float, float]] = field(default_factory=dict)


def disagreement(
    networks: tuple[FeatureNetwork, FeatureNetwork],
    name: str,
    task: TransferTask,
    cache: Path,
    *,
    examples: int = 4,
    dtype: FeatureType = "float32",
    seed: int = 0,
) -> Disagreement:
    """Return where two networks disagree, from features and answers in `cache`.

    Neighbours of a test picture are training pictures; those of a query are the pictures that are searched, without
    those that its score ignores; those of an attribute are the test pictures that its SVM ranks highest.
    """
    answers = [probe(network, task, cache, dtype=dtype, seed=seed)[0].items for network in networks]
    before, after = (_score_by_item(task, each) for each in answers)
    change = after - before  # NaN for an attribute that no test picture has
    order = [index for index in np.argsort(change, kind="stable").tolist() if not np.isnan(change[index])]
    losses = [index for index in order if change[index] < -_SAME]
    gains = [index for index in reversed(order) if change[index] > _SAME]
    by_turns = [index for pair in zip_longest(losses, gains) for index in pair if index is not None]
    chosen = (by_turns or order)[:examples]
    if isinstance(task, Attributes):
        nearest = [_highest(task, each, chosen) for each in answers]
    else:
        nearest = [_nearest(network, task, cache, dtype, chosen) for network in networks]
    return Disagreement(
        task=name,
        networks=(networks[0].name, networks[1].name),
        kind=_KINDS[type(task)],
        measure="" if isinstance(task, Classification) else _MEASURES[task.score],
        items=len(order),
        first=len(losses),
        second=len(gains),
        examples=tuple(
            Shown(*_described(task, index), (float(before[index]), float(after[index])), (first, second))
            for index, first, second in zip(chosen, *nearest, strict=True)
        ),
        by_attribute={task.attributes[index]: (float(before[index]), float(after[index])) for index in order}
        if isinstance(task, Attributes)
        else {},
    )


def _score_by_item(task: TransferTask, answers: Numbers) -> npt.NDArray[np.float64]:
    """Return the score of each item; the answers to attributes are decisions (test pictures, attributes)."""
    if not isinstance(task, Attributes):
        return answers.astype(np.float64)
    columns = ((task.test_labels[:, [index]], answers[:, [index]]) for index in range(len(task.attributes)))
    return np.array([float(mean_score(labels, scores, SCORES[task.score])) for labels, scores in columns])


def _highest(task: Attributes, answers: Numbers, chosen: Sequence[int]) -> list[tuple[Neighbour, ...]]:
    """Return the test pictures with the highest decisions for attributes, without those whose label is not known."""
    found = []
    for attribute in chosen:
        labels = task.test_labels[:, attribute]
        ranking = np.argsort(-answers[:, attribute], kind="stable").tolist()
        best = [row for row in ranking if labels[row] != 0][:NEAREST]
        found.append(tuple(Neighbour(task.test[row], bool(labels[row] > 0)) for row in best))
    return found


def _described(task: TransferTask, index: int) -> tuple[Picture | None, str]:
    if isinstance(task, Attributes):
        return None, task.attributes[index]
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
