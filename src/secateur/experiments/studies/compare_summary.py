"""What a comparison of methods has found: means with intervals over seeds, and which differences are significant.

A difference is paired twice: over seeds, whose runs start from the same weights and see the same images, and over test
images, whose answers are compared one by one. The first says whether another seed would show it too, the second
whether other images would.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from secateur import literature
from secateur.experiments.studies.compare import Comparison, Failure, read_setting_search
from secateur.literature import Published
from secateur.methods import METHODS
from secateur.results import PublishedRun, read, unpacked
from secateur.transfer.statistics import Mean, holm, student_mean

LEVEL = 0.05  # of significance, after the adjustment for the number of tests
_MET = 0.99  # a point that reaches less than this share of the ratio asked for has missed it
_NAME = re.compile(r"(?P<label>.+?)(?:-(?P<ratio>[\d.e+]+)x)?-seed(?P<seed>\d+)")


@dataclass(frozen=True, kw_only=True)
class Point:
    """A method at one operating point, over seeds; errors are on test images, in percent."""

    label: str
    asked: float | None  # the ratio that the method was given; None: it has a point of its own
    runs: Mapping[int, PublishedRun] = field(default_factory=dict)
    failures: Mapping[int, Failure] = field(default_factory=dict)
    search_steps: int = 0  # gradient steps of the published search for its settings

    @property
    def is_dense(self) -> bool:
        """Whether it is the reference that keeps all weights."""
        jobs = [*(run.result.job for run in self.runs.values()), *(each.job for each in self.failures.values())]
        return any(job.is_dense for job in jobs)

    @property
    def is_met(self) -> bool:
        """Whether every seed has the ratio that was asked for."""
        reached = [run.result.ratio for run in self.runs.values()]
        return self.asked is None or not reached or min(reached) >= _MET * self.asked

    @property
    def error(self) -> Mean:
        """The test error of the network in the file."""
        return student_mean(run.test_error() for run in self.runs.values())

    @property
    def kept(self) -> Mean:
        """The weights that are not zero."""
        return student_mean(run.result.kept for run in self.runs.values())

    @property
    def ratio(self) -> Mean:
        """All prunable weights ÷ those kept."""
        return student_mean(run.result.ratio for run in self.runs.values())

    @property
    def size_bytes(self) -> Mean:
        """The bytes of the whole file."""
        return student_mean(run.result.file.bytes if run.result.file else math.nan for run in self.runs.values())

    @property
    def fewer_products(self) -> Mean:
        """Multiply-accumulates with all weights ÷ with those kept: the speed-up in theory."""
        works = [run.work for run in self.runs.values() if run.work is not None and run.work.sparse_macs]
        return student_mean(work.macs / work.sparse_macs for work in works)

    @property
    def steps(self) -> int:
        """The gradient steps of a run."""
        return max((run.result.steps for run in self.runs.values()), default=0)

    @property
    def seconds(self) -> Mean:
        """What training took, on one thread."""
        return student_mean(run.result.seconds for run in self.runs.values())


@dataclass(frozen=True, kw_only=True)
class Difference:
    """Test error of one point less that of another, in points of percent: paired over seeds, and over images."""

    seeds: Mean
    images: Mean


@dataclass(frozen=True, kw_only=True)
class Ranked:
    """A point next to the dense network and to the best point of the same ratio."""

    point: Point
    to_dense: Difference
    is_best: bool = False  # of its ratio
    to_best: Difference | None = None  # None: it is the best one, or there is none
    is_worse: bool | None = None  # significantly, than the best; None: not tested


@dataclass(frozen=True, kw_only=True)
class NextToPublished:
    """A published result, and our point of the same method that is nearest in size."""

    published: Published
    ours: Point
    dense_error: float


def read_points(comparison: Comparison, results: Path) -> list[Point]:
    """Return every point that has published runs or failures: the dense network first, then by method and ratio."""
    runs: dict[tuple[str, float], dict[int, PublishedRun]] = {}
    failures: dict[tuple[str, float], dict[int, Failure]] = {}
    folder = comparison.folder(results)
    for path in sorted(folder.glob("*.json")):
        place, seed = _parsed(path)
        runs.setdefault(place, {})[seed] = read(PublishedRun, path)
    for path in sorted((folder / "failed").glob("*.json")):
        place, seed = _parsed(path)
        failures.setdefault(place, {})[seed] = read(Failure, path)
    points = [
        Point(
            label=label,
            asked=ratio or None,
            runs=runs.get((label, ratio), {}),
            failures=failures.get((label, ratio), {}),
            search_steps=_search_steps(results, comparison.network, label),
        )
        for label, ratio in sorted(runs.keys() | failures.keys())
    ]
    return sorted(points, key=lambda point: not point.is_dense)


def _parsed(path: Path) -> tuple[tuple[str, float], int]:
    """Return the label and the ratio that a file's name says, 0 for none, and the seed."""
    found = _NAME.fullmatch(path.stem)
    if found is None:
        raise ValueError(f"{path} is not named like a run of a comparison, METHOD-RATIOx-seedNN.json: move it away")
    return (found["label"], float(found["ratio"] or 0)), int(found["seed"])


def _search_steps(results: Path, network: str, label: str) -> int:
    searches = [read_setting_search(results, network, name) for name in label.split("+")]
    return sum(search.steps for search in searches if search is not None)


def difference(point: Point, other: Point) -> Difference:
    """Return by how much the error of a point is above that of another, over the seeds that both have."""
    seeds = sorted(point.runs.keys() & other.runs.keys())
    pairs = [(point.runs[seed], other.runs[seed]) for seed in seeds]
    images = [both for both in map(_by_image, pairs) if both is not None]
    return Difference(
        seeds=student_mean(ours.test_error() - theirs.test_error() for ours, theirs in pairs),
        images=student_mean(np.mean(images, axis=0).tolist()) if images else Mean(math.nan),
    )


def _by_image(pair: tuple[PublishedRun, PublishedRun]) -> np.ndarray | None:
    """Return 100 for every image that the first network alone gets wrong, −100 for the second, otherwise 0."""
    tests = [run.test for run in pair if run.test is not None and run.test.wrong]
    if len(tests) != 2 or tests[0].images != tests[1].images:
        return None
    ours, theirs = (unpacked(test.wrong, test.images).astype(np.float64) for test in tests)
    return 100 * (ours - theirs)


def ranking(points: Sequence[Point]) -> list[Ranked]:
    """Return all points: the dense network, then each ratio with the lowest error first, then those without a ratio.

    Within a ratio, each is tested against the best of those that have reached it and failed with no seed. It is
    significantly worse if its error is higher, and the p-values over seeds and, where they are known, over images are
    both below 0.05 after Holm's adjustment.
    """
    dense = next((point for point in points if point.is_dense), Point(label="", asked=None))
    found = [Ranked(point=point, to_dense=difference(point, dense)) for point in points if point.is_dense]
    for ratio in sorted({point.asked for point in points if point.asked is not None}):
        found += _at_one_ratio([point for point in points if point.asked == ratio], dense)
    others = [point for point in points if point.asked is None and not point.is_dense]
    return [*found, *(Ranked(point=point, to_dense=difference(point, dense)) for point in _by_error(others))]


def _at_one_ratio(points: Iterable[Point], dense: Point) -> list[Ranked]:
    ordered = _by_error(points)
    best = next((point for point in ordered if point.runs and point.is_met and not point.failures), None)
    rivals = [point for point in ordered if point is not best and point.runs]
    compared = {point.label: difference(point, best) for point in rivals} if best is not None else {}
    seeds, images = (holm([getattr(each, kind).p for each in compared.values()]) for kind in ("seeds", "images"))
    verdicts = {
        label: _verdict(found.seeds.value, *pair)
        for (label, found), *pair in zip(compared.items(), seeds, images, strict=True)
    }
    return [
        Ranked(
            point=point,
            to_dense=difference(point, dense),
            is_best=point is best,
            to_best=compared.get(point.label),
            is_worse=verdicts.get(point.label),
        )
        for point in ordered
    ]


def _by_error(points: Iterable[Point]) -> list[Point]:
    """Return points with the lowest error first, and those without a result last."""
    return sorted(points, key=lambda point: (not point.runs, point.error.value, point.label))


def _verdict(more_error: float, p_seeds: float, p_images: float) -> bool | None:
    if math.isnan(p_seeds):
        return None
    # NaN: the answers to single images are not recorded. One that missed the ratio may have less error than the best.
    return more_error > 0 and p_seeds < LEVEL and not p_images >= LEVEL


def next_to_published(comparison: Comparison, points: Sequence[Point]) -> list[NextToPublished]:
    """Return the published results of methods that were run here, each with our point of the nearest size."""
    dense = next((point.error.value for point in points if point.is_dense), math.nan)
    found = []
    for published in literature.published(comparison.network, comparison.data):
        own = [point for point in points if point.runs and published.method in _published_names(point.label)]
        if own:
            nearest = min(own, key=lambda point: _distance(published, point))
            found.append(NextToPublished(published=published, ours=nearest, dense_error=dense))
    return found


def _published_names(label: str) -> set[str]:
    names = [name for name in label.split("+") if name in METHODS]
    return {METHODS[name].published_as for name in names} - {""}


def _distance(published: Published, point: Point) -> float:
    """Return by what factor the sizes differ, as a logarithm: of weights if they are published, otherwise of bytes."""
    is_kept = math.isfinite(published.kept)
    theirs, ours = (published.kept, point.kept) if is_kept else (published.bytes, point.size_bytes)
    return abs(math.log(theirs / ours.value)) if ours.value > 0 else math.inf
