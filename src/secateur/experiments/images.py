"""The training and validation images of a job."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn

from secateur import data, networks
from secateur.data import Images, Inputs, Scaling, Split
from secateur.job import Job
from secateur.measure import Answers, answers_of_batches

_MOST_VALIDATION = 5000


@dataclass(frozen=True)
class JobImages:
    """The images that a job trains on, and those that it is evaluated on before the test."""

    training: Inputs
    validation: Inputs

    def answers(self, model: nn.Module) -> Answers:
        """Return the answers of a network to the validation images."""
        return answers_of_batches(model, self.validation.batches())

    def error(self, model: nn.Module) -> float:
        """Return the error of a network on the validation images, in percent."""
        return self.answers(model).error

    @property
    def guessing_error(self) -> float:
        """The error of always answering with the most frequent class, in percent."""
        labels = self.validation.labels
        return 100 * (1 - torch.bincount(labels).max().item() / len(labels))


def load_split(job: Job, split: Split, root: Path | None) -> Images:
    """Return one part of a job's data set; pictures of a folder get the network's usual size."""
    is_named = job.data in data.DATA_SETS
    return data.load(job.data, split, root, None if is_named else networks.NETWORKS.find(job.network).input_shape)


def load_images(job: Job, root: Path | None, scaling: Scaling | None = None) -> JobImages:
    """Return the training images of a job's data set, split into training and validation images.

    Without a scaling, which pretrained weights need, it is fitted to the training images.
    """
    everything = load_split(job, "train", root)
    train, validation = data.split_validation(everything, min(_MOST_VALIDATION, len(everything) // 5))
    if scaling is None:
        scaling = Scaling.fit(train, job.inputs.scaling)
    training = Inputs.for_training(train, scaling, job.inputs.augment, job.inputs.input_dropout, seed=job.seed)
    return JobImages(training, Inputs(validation, scaling))
