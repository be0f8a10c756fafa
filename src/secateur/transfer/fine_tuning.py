"""Fine-tune a whole network on a task, with the zeros of its weights kept, and score it on the test pictures."""

from __future__ import annotations

import copy
import math
import shutil
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional
from typing_extensions import Doc

from secateur.data import Images, Inputs, Subset
from secateur.data.images import Shape
from secateur.prune import keep_zeros
from secateur.train.journal import Journal
from secateur.train.loop import fit
from secateur.train.observers import Silent
from secateur.train.recipe import Recipe, require_whole
from secateur.train.stage import Stage
from secateur.train.task import Task
from secateur.transfer.features import FeatureNetwork, Progress
from secateur.transfer.metrics import Numbers, accuracy
from secateur.transfer.probes import SCORES, stratified_folds
from secateur.transfer.statistics import mean_score
from secateur.transfer.task import Attributes, Classification, Picture
from secateur.weights.tensors import parameters

_MEMORY_BYTES = 1 << 30  # of training pictures that are kept in memory instead of read in every epoch
_HELD_OUT = 5  # one training picture of so many evaluates the learning rates


@dataclass(frozen=True, kw_only=True)
class FineTuneConfig:
    """How whole networks are fine-tuned on a task: by Adam, with a cosine schedule and without weight decay.

    Adam moves a weight by about the learning rate in a step, so a task of few pictures needs more epochs or a higher
    rate: 60 pictures in 10 epochs are 20 steps, which at 1e-4 change weights by 0.002 at most.
    """

    epochs: Annotated[int, Doc("passes over the training pictures")] = 10
    lr: Annotated[tuple[float, ...], Doc("learning rates; held-out training pictures choose one of several")] = (
        1e-4,
        1e-3,
    )
    batch_size: Annotated[int, Doc("pictures per step")] = 32

    def __post_init__(self) -> None:
        require_whole(least=1, epochs=self.epochs, batch_size=self.batch_size)
        if not self.lr or not all(math.isfinite(each) and each > 0 for each in self.lr):
            raise ValueError(f"lr must be one positive number or more, got {self.lr}")

    def as_key(self) -> list[object]:
        """Return the settings as plain data, for the name of a file."""
        return [[name, list(value) if isinstance(value, tuple) else value] for name, value in asdict(self).items()]


@dataclass(frozen=True, eq=False)
class FineTuned:
    """The score of a fine-tuned network, what it consists of for each test picture, and the rate that was chosen."""

    score: float
    items: Numbers
    lr: float


class FineTunedNetwork(nn.Module):
    """A copy of a network up to the layer of its features, whose zeros are kept, and a linear layer of the task.

    The new layer starts at zero, so that its first step does not disturb the features.
    """

    def __init__(self, network: FeatureNetwork, outputs: int) -> None:
        super().__init__()
        body = copy.deepcopy(network.model)
        copied = FeatureNetwork(network.name, body, network.input_shape, network.scaling, network.layer)
        module = copied.read_module()
        self.head = nn.Linear(network.features, outputs)
        nn.init.zeros_(self.head.weight)
        nn.init.zeros_(self.head.bias)
        if any(each.stored.dim() >= 2 and not each.stored.detach().all() for each in parameters(body)):
            keep_zeros(body)
        self.body = body
        self._read: list[Tensor] = []
        if network.layer is None:
            module.register_forward_pre_hook(lambda _, given: self._read.append(given[0]))
        else:
            module.register_forward_hook(lambda _, __, answer: self._read.append(answer))
        self._fix_what_is_not_read(network.input_shape)

    def _fix_what_is_not_read(self, shape: Shape) -> None:
        """Leave out of the training what comes after the layer: it has no gradient."""
        self(torch.zeros(1, *shape)).sum().backward()
        for parameter in self.parameters():
            parameter.requires_grad_(parameter.grad is not None)
            parameter.grad = None

    def forward(self, inputs: Tensor) -> Tensor:
        """Return a number for each class or attribute (pictures, outputs)."""
        self._read.clear()
        self.body(inputs)
        [features] = self._read
        self._read.clear()
        answers: Tensor = self.head(features.flatten(1))
        return answers


def fine_tune(
    network: FeatureNetwork,
    task: Classification | Attributes,
    config: FineTuneConfig,
    folder: Path,
    *,
    seed: int = 0,
    progress: Progress = lambda done, total: None,
) -> FineTuned:
    """Fine-tune a copy of a network on the training pictures of a task, and score it on the test pictures.

    If there are several learning rates, each is tried on four fifths of the training pictures; the one with the best
    score on the last fifth, or the smallest of equal ones, is then used on all of them. Checkpoints are kept in
    `folder` until it is done: an interrupted training continues from there and ends with the same bits.
    """
    outputs = len(task.classes) if isinstance(task, Classification) else len(task.attributes)
    images = _training_images(network, task.train)
    rates, scores = sorted(set(config.lr)), list[float]()
    steps = math.ceil(len(images) / config.batch_size) * config.epochs
    total, done = steps * (1 + (len(rates) if len(rates) > 1 else 0)), 0

    def train(chosen: Tensor, rate: float, name: str) -> FineTunedNetwork:
        nonlocal done
        model = FineTunedNetwork(network, outputs)
        recipe = Recipe(epochs=config.epochs, batch_size=config.batch_size, lr=rate, schedule="cosine", lambda_wd=0.0)

        def follow(step: int, last: int) -> None:
            progress(done + step * steps // last, total)

        with torch.random.fork_rng():
            fit(
                Stage(name=name, model=model, recipe=recipe, phase="fine-tune"),
                Inputs(Subset(images, chosen), network.scaling),
                seed=seed,
                measure=lambda _: {},
                journal=Journal(checkpoint=folder / f"{name}.checkpoint", log=folder / f"{name}.jsonl"),
                observer=_Following(follow),
                task=Task(_loss_of(task)),
            )
        done += steps
        return model.cpu().eval()

    if len(rates) > 1:
        kept, held_out = _split(task, seed)
        for number, rate in enumerate(rates):
            answers = _answers(train(kept, rate, f"rate-{number}"), Inputs(Subset(images, held_out), network.scaling))
            scores.append(_score(task, task.train_labels[held_out.numpy()], answers)[0])
    rate = rates[int(np.argmax(scores))] if scores else rates[0]
    model = train(torch.arange(len(images)), rate, "all")
    score, items = _score(task, task.test_labels, _answers(model, Inputs(network.stream(task.test), network.scaling)))
    shutil.rmtree(folder)
    return FineTuned(score, items, rate)


class _Following(Silent):
    """Passes the steps of training on."""

    def __init__(self, step: Callable[[int, int], None]) -> None:
        self._step = step

    def step(self, stage: str, done: int, total: int) -> None:
        self._step(done, total)


def _training_images(network: FeatureNetwork, pictures: tuple[Picture, ...]) -> Images:
    """Return the training pictures, whose label is their row, so that a loss can look up what is known of them."""
    rows = torch.arange(len(pictures))
    stream = replace(network.stream(pictures), labels=rows, classes=tuple(map(str, rows.tolist())))
    is_small = len(pictures) * math.prod(network.input_shape) <= _MEMORY_BYTES
    return stream.read_all() if is_small else stream


def _loss_of(task: Classification | Attributes) -> Callable[[Tensor, Tensor], Tensor]:
    """Return the loss of answers to training pictures, which are given by their rows.

    Classes have the cross-entropy; attributes the binary one, in the mean over those that are known.
    """
    targets = torch.from_numpy(np.asarray(task.train_labels, np.int64))

    def of_classes(answers: Tensor, rows: Tensor) -> Tensor:
        return functional.cross_entropy(answers, targets[rows].to(answers.device))

    def of_attributes(answers: Tensor, rows: Tensor) -> Tensor:
        wanted = targets[rows].to(answers.device)
        is_known = (wanted != 0).float()
        losses = functional.binary_cross_entropy_with_logits(answers, (wanted > 0).float(), reduction="none")
        return (losses * is_known).sum() / is_known.sum().clamp(min=1)

    return of_classes if isinstance(task, Classification) else of_attributes


def _split(task: Classification | Attributes, seed: int) -> tuple[Tensor, Tensor]:
    """Return the rows of training pictures to learn from and to evaluate learning rates on."""
    labels = task.train_labels if isinstance(task, Classification) else np.zeros(len(task.train), np.int64)
    is_held_out = torch.from_numpy(stratified_folds(labels, _HELD_OUT, seed) == 0)
    return (~is_held_out).nonzero().squeeze(1), is_held_out.nonzero().squeeze(1)


def _answers(model: nn.Module, inputs: Inputs) -> Numbers:
    with torch.no_grad():
        return np.concatenate([model(batch).double().numpy() for batch, _ in inputs.batches()])


def _score(task: Classification | Attributes, labels: Numbers, answers: Numbers) -> tuple[float, Numbers]:
    """Return the score of answers, and what it consists of, as the other probes do."""
    if isinstance(task, Classification):
        classes = np.argmax(answers, axis=1)
        return accuracy(labels, classes), classes == labels
    return float(mean_score(labels, answers, SCORES[task.score])), answers
