"""The training and validation images of a job."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import torch
from torch import nn

from secateur import data, networks
from secateur.data import Images, Inputs, Scaling, Split
from secateur.experiments.answers import describe_answers
from secateur.experiments.input_shape import find_input_shape
from secateur.experiments.workload import Evaluation
from secateur.files import describe_inputs
from secateur.job import Job
from secateur.measure import Answers, answers_of_batches
from secateur.networks import Shape
from secateur.results import ERROR, AnswersResult
from secateur.train.task import Task

_MOST_VALIDATION = 5000


@dataclass(frozen=True)
class JobImages:
    """The images that a job trains on, and those that it is evaluated on before the test."""

    job: Job
    training: Inputs
    validation: Inputs
    task: ClassVar[Task] = Task()
    measure: ClassVar[str] = ERROR

    @property
    def validation_samples(self) -> int:
        """The number of validation images."""
        return len(self.validation)

    @property
    def faults(self) -> dict[str, list[str]]:
        """What the log says about pictures that could not be read so far: nothing if there are none."""
        parts = (self.training.images, self.validation.images)
        reasons = dict.fromkeys(reason for images in parts for reason in data.unreadable_of(images))
        return {"unreadable": list(reasons)} if reasons else {}

    @property
    def guessing_error(self) -> float:
        """The error of always answering with the most frequent class, in percent."""
        labels = self.validation.labels
        return 100 * (1 - torch.bincount(labels).max().item() / len(labels))

    @property
    def metadata(self) -> Mapping[str, str]:
        """How pixels are scaled, the names of the classes and, of a network that is not ours, the shape of an input."""
        seen = self.training.images
        shape = seen.shape if networks.is_import_path(self.job.network) else None
        return describe_inputs(
            self.training.scaling, self.job.data, seen.classes, crop=self.job.inputs.crop, input_shape=shape
        )

    @property
    def sizes(self) -> Mapping[str, str]:
        """The number of classes, the shape of an image, and how pixels are scaled."""
        images = self.training.images
        shape = " ".join(map(str, images.shape))
        return {"classes": str(len(images.classes)), "input_shape": shape, **self.training.scaling.as_text()}

    def evaluate(self, model: nn.Module) -> Evaluation:
        """Return the answers of a network to the validation images, and its error in percent."""
        return evaluation_of(model, self.validation)

    def error(self, model: nn.Module) -> float:
        """Return the error of a network on the validation images, in percent."""
        return self.evaluate(model).error

    def describe(self, answers: Answers, dense: Answers | None) -> AnswersResult:
        """Return the answers class by class, and some of the images that are answered wrongly."""
        return describe_answers(self.validation.images, answers, dense)


def evaluation_of(model: nn.Module, inputs: Inputs) -> Evaluation:
    """Return the answers of a network to images, and its error in percent."""
    answers = answers_of_batches(model, inputs.batches())
    return Evaluation(answers.error, answers)


def load_split(job: Job, split: Split, root: Path | None, input_shape: Shape | None) -> Images:
    """Return one part of a job's data set; pictures of a folder are resized to the input shape."""
    crop, most_unreadable = job.inputs.crop, job.inputs.most_unreadable
    return data.load(job.data, split, root, input_shape, crop=crop, most_unreadable=most_unreadable)


def load_images(job: Job, root: Path | None, trust: Collection[str] = (), scaling: Scaling | None = None) -> JobImages:
    """Return the training images of a job's data set, split into training and validation images.

    Without a scaling, which pretrained weights need, it is fitted to the training images.
    """
    everything = load_split(job, "train", root, find_input_shape(job, trust))
    train, validation = data.split_validation(everything, min(_MOST_VALIDATION, len(everything) // 5))
    if scaling is None:
        scaling = Scaling.fit(train, job.inputs.scaling)
    is_shifted = job.inputs.crop == "shift-flip"
    training = Inputs.for_training(
        train, scaling, job.inputs.augment, job.inputs.input_dropout, is_shifted=is_shifted, seed=job.seed
    )
    return JobImages(job, training, Inputs(validation, scaling))
