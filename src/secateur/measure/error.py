"""How often a classifier is wrong."""

from collections.abc import Iterable, Sequence
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


TOP = 5  # scores among which the label of an input may be, for networks of more than twice as many classes


@dataclass(frozen=True, eq=False)
class Answers:
    """The class that a network gives to every input, −1 where a score is NaN, and the right one (inputs,).

    With more than ten classes also whether the right one is among the five with the highest scores (inputs,).
    """

    given: Tensor
    labels: Tensor
    is_among_top: Tensor | None = None

    @property
    def is_wrong(self) -> Tensor:
        """Which answers are not the label (inputs,)."""
        return self.given != self.labels

    @property
    def error(self) -> float:
        """The error rate in percent."""
        return 100 * int(torch.count_nonzero(self.is_wrong)) / len(self.labels)

    @property
    def top5_error(self) -> float | None:
        """The percentage of labels that are not among the five highest scores; None with ten classes or fewer."""
        if self.is_among_top is None:
            return None
        return 100 * int(torch.count_nonzero(~self.is_among_top)) / len(self.labels)


def answers_of_batches(model: nn.Module, batches: Iterable[tuple[Tensor, Tensor]]) -> Answers:
    """Return the answers of a network, on its own device, to batches of inputs and labels, read one at a time."""
    weight = next(model.parameters(), None)
    with evaluating(model):
        found = [
            answers_in(model(inputs if weight is None else inputs.to(weight.device)).cpu(), labels)
            for inputs, labels in batches
        ]
    if not sum(len(each.labels) for each in found):
        raise ValueError("batches must not be empty: the error rate of no answers is undefined")
    return together(found)


def answers_in(scores: Tensor, labels: Tensor) -> Answers:
    """Return the answers that rows of scores give."""
    given = _answers(scores, labels)
    if scores.shape[1] <= 2 * TOP:
        return Answers(given, labels)
    is_among_top = (scores.topk(TOP, dim=1).indices == labels.unsqueeze(1)).any(dim=1)
    return Answers(given, labels, is_among_top & (given >= 0))


def together(parts: Sequence[Answers]) -> Answers:
    """Return the answers of batches as one."""
    near = [part.is_among_top for part in parts if part.is_among_top is not None]
    given, labels = (torch.cat([getattr(part, name) for part in parts]) for name in ("given", "labels"))
    return Answers(given, labels, torch.cat(near) if near else None)


def error_of_batches(model: nn.Module, batches: Iterable[tuple[Tensor, Tensor]]) -> float:
    """Return the error rate, in percent, over batches of inputs and labels, which are read one at a time."""
    return answers_of_batches(model, batches).error


def _answers(scores: Tensor, labels: Tensor) -> Tensor:
    if scores.ndim != 2 or len(scores) != len(labels):
        shape = tuple(scores.shape)
        raise ValueError(f"answers must be one row of scores for each of {len(labels)} inputs, got shape {shape}")
    # argmax treats NaN as the largest score, so a row with NaN could otherwise match its label.
    return scores.argmax(dim=1).masked_fill(scores.isnan().any(dim=1), -1)
