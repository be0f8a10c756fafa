"""Data that the user gives: data loaders or data sets, of tensors, pairs, tuples or mappings."""

from __future__ import annotations

import math
import pickle
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, default_collate

from secateur.data import ImageSet
from secateur.experiments.answers import describe_answers
from secateur.experiments.workload import Evaluation
from secateur.measure import Answers
from secateur.measure.error import answers_in, together
from secateur.measure.evaluating import evaluating
from secateur.results import ERROR, LOSS, AnswersResult
from secateur.train.source import Batches, Source
from secateur.train.task import Batch, Task, answer, labels_of, moved, samples_in, scores_of

_MOST_CLASSES = 1000  # with more, answers are not listed by class
_EVALUATED = 256  # samples of a data set that are evaluated at once


@dataclass(frozen=True)
class GivenData:
    """Training and validation data of the user, and how well a network does on the latter.

    A classifier's error is the percentage of wrong answers. Anything else is measured by its mean loss, or by `error`,
    a function of the network.
    """

    training: Source
    validation: Batches
    task: Task
    measure: str
    classes: tuple[str, ...] = ()
    error: Callable[[nn.Module], float] | None = None
    input_shape: tuple[int, ...] | None = None  # of one sample, if it is one tensor

    @property
    def validation_samples(self) -> int:
        """The number of validation samples."""
        return len(self.validation)

    @property
    def faults(self) -> dict[str, list[str]]:
        """Nothing: a sample that cannot be read is for the data set to handle."""
        return {}

    @property
    def guessing_error(self) -> float:
        """The error of always answering with the most frequent class, in percent; infinite without classes."""
        if self.measure != ERROR or self.error is not None:
            return math.inf
        labels = torch.cat([labels_of(batch) for batch in self.validation.epoch(0)])
        return 100 * (1 - torch.bincount(labels).max().item() / len(labels))

    @property
    def metadata(self) -> Mapping[str, str]:
        """The shape of an input, if it is one tensor; how it was prepared is not known."""
        return {} if self.input_shape is None else {"input_shape": " ".join(map(str, self.input_shape))}

    @property
    def sizes(self) -> Mapping[str, str]:
        """The shape of an input and the number of classes, where they are known."""
        return {**self.metadata, **({"classes": str(len(self.classes))} if self.classes else {})}

    def evaluate(self, model: nn.Module) -> Evaluation:
        """Return the error of a network on the validation data."""
        if self.error is not None:
            return Evaluation(float(self.error(model)))
        device = next(model.parameters()).device
        found: list[Answers] = []
        loss, samples = 0.0, 0
        with evaluating(model):
            for batch in (moved(batch, device) for batch in self.validation.epoch(0)):
                if self.measure == ERROR:
                    found.append(answers_in(scores_of(answer(model, batch)).cpu(), labels_of(batch).cpu()))
                else:
                    number = samples_in(batch)
                    loss, samples = loss + number * float(self.task(model, batch)), samples + number
        if self.measure == ERROR:
            answers = together(found)
            return Evaluation(answers.error, answers)
        return Evaluation(loss / samples)

    def describe(self, answers: Answers, dense: Answers | None) -> AnswersResult | None:
        """Return the answers class by class, with pictures of some mistakes if the inputs are pictures."""
        if not self.classes:
            return None
        pixels = torch.cat([_as_pictures(batch) for batch in self.validation.epoch(0)])
        return describe_answers(ImageSet(pixels, answers.labels, self.classes), answers, dense)


def given_data(
    model: nn.Module,
    train: Any,
    validation: Any,
    *,
    task: Task,
    error: Callable[[nn.Module], float] | None = None,
) -> GivenData:
    """Return the data as a run takes them, once the network has been seen to work on a batch of each."""
    training, evaluated = source_of(train, "train"), batches_of(validation, "validation")
    _try("train", model, task, _first(training))
    first = _first(evaluated)
    _try("validation", model, task, first)
    is_classifier = error is None and task.loss is None and _is_classifier(model, first)
    return GivenData(
        training,
        evaluated,
        task,
        ERROR if is_classifier else LOSS,
        _classes(model, validation, first) if is_classifier else (),
        error,
        _input_shape(first),
    )


def source_of(given: Any, name: str) -> Source:
    """Return batches of a data loader or of a list, or the samples of a data set."""
    if isinstance(given, DataLoader | list | tuple):
        return _Loader(given, name)
    if hasattr(given, "__getitem__") and hasattr(given, "__len__"):
        return _Samples(given, name)
    raise ValueError(
        f"{name} must be a DataLoader, a data set with a length, or a list of batches, got {type(given).__name__}"
    )


def batches_of(given: Any, name: str) -> Batches:
    """Return batches to evaluate a network on, always in the same order."""
    source = source_of(given, name)
    if isinstance(source, _Samples):
        return _Loader(DataLoader(given, batch_size=_EVALUATED), name)
    assert isinstance(source, _Loader)
    return source


class _Samples:
    """The samples of a data set, put together by torch's own rules."""

    def __init__(self, samples: Any, name: str) -> None:
        if not len(samples):
            raise ValueError(f"{name} is empty")
        self.samples = samples

    def __len__(self) -> int:
        return len(self.samples)

    def batch(self, indices: Tensor, generator: torch.Generator) -> Batch:
        """Return the samples at `indices`; a data set that varies them draws from torch's global generator."""
        together: Batch = default_collate([self.samples[index] for index in indices.tolist()])
        return together


class _Loader:
    """The batches of a data loader, or of a list."""

    def __init__(self, loader: DataLoader[Any] | Sequence[Any], name: str) -> None:
        self.loader, self.name = loader, name
        try:
            self.number = len(loader)
        except TypeError:
            raise ValueError(
                f"{name} has no length, which the schedule of a training needs: give a data set or a loader that "
                "knows how many batches it has"
            ) from None
        if not self.number:
            raise ValueError(f"{name} yields no batch")

    def __len__(self) -> int:
        if isinstance(self.loader, DataLoader):
            return len(self.loader.dataset) if hasattr(self.loader.dataset, "__len__") else self.number
        return sum(map(samples_in, self.loader))

    def epoch(self, seed: int) -> Iterator[Batch]:
        """Yield the batches of an epoch; generators that the loader shuffles with begin with the seed."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            for holder in (self.loader, getattr(self.loader, "sampler", None)):
                generator = getattr(holder, "generator", None)
                if generator is not None:
                    generator.manual_seed(seed)
            batches = self._begun()
            first = list(islice(batches, 1))  # a sampler draws its order with the first batch
        yield from chain(first, batches)

    def _begun(self) -> Iterator[Batch]:
        try:
            return iter(self.loader)
        except (pickle.PicklingError, AttributeError, TypeError) as error:
            if not getattr(self.loader, "num_workers", 0):
                raise
            raise ValueError(
                f"{self.name} cannot be sent to worker processes ({error}): use num_workers=0, or a data set that can "
                "be pickled"
            ) from error


def _first(source: Source) -> Batch:
    if isinstance(source, Batches):
        return next(iter(source.epoch(0)))
    return source.batch(torch.arange(min(2, len(source))), torch.Generator())


def _try(name: str, model: nn.Module, task: Task, batch: Batch) -> None:
    """Give a network a batch before anything is trained: what does not fit is told at once."""
    batch = moved(batch, next(model.parameters()).device)
    with evaluating(model), torch.random.fork_rng(devices=[]):
        try:
            loss = task(model, batch)
        except (RuntimeError, TypeError, IndexError) as error:
            said = str(error).strip().splitlines()
            raise ValueError(
                f"the network fails on a batch of {name}, {_described(batch)}: {said[0] if said else error!r}"
            ) from error
    if not loss.isfinite():
        raise ValueError(f"the loss of the first batch of {name} is {loss.item()}: look for NaN in data and weights")


def _described(batch: Any) -> str:
    match batch:
        case Tensor():
            return f"{batch.dtype} of shape {tuple(batch.shape)}".removeprefix("torch.")
        case Mapping():
            return ", ".join(f"{name}: {_described(value)}" for name, value in batch.items())
        case tuple() | list():
            return "(" + ", ".join(map(_described, batch)) + ")"
    return type(batch).__name__


def _is_classifier(model: nn.Module, batch: Batch) -> bool:
    """Return whether a network gives every sample one row of scores, and every sample is labelled with a class."""
    batch = moved(batch, next(model.parameters()).device)
    labels = labels_of(batch)
    if not isinstance(labels, Tensor) or labels.dim() != 1 or labels.dtype != torch.int64:
        return False
    with evaluating(model):
        try:
            scores = scores_of(answer(model, batch))
        except ValueError:
            return False
    return scores.dim() == 2 and len(scores) == len(labels)


def _classes(model: nn.Module, validation: Any, batch: Batch) -> tuple[str, ...]:
    """Return the names of the classes that a data set has, or else their numbers; none if the inputs are no pictures.

    What a page shows of answers begins with pictures.
    """
    if _as_pictures(batch).shape[1] == 0:
        return ()
    with evaluating(model):
        number = scores_of(answer(model, moved(batch, next(model.parameters()).device))).shape[1]
    if number > _MOST_CLASSES:
        return ()
    names = getattr(getattr(validation, "dataset", validation), "classes", ())
    if isinstance(names, list | tuple) and len(names) == number:
        return tuple(map(str, names))
    return tuple(map(str, range(number)))


def _as_pictures(batch: Batch) -> Tensor:
    """Return a batch's images as uint8 (images, channels, height, width), each from its darkest to its lightest."""
    inputs = batch[0] if isinstance(batch, tuple | list) and len(batch) == 2 else None
    if not isinstance(inputs, Tensor) or inputs.dim() != 4 or inputs.shape[1] not in (1, 3):
        return torch.empty(samples_in(batch), 0, 1, 1, dtype=torch.uint8)
    pixels = inputs.float()
    least, most = pixels.amin((1, 2, 3), keepdim=True), pixels.amax((1, 2, 3), keepdim=True)
    return ((pixels - least) / (most - least).clamp(min=1e-9) * 255).round().to(torch.uint8)


def _input_shape(batch: Batch) -> tuple[int, ...] | None:
    """Return the shape of one input if a network is given one tensor of floats."""
    inputs = batch[0] if isinstance(batch, tuple | list) and len(batch) <= 2 else batch
    return tuple(inputs.shape[1:]) if isinstance(inputs, Tensor) and inputs.is_floating_point() else None
