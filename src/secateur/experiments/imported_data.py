"""Data of other packages, named as `package.module:callable`: a function that returns data sets or data loaders."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, NamedTuple

from torch import Tensor, nn

from secateur.data import DataError
from secateur.experiments.given_data import GivenData, given_data
from secateur.networks import Shape, imported
from secateur.train.task import Task, labels_of


class Parts(NamedTuple):
    """What a function of the user returns: data to train on, to validate, and perhaps to test on."""

    train: Any
    validation: Any
    test: Any = None


class Sizes(NamedTuple):
    """What a network is built for, as far as the data tell."""

    classes: int | None
    input_shape: Shape | None


def load_parts(name: str, trust: Collection[str]) -> Parts:
    """Import and call what an import path names, if its module is trusted."""
    function = imported.find(name, trust)
    if not callable(function):
        raise DataError(f"{name} is of type {type(function).__name__}, not a function that returns data sets")
    try:
        found = function()
    except (Exception, SystemExit) as error:  # code of another package may raise anything
        said = str(error).strip().partition("\n")[0]
        raise DataError(f"{name}, called without arguments, failed: {type(error).__name__}: {said}") from error
    if not isinstance(found, tuple) or len(found) not in (2, 3):
        got = f"{len(found)} of them" if isinstance(found, tuple) else type(found).__name__
        raise DataError(f"{name} must return training and validation data, and test data if there are any, got {got}")
    return Parts(*found)


def sizes_of(train: Any) -> Sizes:
    """Return the number of classes that a data set names, and the shape of its first sample if that is an image."""
    samples = getattr(train, "dataset", train)
    names = getattr(samples, "classes", None)
    classes = len(names) if isinstance(names, list | tuple) and names else None
    try:
        first = samples[0]
    except (TypeError, IndexError, KeyError):
        return Sizes(classes, None)
    image = first[0] if isinstance(first, list | tuple) and labels_of(first) is not None else None
    if not isinstance(image, Tensor) or image.dim() != 3:
        return Sizes(classes, None)
    channels, height, width = image.shape
    return Sizes(classes, (channels, height, width))


def workload_of(parts: Parts, model: nn.Module) -> GivenData:
    """Return the training and validation data as a run takes them."""
    return given_data(model, parts.train, parts.validation, task=Task())
