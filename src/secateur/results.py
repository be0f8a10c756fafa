"""What a run leaves, as types with one writer and one reader, and what of it is published."""

from __future__ import annotations

import json
import math
import zlib
from base64 import b64decode, b64encode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from secateur.atomic import write_atomically
from secateur.job import Job
from secateur.measure.flops import Work
from secateur.plain_data import from_plain, to_plain

Kind = TypeVar("Kind")


ERROR, LOSS = "error %", "loss"  # what a network is measured by: wrong answers, or the mean loss of a sample


class RunError(Exception):
    """A run that cannot be used: unfinished, damaged, or another one than expected."""


@dataclass(frozen=True, kw_only=True)
class LayerResult:
    """A prunable tensor: its weights, those that are not zero, and its bytes in the file."""

    name: str
    shape: tuple[int, ...]
    weights: int
    kept: int
    bytes: int = 0

    def __post_init__(self) -> None:
        if math.prod(self.shape) != self.weights or not 0 <= self.kept <= self.weights:
            raise ValueError(f"{self.kept} of {self.weights} weights in a tensor of shape {list(self.shape)}")


@dataclass(frozen=True, kw_only=True)
class StageResult:
    """A stage of training: what it took, and the validation error before and after it."""

    name: str
    epochs: int
    steps: int
    seconds: float
    error_before: float = math.nan
    error: float = math.nan
    kept: int = 0


@dataclass(frozen=True, kw_only=True)
class FileResult:
    """The size of a .cut file, and of the same network as 32-bit floats."""

    bytes: int
    dense_bytes: int

    @property
    def ratio(self) -> float:
        """How many times as many bytes 32-bit floats take."""
        return self.dense_bytes / self.bytes if self.bytes else math.inf


@dataclass(frozen=True, kw_only=True)
class RunResult:
    """What came of a run, evaluated on validation images."""

    job: Job
    errors: Mapping[str, float]  # of every form of the network in the order of the pipeline; the last is final
    weights: int  # prunable ones
    kept: int
    layers: tuple[LayerResult, ...] = ()
    kept_by_form: Mapping[str, int] = field(default_factory=dict)  # the same for every form of the network
    thresholds: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    parameters: int = 0  # with biases and norms
    parameters_kept: int = 0
    stages: tuple[StageResult, ...] = ()
    file: FileResult | None = None
    training_images: int = 0
    validation_images: int = 0
    measure: str = ERROR  # what `errors` are
    top5_errors: Mapping[str, float] = field(default_factory=dict)  # the same; empty with ten classes or fewer
    threads: int = 1
    versions: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.errors:
            raise ValueError("errors must have at least one entry")

    @property
    def ratio(self) -> float:
        """All prunable weights ÷ those kept."""
        return self.weights / self.kept if self.kept else math.inf

    @property
    def error(self) -> float:
        """The validation error of the finished network."""
        return last(self.errors)

    @property
    def seconds(self) -> float:
        """What all stages took together."""
        return sum(stage.seconds for stage in self.stages)

    @property
    def steps(self) -> int:
        """The gradient steps of all stages."""
        return sum(stage.steps for stage in self.stages)


@dataclass(frozen=True, kw_only=True)
class EvaluationResult:
    """Errors on test images, of the same forms of the network."""

    errors: Mapping[str, float]
    images: int
    top5_errors: Mapping[str, float] = field(default_factory=dict)  # empty with ten classes or fewer
    wrong: str = ""  # which images the finished network gets wrong, as `packed` writes them; empty if not recorded

    def __post_init__(self) -> None:
        if not self.errors:
            raise ValueError("errors must have at least one entry")

    @property
    def error(self) -> float:
        """The test error of the finished network."""
        return last(self.errors)


@dataclass(frozen=True, kw_only=True)
class Mistake:
    """A wrong answer: the image, small, and two positions in the names of the classes; −1 is no answer at all."""

    pixels: str  # base64 of uint8 (channels, height, width)
    label: int
    answer: int


@dataclass(frozen=True, kw_only=True)
class AnswersResult:
    """How the finished network answers the validation images, class by class, and some of the wrong answers.

    If a dense network was at hand, the mistakes shown are those that it does not make, `lost` of them in all.
    """

    classes: tuple[str, ...]
    images: tuple[int, ...]  # of every class
    wrong: tuple[int, ...]
    dense_wrong: tuple[int, ...] = ()  # of the dense network; empty if there is none
    lost: int = 0
    shape: tuple[int, int, int] = (0, 0, 0)  # of the images in `mistakes`
    mistakes: tuple[Mistake, ...] = ()

    def __post_init__(self) -> None:
        lengths = {len(self.classes), len(self.images), len(self.wrong), len(self.dense_wrong or self.wrong)}
        if len(lengths) != 1:
            raise ValueError("images and wrong answers must have one number for each class")
        if min((*self.images, *self.wrong, *self.dense_wrong, self.lost, *self.shape)) < 0:
            raise ValueError("numbers of images and pixels must not be negative")
        for mistake in self.mistakes:
            if not (0 <= mistake.label < len(self.classes) and -1 <= mistake.answer < len(self.classes)):
                raise ValueError(f"a mistake has label {mistake.label} and answer {mistake.answer}")
            if len(b64decode(mistake.pixels, validate=True)) != math.prod(self.shape) or self.shape[0] not in (1, 3):
                raise ValueError(f"the pixels of a mistake are no image of shape {list(self.shape)}")


@dataclass(frozen=True, kw_only=True)
class LayerSpeed:
    """Milliseconds of a layer, dense and sparse."""

    dense_ms: float
    sparse_ms: float


@dataclass(frozen=True, kw_only=True)
class SpeedResult:
    """Milliseconds of a call, dense and sparse, of the network and of its layers.

    `speedup` is the median of dense ÷ sparse within a turn of the benchmark, as `secateur bench` prints it; the ratio
    of the medians where a file of an older version does not have it.
    """

    dense_ms: float
    sparse_ms: float
    speedup: float = math.nan
    batch: int = 1
    threads: int = 1
    layers: Mapping[str, LayerSpeed] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if math.isnan(self.speedup) and self.sparse_ms:
            object.__setattr__(self, "speedup", self.dense_ms / self.sparse_ms)


@dataclass(frozen=True, kw_only=True)
class HistoryPoint:
    """An epoch of the first stage, as far as tables need it."""

    epoch: int
    error: float
    ratio: float
    sibling_error: float = math.nan
    coded_bytes: float = math.nan  # estimated, of a network whose values are few


@dataclass(frozen=True, kw_only=True)
class CutResult:
    """What a sibling would be if it were cut at another γ, evaluated on validation images."""

    ratio: float
    error: float


@dataclass(frozen=True, kw_only=True)
class PublishedRun:
    """A run that is kept with the project: its result, its test errors, and how its first stage went."""

    result: RunResult
    test: EvaluationResult | None = None
    history: tuple[HistoryPoint, ...] = ()
    cutoffs: Mapping[str, CutResult] = field(default_factory=dict)
    work: Work | None = None  # multiply-accumulates of an image, with all weights and with those kept

    @property
    def seed(self) -> int:
        """The seed of the run."""
        return self.result.job.seed

    def test_error(self, form: str | None = None) -> float:
        """Return the test error of the finished network, or of another form of it; NaN where it is not published."""
        if self.test is None:
            return math.nan
        return self.test.error if form is None else self.test.errors.get(form, math.nan)

    def test_top5_error(self) -> float:
        """Return the top-5 error of the finished network on test images; NaN where it is not published."""
        return math.nan if self.test is None or not self.test.top5_errors else last(self.test.top5_errors)


def packed(flags: Sequence[bool]) -> str:
    """Write one bit for every image as text: a few hundred characters for 10,000 images of which some are wrong."""
    bits = np.packbits(np.asarray(flags, bool))
    return b64encode(zlib.compress(bits.tobytes(), 9)).decode()


def unpacked(text: str, images: int) -> npt.NDArray[np.bool_]:
    """Return the bits that `packed` has written."""
    bits = np.frombuffer(zlib.decompress(b64decode(text, validate=True)), np.uint8)
    if len(bits) != (images + 7) // 8:
        raise ValueError(f"{8 * len(bits)} bits for {images} images")
    return np.unpackbits(bits, count=images).astype(bool)


def figure(value: float, measure: str = ERROR) -> str:
    """Write an error with two digits after the point, anything else with four significant ones."""
    return f"{value:.2f}" if measure == ERROR else f"{value:#.4g}".removesuffix(".")


def last(errors: Mapping[str, float]) -> float:
    """Return the error of the last form: the finished network."""
    return list(errors.values())[-1]


def write(path: Path, value: object) -> Path:
    """Write a result as JSON, whole or not at all, and return its path."""
    write_atomically(path, (json.dumps(to_plain(value), indent=1, ensure_ascii=False) + "\n").encode())
    return path


def read(kind: type[Kind], path: Path) -> Kind:
    """Read a result; one that is missing or damaged is a RunError that names the file and the field."""
    try:
        return from_plain(kind, json.loads(path.read_text(encoding="utf-8")))
    except (FileNotFoundError, NotADirectoryError):
        raise RunError(f"{path} does not exist: the run is not finished, or this is not a run's directory") from None
    except (ValueError, RecursionError) as error:
        raise RunError(f"{path} is damaged or of another version ({error}): delete it and run again") from error
