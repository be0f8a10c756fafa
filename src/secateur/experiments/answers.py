"""How a finished network answers the validation images, class by class, and small copies of some it gets wrong."""

from __future__ import annotations

import base64

import torch
from torch import Tensor
from torch.nn import functional

from secateur.data import Images
from secateur.measure import Answers
from secateur.results import AnswersResult, Mistake

_MOST_MISTAKES = 24
_MOST_PIXELS = 48  # along a side


def describe_answers(images: Images, answers: Answers, dense: Answers | None = None) -> AnswersResult:
    """Count the wrong answers by class and keep some, of those that the dense network gets right if there is one."""
    classes = len(images.classes)

    def by_class(chosen: Tensor) -> tuple[int, ...]:
        return tuple(torch.bincount(answers.labels[chosen], minlength=classes).tolist())

    shown = answers.is_wrong if dense is None else answers.is_wrong & ~dense.is_wrong
    places = shown.nonzero().squeeze(1)[:_MOST_MISTAKES]
    pixels = _small(images.batch(places)[0]) if len(places) else torch.empty(0, *images.shape, dtype=torch.uint8)
    channels, height, width = pixels.shape[1:]
    return AnswersResult(
        classes=images.classes,
        images=by_class(torch.ones_like(answers.is_wrong)),
        wrong=by_class(answers.is_wrong),
        dense_wrong=() if dense is None else by_class(dense.is_wrong),
        lost=0 if dense is None else int(shown.sum()),
        shape=(channels, height, width),
        mistakes=tuple(
            Mistake(
                pixels=base64.b64encode(image.numpy().tobytes()).decode(),
                label=int(answers.labels[place]),
                answer=int(answers.given[place]),
            )
            for image, place in zip(pixels, places.tolist(), strict=True)
        ),
    )


def _small(pixels: Tensor) -> Tensor:
    """Return images (images, channels, height, width) of at most 48 pixels along a side, grey or in three colours."""
    if pixels.shape[1] not in (1, 3):
        pixels = pixels.float().mean(dim=1, keepdim=True).to(torch.uint8)
    longest = max(pixels.shape[2:])
    if longest <= _MOST_PIXELS:
        return pixels.contiguous()
    height, width = (max(1, side * _MOST_PIXELS // longest) for side in pixels.shape[2:])
    return functional.adaptive_avg_pool2d(pixels.float(), (height, width)).round().to(torch.uint8)
