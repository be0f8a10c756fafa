"""What a data set asks of features: to tell classes apart, to recognise attributes, or to find pictures again."""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

Box: TypeAlias = tuple[float, float, float, float]  # left, top, right and bottom, in pixels of the whole picture
Labels: TypeAlias = npt.NDArray[np.int64]


class Picture(NamedTuple):
    """A picture, or with a box that part of it."""

    path: Path
    box: Box | None = None


@dataclass(frozen=True, eq=False)
class Classification:
    """Every picture has one class: `train_labels` and `test_labels` are indices of `classes`. Scored by accuracy."""

    classes: tuple[str, ...]
    train: tuple[Picture, ...]
    train_labels: Labels
    test: tuple[Picture, ...]
    test_labels: Labels


@dataclass(frozen=True, eq=False)
class Attributes:
    """Every picture has several attributes or none: labels (pictures, attributes).

    1 is yes, −1 is no, and 0 leaves the picture out of this attribute's training and score. Scored by the mean over
    attributes of: "ap11", average precision by the 11-point rule of Pascal VOC 2007; "ap", by area; "auc", the area
    under the ROC curve.
    """

    attributes: tuple[str, ...]
    train: tuple[Picture, ...]
    train_labels: Labels
    test: tuple[Picture, ...]
    test_labels: Labels
    score: Literal["ap11", "ap", "auc"]


class Query(NamedTuple):
    """A picture to look for; the others are indices of the pictures that are searched.

    `ignored` are left out of the ranking before it is scored: junk, and the query itself if it is searched too.
    """

    picture: Picture
    relevant: Set[int]
    ignored: Set[int] = frozenset()


@dataclass(frozen=True, eq=False)
class Retrieval:
    """Pictures are ranked by their distance to each query, and the mean over queries is taken of one of two scores.

    "ap", the average precision of the Oxford buildings, by trapezoids; "recall@4", relevant pictures among the first
    four ÷ min(4, all relevant ones).
    """

    pictures: tuple[Picture, ...]
    queries: tuple[Query, ...]
    score: Literal["ap", "recall@4"]


TransferTask: TypeAlias = Classification | Attributes | Retrieval
