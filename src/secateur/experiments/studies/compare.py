"""Methods compared under one protocol: a grid of independent runs, method × operating point × seed.

For a seed all methods start from the same weights, see the same images in the same order, and take the same number of
gradient steps by the same recipe. A method that takes a ratio is run at each of several, any other once. What differs
is the method, with its settings at their defaults or as a published search on validation images has chosen them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from torch import nn

from secateur import data, networks
from secateur.budget import Budget
from secateur.experiments.presets import preset
from secateur.experiments.studies.published import folder_of, result_path
from secateur.job import Job
from secateur.methods import METHODS, Dense, Method
from secateur.results import PublishedRun, RunError, read
from secateur.train.recipe import Recipe

PRESET = "general"  # Adam, a cosine schedule, 30 epochs: settings of no method and no network in particular


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """What is compared: methods on one network and its data, by one recipe."""

    network: str
    data: str
    preset: str = PRESET
    epochs: int | None = None  # of every run in all; None: the preset's
    few_values: bool = False  # whether each pruned network gets the preset's few values, too, in the same epochs

    @property
    def study(self) -> str:
        """The folder of its results: all that was not the default is in the name."""
        other = [] if self.preset == PRESET else [self.preset]
        other += [] if self.epochs is None else [f"{self.epochs}-epochs"]
        return "-".join(["compare", *other, *(["few-values"] if self.few_values else [])])

    def folder(self, results: Path) -> Path:
        """Return where its runs are published."""
        return results / folder_of(self.network, self.data) / self.study

    def usual(self, seed: int = 0) -> Job:
        """Return the job of the preset, whose recipe, inputs and coding all methods share."""
        return preset(self.preset, self.network, data=self.data, seed=seed, to_file=True)

    @property
    def total_epochs(self) -> int:
        """The passes over the training images that every run takes."""
        if self.epochs is not None:
            return self.epochs
        usual = self.usual()
        return usual.methods[0].epochs(usual.recipe)

    def build(self) -> nn.Module:
        """Return an untrained network for its data, to ask methods about."""
        known = data.DATA_SETS.get(self.data)
        if known is None:
            return networks.build(self.network, seed=0)
        return networks.build(self.network, seed=0, classes=len(known.classes), input_shape=known.shape)


@dataclass(frozen=True, kw_only=True)
class Entry:
    """A run of a comparison: a method at one operating point, with one seed."""

    job: Job
    study: str
    ratio: float | None = None  # what the method is asked for; None: it has a point of its own

    def path(self, results: Path) -> Path:
        """Return where its result is published."""
        variant = "" if self.ratio is None else f"{self.ratio:g}x"
        return result_path(results, self.job, study=self.study, variant=variant)

    def failed_path(self, results: Path) -> Path:
        """Return where it is published that the method could not be carried out."""
        path = self.path(results)
        return path.parent / "failed" / path.name

    def is_published(self, results: Path) -> bool:
        """Return whether there is a result, be it a failure; one of other settings would be compared with ours."""
        if (path := self.path(results)).exists():
            job = read(PublishedRun, path).result.job
        elif (path := self.failed_path(results)).exists():
            job = read(Failure, path).job
        else:
            return False
        if job != self.job:
            raise RunError(f"{path} has other settings, or is from an older version: move it away to run it again")
        return True


@dataclass(frozen=True, kw_only=True)
class Failure:
    """A run that ended without a network, and why: the method refused it, or its training diverged."""

    job: Job
    reason: str
    versions: Mapping[str, str]


@dataclass(frozen=True, kw_only=True)
class Refusal:
    """A method that cannot be part of a comparison, and why."""

    label: str
    reason: str
    ratio: float | None = None


@dataclass(frozen=True, kw_only=True)
class SettingSearch:
    """A published search for a method's settings on validation images: its rule, what it chose and what it cost."""

    rule: str
    chosen: Mapping[str, Any]
    steps: int
    seconds: float
    versions: Mapping[str, str]
    tried: tuple[Mapping[str, Any], ...]  # the settings of every run, its validation error and its weights kept


def setting_search_path(results: Path, network: str, method: str) -> Path:
    """Return where the search for a method's settings is published: for the network on its usual data.

    Runs on other data use the same settings, so that they can tell how well these carry over.
    """
    return results / folder_of(network) / "compare" / "searches" / f"{method}.json"


def read_setting_search(results: Path, network: str, method: str) -> SettingSearch | None:
    """Return the published search for a method's settings; None if they are at their defaults."""
    path = setting_search_path(results, network, method)
    return read(SettingSearch, path) if path.exists() else None


def planned(
    comparison: Comparison, names: Iterable[str], ratios: Iterable[float], seeds: Iterable[int], results: Path
) -> tuple[list[Entry], list[Refusal]]:
    """Return the runs of a comparison, the dense network's first, seed by seed; and what cannot be run, with reasons.

    All methods of a seed come before the next seed, so that a grid which is stopped can be evaluated.
    """
    model, recipe = comparison.build(), comparison.usual().recipe
    points, refusals = [], []
    for name in dict.fromkeys((Dense.name, *names)):
        search = read_setting_search(results, comparison.network, name)
        method = replace(METHODS.find(name)(), **(search.chosen if search else {}))
        for ratio in operating_points(method, ratios):
            asked = method if ratio is None else method.with_budget(Budget(ratio=ratio))
            try:
                asked.check(model)
                points.append((*fitted(_pipeline(asked, comparison), recipe, comparison.total_epochs, model), ratio))
            except ValueError as error:
                refusals.append(Refusal(label=name, ratio=ratio, reason=str(error)))
    return [_entry(comparison, *point, seed) for seed in seeds for point in points], refusals


def operating_points(method: Method, ratios: Iterable[float]) -> list[float | None]:
    """Return the ratios that a method is run at: all if it takes a budget, otherwise none of them, but once."""
    if method.with_budget(Budget(ratio=2)) == method.with_budget(Budget(ratio=3)):
        return [None]
    return list(dict.fromkeys(ratios))


def _pipeline(method: Method, comparison: Comparison) -> tuple[Method, ...]:
    before = (Dense(),) if method.needs_trained else ()
    few = comparison.usual().methods[-1]
    is_followed = comparison.few_values and few.leaves_few_values and not method.leaves_few_values
    return (*before, method, *((few,) if is_followed and not method.is_reference else ()))


def _entry(
    comparison: Comparison, methods: tuple[Method, ...], recipe: Recipe, ratio: float | None, seed: int
) -> Entry:
    usual = comparison.usual(seed)
    inputs = replace(usual.inputs, image_order="run")
    return Entry(job=replace(usual, methods=methods, recipe=recipe, inputs=inputs), study=comparison.study, ratio=ratio)


def fitted(
    methods: tuple[Method, ...], recipe: Recipe, total: int, model: nn.Module
) -> tuple[tuple[Method, ...], Recipe]:
    """Return the methods of a pipeline, and a recipe, by which all of their stages together take `total` epochs.

    A method's settings may give stages of its own a number of epochs. The recipe gets what these leave. If that is less
    than half, they are all shortened alike.
    """
    longest = max((length for method in methods for length in _lengths(method).values()), default=0)
    for shortened in range(longest, 0, -1):
        tried = tuple(_shortened(method, shortened / longest) for method in methods)
        epochs = _left(tried, recipe, total, model)
        if epochs is not None and 2 * epochs >= total - 1:
            return tried, replace(recipe, epochs=epochs)
    left = None if longest else _left(methods, recipe, total, model)
    if left is None:
        names = "+".join(method.name for method in methods)
        raise ValueError(f"{total} epochs are too few for the stages of {names}: give --epochs more")
    return methods, replace(recipe, epochs=left)


def _left(methods: tuple[Method, ...], recipe: Recipe, total: int, model: nn.Module) -> int | None:
    """Return the most epochs of a recipe by which all stages take no more than `total`; None if there are none."""
    for epochs in range(total, 0, -1):
        if sum(method.epochs_for(model, replace(recipe, epochs=epochs)) for method in methods) <= total:
            return epochs
    return None


def _lengths(method: Method) -> dict[str, int]:
    """Return the settings of a method that are numbers of epochs."""
    names = [entry.name for entry in fields(method) if entry.name.endswith("epochs")]
    return {name: value for name in names if isinstance(value := getattr(method, name), int)}


def _shortened(method: Method, share: float) -> Method:
    lengths = {name: max(1, round(share * length)) if length else 0 for name, length in _lengths(method).items()}
    return replace(method, **lengths)
