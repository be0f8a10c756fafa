"""How often a classifier is wrong."""

from collections.abc import Iterable

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


def error_of_batches(model: nn.Module, batches: Iterable[tuple[Tensor, Tensor]]) -> float:
    """Return the error rate, in percent, over batches of inputs and labels, which are read one at a time."""
    wrong = total = 0
    with evaluating(model):
        for inputs, labels in batches:
            wrong += _count_wrong(model(inputs), labels)
            total += len(labels)
    if total == 0:
        raise ValueError("batches must not be empty: the error rate of no answers is undefined")
    return 100 * wrong / total


def _count_wrong(answers: Tensor, labels: Tensor) -> int:
    if answers.ndim != 2 or len(answers) != len(labels):
        shape = tuple(answers.shape)
        raise ValueError(f"answers must be one row of scores for each of {len(labels)} inputs, got shape {shape}")
    # argmax treats NaN as the largest score, so a row with NaN could otherwise match its label.
    wrong = (answers.argmax(dim=1) != labels) | answers.isnan().any(dim=1)
    return int(torch.count_nonzero(wrong))
