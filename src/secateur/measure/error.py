"""How often a classifier is wrong."""

import torch
from torch import Tensor, nn

from secateur.measure.evaluating import evaluating


def error_rate(model: nn.Module, inputs: Tensor, labels: Tensor, batch_size: int = 1000) -> float:
    """Return the percentage of `inputs` whose top-1 answer is not the label.

    The model answers with one row of scores per input, in evaluation mode and without gradients. A row with a
    NaN is a wrong answer, whatever its label.
    """
    if len(inputs) == 0:
        raise ValueError("inputs must not be empty: the error rate of no answers is undefined")
    if labels.shape != inputs.shape[:1]:
        raise ValueError(f"labels must be one number per input ({len(inputs)}), got shape {tuple(labels.shape)}")
    if batch_size < 1:
        raise ValueError(f"batch_size must be ≥ 1, got {batch_size}")
    wrong = 0
    with evaluating(model):
        for batch, expected in zip(torch.split(inputs, batch_size), torch.split(labels, batch_size), strict=True):
            wrong += _count_wrong(model(batch), expected)
    return 100 * wrong / len(inputs)


def _count_wrong(answers: Tensor, labels: Tensor) -> int:
    if answers.ndim != 2 or len(answers) != len(labels):
        shape = tuple(answers.shape)
        raise ValueError(f"answers must be one row of scores for each of {len(labels)} inputs, got shape {shape}")
    # argmax takes a NaN for the largest score, so a broken row could otherwise hit its label.
    wrong = (answers.argmax(dim=1) != labels) | answers.isnan().any(dim=1)
    return int(torch.count_nonzero(wrong))
