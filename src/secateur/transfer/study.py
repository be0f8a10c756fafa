"""Compare the features of several networks on tasks: scores, differences with their intervals, and similarity."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import NamedTuple, TypeAlias

import numpy as np
import torch

from secateur.data import DataError
from secateur.data.features import FeatureType
from secateur.data.pictures import printable
from secateur.measure.counts import count
from secateur.transfer.features import FeatureNetwork, digest_of
from secateur.transfer.fine_tuning import FineTuneConfig
from secateur.transfer.metrics import Numbers
from secateur.transfer.outcome import Difference, Pair, ProbeResult, StudiedNetwork, TaskResult, TransferStudy
from secateur.transfer.probes import SCORES
from secateur.transfer.probing import Found, extract_for, groups_of, probe, probe_by_fine_tuning
from secateur.transfer.remembered import remembered
from secateur.transfer.similarity import Kernels, compare_layers, kernels_of, sample_of
from secateur.transfer.statistics import (
    Interval,
    Seed,
    bootstrap_attributes,
    bootstrap_mean,
    mcnemar,
    mean_interval,
    sign_flip_test,
    swap_test,
)
from secateur.transfer.task import Attributes, Classification, Picture, Retrieval, TransferTask

StudyProgress: TypeAlias = Callable[[str, int, int], None]  # the task, and how many of its pictures are done
_MEASURES = {"ap11": "mAP (11 points)", "ap": "mAP", "auc": "mAUC", "recall@4": "Recall@4"}


def study(
    networks: Sequence[FeatureNetwork],
    tasks: Mapping[str, TransferTask],
    *,
    cache: Path,
    pairs: Sequence[Pair] = (),
    dtype: FeatureType = "float32",
    fine_tune: FineTuneConfig | None = None,
    seed: int = 0,
    progress: StudyProgress = lambda task, done, total: None,
) -> Iterator[TransferStudy]:
    """Yield what is known after each task: the scores of all networks, and their differences with intervals.

    The first network is the dense one; all others are compared with it, and the networks named in `pairs` with each
    other. Features are normalised to length 1, and may be of different sizes. They are kept in `cache`, as are the
    answers of every probe: the same study continues where it was interrupted, and another one of the same networks
    computes what is new. With `fine_tune`, whole networks are fine-tuned on classes and attributes too, with their
    zeros kept. The seed is that of cross-validation, of fine-tuning and of all resampling.
    """
    wanted = pairs_of([network.name for network in networks], pairs)
    for name, task in tasks.items():
        _require_test_pictures(name, task)
    found = TransferStudy(networks=tuple(map(_describe, networks)), threads=torch.get_num_threads())
    intervals: dict[Pair, list[Interval]] = {pair: [] for pair in wanted}
    for name, task in tasks.items():
        result, new = _evaluate(networks, name, task, wanted, cache, dtype, fine_tune, seed, progress)
        for pair in wanted:
            intervals[pair].append(new[pair])
        means = tuple(_mean(pair, intervals[pair]) for pair in wanted)
        found = replace(found, tasks=(*found.tasks, result), means=means)
        yield found


def pairs_of(names: Sequence[str], pairs: Sequence[Pair]) -> tuple[Pair, ...]:
    """Return all pairs to compare: every network with the first one, and those asked for."""
    if len(names) < 2 or len({*names}) != len(names):
        raise ValueError(f"a study needs two networks or more, with different names, got {', '.join(names)}")
    for name in (name for pair in pairs for name in pair):
        if name not in names:
            raise ValueError(f'there is no network "{name}" to compare: the networks are {", ".join(names)}')
    for first, second in pairs:
        if first == second:
            raise ValueError(f"{first} cannot be compared with itself: name two networks")
    return tuple(dict.fromkeys([*((name, names[0]) for name in names[1:]), *pairs]))


def measure_of(task: TransferTask) -> str:
    """Name what a task is scored by."""
    return "accuracy" if isinstance(task, Classification) else _MEASURES[task.score]


class _Tested(NamedTuple):
    """A task's result, and the intervals of its main probe."""

    result: TaskResult
    intervals: Mapping[Pair, Interval]


def _evaluate(
    networks: Sequence[FeatureNetwork],
    name: str,
    task: TransferTask,
    pairs: Sequence[Pair],
    cache: Path,
    dtype: FeatureType,
    fine_tune: FineTuneConfig | None,
    seed: int,
    progress: StudyProgress,
) -> _Tested:
    started = time.perf_counter()
    extract_for(networks, task, cache, dtype=dtype, seed=seed, progress=partial(progress, name))
    answers: dict[str, tuple[Found, ...]] = {}
    kernels: dict[str, Kernels] = {}
    sample = sample_of(groups_of(task)[-1])
    for network in networks:
        answers[network.name] = probe(network, task, cache, dtype=dtype, seed=seed)
        if fine_tune is not None and not isinstance(task, Retrieval):
            tuned = partial(progress, f"{name}, {network.name} fine-tuned")
            found = probe_by_fine_tuning(network, task, cache, fine_tune, seed=seed, progress=tuned)
            answers[network.name] += (found,)
        key = ["kernels", digest_of(network, sample, dtype)]
        kernels[network.name] = remembered(cache, key, partial(kernels_of, network, sample))
    probes, intervals = [], {}
    drawn = _resampling_seed(task, seed)
    for index, first in enumerate(answers[networks[0].name]):
        by_name = {network: found[index] for network, found in answers.items()}
        compared = {pair: _statistics(task, by_name[pair[1]].items, by_name[pair[0]].items, drawn) for pair in pairs}
        if index == 0:
            intervals = {pair: interval for pair, (interval, _) in compared.items()}
        probes.append(
            ProbeResult(
                probe=first.probe,
                scores={network: found.score for network, found in by_name.items()},
                differences=tuple(_difference(pair, *compared[pair]) for pair in pairs),
                penalties={network: found.penalties for network, found in by_name.items() if found.penalties},
                lr={network: found.lr for network, found in by_name.items() if found.lr is not None},
            )
        )
    dense = kernels[networks[0].name]
    result = TaskResult(
        task=name,
        measure=measure_of(task),
        items=len(_test_pictures(task)),
        probes=tuple(probes),
        similarity={network.name: compare_layers(dense, kernels[network.name]) for network in networks[1:]},
        seconds=time.perf_counter() - started,
    )
    return _Tested(result, intervals)


def _describe(network: FeatureNetwork) -> StudiedNetwork:
    counted = count(network.model).prunable
    return StudiedNetwork(
        name=network.name,
        weights=counted.weights,
        kept=counted.kept,
        features=network.features,
        layer=network.layer or "",
    )


def _statistics(task: TransferTask, before: Numbers, after: Numbers, seed: Seed) -> tuple[Interval, float]:
    """Return the interval of the difference after − before, and the p-value of a paired test."""
    if isinstance(task, Classification):
        return bootstrap_mean(after.astype(np.float64) - before, seed=seed), mcnemar(before, after)
    if isinstance(task, Attributes):
        rule, labels = SCORES[task.score], task.test_labels
        interval = bootstrap_attributes(labels, before, after, rule, seed=seed)
        return interval, swap_test(labels, before, after, rule, seed=seed)
    return bootstrap_mean(after - before, seed=seed), sign_flip_test(after - before, seed=seed)


def _difference(pair: Pair, interval: Interval, p_value: float) -> Difference:
    return Difference(
        network=pair[0],
        against=pair[1],
        difference=interval.difference,
        low=interval.low,
        high=interval.high,
        p_value=p_value,
        sentence=interval.sentence,
    )


def _mean(pair: Pair, intervals: Sequence[Interval]) -> Difference:
    by_task = np.array([interval.difference for interval in intervals])
    return _difference(pair, mean_interval(intervals), sign_flip_test(by_task))


def _resampling_seed(task: TransferTask, seed: int) -> Seed:
    """Return a seed that tasks with the same test pictures share: these are then resampled alike."""
    names = "\n".join(printable(picture.path.name) for picture in _test_pictures(task))
    return seed, int.from_bytes(hashlib.sha256(names.encode()).digest()[:8], "big")


def _test_pictures(task: TransferTask) -> Sequence[Picture]:
    return [query.picture for query in task.queries] if isinstance(task, Retrieval) else task.test


def _require_test_pictures(name: str, task: TransferTask) -> None:
    if not _test_pictures(task):
        raise DataError(f"{name} has no test pictures")
