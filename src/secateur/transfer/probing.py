"""What the features of one network are worth on a task, by every probe; answers are kept in files."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TypeAlias

import numpy as np

from secateur.data.features import FeatureType
from secateur.transfer.features import FeatureNetwork, Progress, digest_of, extract_all, extract_by_folder, normalized
from secateur.transfer.fine_tuning import FineTuneConfig, fine_tune
from secateur.transfer.metrics import Numbers, accuracy
from secateur.transfer.outcome import Probe
from secateur.transfer.probes import (
    SCORES,
    classify_by_neighbours,
    classify_by_svm,
    recognise_by_neighbours,
    recognise_by_svm,
    score_queries,
)
from secateur.transfer.remembered import Arrays, remembered, remembered_path
from secateur.transfer.statistics import mean_score
from secateur.transfer.task import Attributes, Classification, Picture, Retrieval, TransferTask

# To be raised when a probe changes: kept answers are then computed again.
_PROTOCOL, _FINE_TUNING = 2, 1


@dataclass(frozen=True, eq=False)
class Found:
    """A score, and what it consists of: right or wrong for each picture, decisions, or a score for each query."""

    probe: Probe
    score: float
    items: Numbers
    penalties: tuple[float, ...] = ()
    lr: float | None = None  # of fine-tuning


def probe(
    network: FeatureNetwork,
    task: TransferTask,
    cache: Path,
    *,
    dtype: FeatureType = "float32",
    seed: int = 0,
) -> tuple[Found, ...]:
    """Return what every probe finds: that of the paper, and the nearest neighbours except for retrieval."""
    kinds: tuple[Probe, ...] = ("distance",) if isinstance(task, Retrieval) else ("svm", "neighbours")
    arrays = remembered(cache, _key(network, task, dtype, seed), partial(_probe, network, task, cache, dtype, seed))
    return tuple(
        Found(kind, float(arrays[f"{kind} score"]), arrays[kind], tuple(arrays[f"{kind} penalties"].tolist()))
        for kind in kinds
    )


def probe_by_fine_tuning(
    network: FeatureNetwork,
    task: Classification | Attributes,
    cache: Path,
    config: FineTuneConfig,
    *,
    seed: int = 0,
    progress: Progress = lambda done, total: None,
) -> Found:
    """Return what the whole network finds once it is fine-tuned on the task with its zeros kept."""
    key = ["fine-tuned", _FINE_TUNING, config.as_key(), *_key(network, task, "float32", seed)]
    folder = remembered_path(cache, key).with_suffix(".fine-tuning")

    def make() -> Arrays:
        found = fine_tune(network, task, config, folder, seed=seed, progress=progress)
        return {"items": found.items, "score": np.array(found.score), "lr": np.array(found.lr)}

    arrays = remembered(cache, key, make)
    return Found("fine-tuned", float(arrays["score"]), arrays["items"], lr=float(arrays["lr"]))


def extract_for(
    networks: Sequence[FeatureNetwork],
    task: TransferTask,
    cache: Path,
    *,
    dtype: FeatureType = "float32",
    seed: int = 0,
    progress: Progress = lambda done, total: None,
) -> None:
    """Write the features that probes need, of all networks at once; those whose answers are kept need none."""
    new = [each for each in networks if not remembered_path(cache, _key(each, task, dtype, seed)).exists()]
    total = sum(map(len, groups_of(task))) * len(networks)
    done = total // len(networks) * (len(networks) - len(new))
    for pictures in groups_of(task):

        def step(part: int, _: int, before: int = done) -> None:
            progress(before + part, total)

        extract_all(new, pictures, cache, dtype=dtype, progress=step)
        done += len(pictures) * len(new)
    progress(total, total)


def _key(network: FeatureNetwork, task: TransferTask, dtype: FeatureType, seed: int) -> list[object]:
    digests = (digest_of(network, pictures, dtype) for pictures in groups_of(task))
    return ["probes", _PROTOCOL, _labels_digest(task), seed, *digests]


_Groups: TypeAlias = tuple[tuple[Picture, ...], ...]


def groups_of(task: TransferTask) -> _Groups:
    """Return the pictures to learn from and those to test; of retrieval, all that are searched or looked for."""
    if isinstance(task, Retrieval):
        queries = (query.picture for query in task.queries)
        return (tuple(dict.fromkeys([*task.pictures, *queries])),)
    return task.train, task.test


def _probe(network: FeatureNetwork, task: TransferTask, cache: Path, dtype: FeatureType, seed: int) -> Arrays:
    features = [normalized(extract_by_folder(network, pictures, cache, dtype=dtype)) for pictures in groups_of(task)]
    if isinstance(task, Retrieval):
        return _search(task, features[0])
    train, test = features
    if isinstance(task, Classification):
        return _classify(task, train, test, seed)
    return _recognise(task, train, test, seed)


def _classify(task: Classification, train: Numbers, test: Numbers, seed: int) -> Arrays:
    learned = classify_by_svm(train, task.train_labels, test, seed=seed)
    near = classify_by_neighbours(train, task.train_labels, test)
    assert learned.penalty is not None
    labels = task.test_labels
    svm = _arrays("svm", accuracy(labels, learned.classes), learned.classes == labels, (learned.penalty,))
    return svm | _arrays("neighbours", accuracy(labels, near.classes), near.classes == labels)


def _recognise(task: Attributes, train: Numbers, test: Numbers, seed: int) -> Arrays:
    rule, labels = SCORES[task.score], task.test_labels
    learned = recognise_by_svm(train, task.train_labels, test, task.score, seed=seed)
    near = recognise_by_neighbours(train, task.train_labels, test)
    means = [float(mean_score(labels, each.scores, rule)) for each in (learned, near)]
    return _arrays("svm", means[0], learned.scores, learned.penalties) | _arrays("neighbours", means[1], near.scores)


def _search(task: Retrieval, features: Numbers) -> Arrays:
    row_of = {picture: row for row, picture in enumerate(groups_of(task)[0])}
    searched = features[[row_of[picture] for picture in task.pictures]]
    queries = features[[row_of[query.picture] for query in task.queries]]
    scores = score_queries(searched, task.queries, queries, task.score)
    return _arrays("distance", float(scores.mean()), scores)


def _arrays(kind: Probe, score: float, items: Numbers, penalties: tuple[float, ...] = ()) -> dict[str, Numbers]:
    return {kind: items, f"{kind} score": np.array(score), f"{kind} penalties": np.array(penalties, np.float64)}


def _labels_digest(task: TransferTask) -> str:
    """Return a name for what is asked of the pictures."""
    found = hashlib.sha256(type(task).__name__.encode())
    if isinstance(task, Retrieval):
        found.update(repr([task.score, len(task.pictures)]).encode())
        for query in task.queries:
            found.update(repr([query.picture, sorted(query.relevant), sorted(query.ignored)]).encode())
    else:
        for labels in (task.train_labels, task.test_labels):
            found.update(np.ascontiguousarray(labels, np.int64).tobytes())
        found.update(task.score.encode() if isinstance(task, Attributes) else b"")
    return found.hexdigest()
