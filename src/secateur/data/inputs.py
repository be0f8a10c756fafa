"""What a network is trained and evaluated on: scaled images with their labels, a batch at a time."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from secateur.data.augment import augmented_copies, distorted
from secateur.data.images import Images, in_memory
from secateur.data.scaling import Scaling

_COPIES = 6  # distorted copies of each training image that augmentation draws from
_COPIES_BYTES = 1 << 30  # above this, images are distorted anew whenever they are drawn
_BATCH_IMAGES = 1000
_BATCH_NUMBERS = 1 << 22  # in a batch of evaluation, so that the activations of a large network fit in memory


@dataclass(frozen=True, eq=False)
class Inputs:
    """Images and how they become inputs: their scaling, and the share of them that training distorts.

    A distorted image is one of its `copies` (copies, images, channels, height, width), or computed when it is drawn
    if there are none.
    """

    images: Images
    scaling: Scaling
    augment: float = 0.0
    copies: Tensor | None = None
    dropout: float = 0.0  # share of the numbers of an input that training sets to zero

    def __post_init__(self) -> None:
        for name in ("augment", "dropout"):
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(f"{name} must lie in [0, 1], got {getattr(self, name)}")

    @classmethod
    def for_training(
        cls, images: Images, scaling: Scaling, augment: float = 0.0, dropout: float = 0.0, *, seed: int = 0
    ) -> Inputs:
        """Return inputs of which a share is distorted; the copies, kept if 1 GiB holds them, depend on the seed."""
        is_small = _COPIES * len(images) * math.prod(images.shape) <= _COPIES_BYTES
        copies = augmented_copies(in_memory(images).images, _COPIES, seed) if augment and is_small else None
        return cls(images, scaling, augment, copies, dropout)

    @property
    def labels(self) -> Tensor:
        """All labels (images,), int64."""
        return self.images.labels

    def __len__(self) -> int:
        return len(self.images)

    def batch(self, indices: Tensor, generator: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
        """Return inputs and labels for a step of training; all but dropout is drawn from the generator."""
        pixels, labels = self.images.batch(indices, generator)
        inputs = self.scaling(pixels)
        if self.augment:
            chosen = (torch.rand(len(indices), generator=generator) < self.augment).nonzero().squeeze(1)
            if self.copies is not None:
                which = torch.randint(len(self.copies), (len(chosen),), generator=generator)
                inputs[chosen] = self.scaling(self.copies[which, indices[chosen]])
            else:
                inputs[chosen] = self.scaling(distorted(pixels[chosen], generator))
        # From torch's global generator, like every other dropout of the network.
        inputs = functional.dropout(inputs, self.dropout) if self.dropout else inputs
        # With channels last in memory convolutions take two thirds of the time (LeNet-5).
        return inputs.to(memory_format=torch.channels_last), labels

    def batches(self, size: int | None = None) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield all inputs and labels in their order, undistorted, for evaluation.

        Without a size, batches have 1000 images, or fewer if these are large.
        """
        if size is None:
            size = max(1, min(_BATCH_IMAGES, _BATCH_NUMBERS // math.prod(self.images.shape)))
        if size < 1:
            raise ValueError(f"size must be ≥ 1, got {size}")
        for indices in torch.arange(len(self)).split(size):
            pixels, labels = self.images.batch(indices)
            yield self.scaling(pixels), labels
