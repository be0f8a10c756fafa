"""What a network is trained and evaluated on: scaled images with their labels, a batch at a time."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.nn import functional

from secateur.data.augment import augmented_copies, distorted
from secateur.data.crops import shifted_and_mirrored
from secateur.data.images import Images, in_memory, read_batches, stream_of
from secateur.data.scaling import Scaling

_COPIES = 6  # distorted copies of each training image that augmentation draws from
_COPIES_BYTES = 1 << 30  # above this, images are distorted anew whenever they are drawn
_BATCH_IMAGES = 1000
_BATCH_NUMBERS = 1 << 22  # in a batch of evaluation, so that the activations of a large network fit in memory


@dataclass(frozen=True, eq=False)
class Inputs:
    """Images and how they become inputs: their scaling, and how training varies them.

    A share of them is distorted: replaced by one of its `copies` (copies, images, channels, height, width), or computed
    when it is drawn if there are none. With `is_shifted` all are moved by up to 4 pixels and mirrored or not.
    """

    images: Images
    scaling: Scaling
    augment: float = 0.0
    copies: Tensor | None = None
    dropout: float = 0.0  # share of the numbers of an input that training sets to zero
    is_shifted: bool = False
    _ahead: _Ahead = field(default_factory=lambda: _Ahead(), init=False, repr=False)

    def __post_init__(self) -> None:
        for name in ("augment", "dropout"):
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(f"{name} must lie in [0, 1], got {getattr(self, name)}")

    @classmethod
    def for_training(
        cls,
        images: Images,
        scaling: Scaling,
        augment: float = 0.0,
        dropout: float = 0.0,
        *,
        is_shifted: bool = False,
        seed: int = 0,
    ) -> Inputs:
        """Return inputs of which a share is distorted; the copies, kept if 1 GiB holds them, depend on the seed."""
        is_small = _COPIES * len(images) * math.prod(images.shape) <= _COPIES_BYTES
        copies = augmented_copies(in_memory(images).images, _COPIES, seed) if augment and is_small else None
        return cls(images, scaling, augment, copies, dropout, is_shifted)

    @property
    def labels(self) -> Tensor:
        """All labels (images,), int64."""
        return self.images.labels

    def __len__(self) -> int:
        return len(self.images)

    def batch(self, indices: Tensor, generator: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
        """Return inputs and labels for a step of training; all but dropout is drawn from the generator.

        A batch that is being read ahead is not read again.
        """
        pixels, labels = self._ahead.take(indices) or self.images.batch(indices, generator)
        if self.is_shifted:
            pixels = shifted_and_mirrored(pixels, generator)
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

    def read_ahead(self, batches: Sequence[Tensor], seed: int) -> None:
        """Begin to read batches that are asked for later, in this order, if the images are a stream.

        The seed determines how a stream varies its images, whatever the number of processes that read or train.
        """
        self._ahead.begin(self.images if stream_of(self.images) else None, batches, seed)

    def batches(self, size: int | None = None) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield all inputs and labels in their order, undistorted, for evaluation.

        Without a size, batches have 1000 images, or fewer if these are large.
        """
        if size is None:
            size = max(1, min(_BATCH_IMAGES, _BATCH_NUMBERS // math.prod(self.images.shape)))
        if size < 1:
            raise ValueError(f"size must be ≥ 1, got {size}")
        for pixels, labels in read_batches(self.images, torch.arange(len(self)).split(size)):
            yield self.scaling(pixels), labels


class _Ahead:
    """Batches of an epoch that are being read before they are asked for."""

    def __init__(self) -> None:
        self._waiting: deque[Tensor] = deque()
        self._found: Iterator[tuple[Tensor, Tensor]] = iter(())

    def begin(self, images: Images | None, batches: Sequence[Tensor], seed: int) -> None:
        self._found = iter(())  # ends the processes that still read for an epoch that was interrupted
        self._waiting = deque(batches if images is not None else ())
        if images is not None:
            self._found = read_batches(images, batches, seed)

    def take(self, indices: Tensor) -> tuple[Tensor, Tensor] | None:
        """Return the next batch if these are its indices."""
        if not self._waiting or not torch.equal(self._waiting[0], indices):
            return None
        self._waiting.popleft()
        return next(self._found)
