"""A labelled set of images, and the error that says why there is none."""

from dataclasses import dataclass

import torch
from torch import Tensor


class DataError(Exception):
    """A file of a set is missing or broken: one sentence that names it, what is wrong, and the remedy."""


@dataclass(frozen=True, eq=False)
class ImageSet:
    """Images (images, channels, height, width) of uint8 with their labels (images,) of int64."""

    images: Tensor
    labels: Tensor

    def __post_init__(self) -> None:
        if self.images.dtype != torch.uint8 or self.images.dim() != 4:
            got = f"{self.images.dtype} of shape {tuple(self.images.shape)}"
            raise ValueError(f"images must be uint8 (images, channels, height, width), got {got}")
        if self.labels.dtype != torch.int64 or self.labels.shape != self.images.shape[:1]:
            got = f"{self.labels.dtype} of shape {tuple(self.labels.shape)}"
            raise ValueError(f"labels must be int64, one for each of {len(self.images)} images, got {got}")

    def __len__(self) -> int:
        return len(self.labels)


def split_validation(train: ImageSet, size: int = 5000) -> tuple[ImageSet, ImageSet]:
    """Split a training set into what is trained on and what choices are made on: its last `size` images.

    The split is fixed, so that runs compare on the same images. Nothing is copied.
    """
    if not 0 < size < len(train):
        raise ValueError(f"a validation set must have from 1 to {len(train) - 1} images, got {size}")
    return (
        ImageSet(train.images[:-size], train.labels[:-size]),
        ImageSet(train.images[-size:], train.labels[-size:]),
    )
