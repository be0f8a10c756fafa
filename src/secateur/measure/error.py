"""How often a classifier is wrong."""

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from secateur.measure.evaluating import evaluating


def error_rate(model: nn.Module, inputs: Tensor, labels: Tensor, batch_size: int = 1000) -> float:
    """Return the percentage of `inputs` whose top-1 answer is not the label.

    The model returns one row of scores per input, in evaluation mode and without gradients. A row with a NaN is a
    wrong answer, whatever its label.
    """
    if len(inputs) == 0:
        raise ValueError("inputs must not be empty: the error rate of no answers is undefined")
    if labels.shape != inputs.shape[:1]:
        raise ValueError(f"labels must be one number per input ({len(inputs)}), got shape {tuple(labels.shape)}")
    if batch_size < 1:
        raise ValueError(f"batch_size must be ≥ 1, got {batch_size}")
    return error_of_batches(model, zip(torch.split(inputs, batch_size), torch.split(labels, batch_size), strict=True))


@dataclass(frozen=True, eq=False)
class Answers:
    """The class that a network gives to every input, −1 where a score is NaN, and the right one (inputs,)."""

    given: Tensor
    labels: Tensor

    @property
    def is_wrong(self) -> Tensor:
        """Which answers are not the label (inputs,)."""
        return self.given != self.labels

    @property
    def error(self) -> float:
        """The error rate in percent."""
        return 100 * int(torch.count_nonzero(self.is_wrong)) / len(self.labels)


def answers_of_batches(model: nn.Module, batches: Iterable[tuple[Tensor, Tensor]]) -> Answers:
    """Return the answers of a network, on its own device, to batches of inputs and labels, read one at a time."""
    given, seen = [], []
    weight = next(model.parameters(), None)
    with evaluating(model):
        for inputs, labels in batches:
            given.append(_answers(model(inputs if weight is None else inputs.to(weight.device)).cpu(), labels))
            seen.append(labels)
    if not sum(map(len, seen)):
        raise ValueError("batches must not be empty: the error rate of no answers is undefined")
    return Answers(torch.cat(given), torch.cat(seen))


def error_of_batches(model: nn.Module, batches: Iterable[tuple[Tensor, Tensor]]) -> float:
    """Return the error rate, in percent, over batches of inputs and labels, which are read one at a time."""
    return answers_of_batches(model, batches).error


def _answers(scores: Tensor, labels: Tensor) -> Tensor:
    if scores.ndim != 2 or len(scores) != len(labels):
        shape = tuple(scores.shape)
        raise ValueError(f"answers must be one row of scores for each of {len(labels)} inputs, got shape {shape}")
    # argmax treats NaN as the largest score, so a row with NaN could otherwise match its label.
    return scores.argmax(dim=1).masked_fill(scores.isnan().any(dim=1), -1)
