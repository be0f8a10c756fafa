"""Scaling of pixels to the inputs of a network."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, TypeAlias, get_args

import torch
from torch import Tensor

from secateur.data.images import Images, Subset, chunks, stream_of

ScalingKind: TypeAlias = Literal["unit", "standard", "levels"]

SCALINGS: tuple[ScalingKind, ...] = get_args(ScalingKind)
_MOST_READ = 5000  # images of a stream: a billion pixels at ImageNet's size say enough about each channel


@dataclass(frozen=True)
class Scaling:
    """x ↦ (x / 255 − mean) / std, with one mean and one standard deviation per channel.

    A single pair serves all channels. The numbers are the same for all pixels of a channel, so the first layer can
    absorb them.
    """

    mean: tuple[float, ...] = (0.0,)
    std: tuple[float, ...] = (1.0,)

    def __post_init__(self) -> None:
        if not self.mean or len(self.mean) != len(self.std):
            raise ValueError(f"mean and std must have as many numbers, at least one, got {self.mean} and {self.std}")
        if not all(map(math.isfinite, (*self.mean, *self.std))) or min(self.std) <= 0:
            raise ValueError(f"mean must be finite and std above 0, got {self.mean} and {self.std}")

    @classmethod
    def fit(cls, images: Images, kind: ScalingKind) -> Scaling:
        """Return the scaling to 0…1 ("unit"), or to mean 0 and variance 1 in each channel of `images` ("standard").

        "levels" are 0…255 less the mean of each channel, as AlexNet was trained: its initial weights are for these.

        Pass training images only; validation and test images are then scaled by the same numbers. Of a stream of more
        than 5,000 images, as many are read, at equal distances.
        """
        if kind == "unit":
            return cls()
        if kind not in SCALINGS:
            raise ValueError(f"kind must be one of {', '.join(map(repr, SCALINGS))}, got {kind!r}")
        # From histograms: exact sums for any number of images, and no copy of them in floating point.
        counts = torch.zeros(images.shape[0], 256, dtype=torch.int64)
        if stream_of(images) is not None and len(images) > _MOST_READ:
            images = Subset(images, torch.arange(_MOST_READ) * len(images) // _MOST_READ)
        for pixels, _ in chunks(images):
            for channel, count in enumerate(counts):
                count += torch.bincount(pixels[:, channel].flatten(), minlength=256)
        moments = [_moments(count) for count in counts]
        if min((std for _, std in moments), default=0.0) == 0:
            raise ValueError("images with a channel of one level only, or none, have no standard scaling: use 'unit'")
        mean, std = zip(*moments, strict=True)
        return cls(mean, std if kind == "standard" else (1 / 255,) * len(std))

    def __call__(self, images: Tensor) -> Tensor:
        """Return images (…, channels, height, width) as float32 inputs."""
        inputs = images.to(torch.float32).div_(255)
        if len(self.mean) == 1:
            return inputs.sub_(self.mean[0]).div_(self.std[0])
        if images.dim() < 3 or images.shape[-3] != len(self.mean):
            got = f"shape {tuple(images.shape)}"
            raise ValueError(f"a scaling of {len(self.mean)} channels takes images of as many, got {got}")
        mean, std = (torch.tensor(numbers, device=images.device).view(-1, 1, 1) for numbers in (self.mean, self.std))
        return inputs.sub_(mean).div_(std)

    def as_text(self) -> dict[str, str]:
        """Return mean and std as text for the header of a file, exactly; the numbers are separated by spaces."""
        return {"mean": " ".join(map(repr, self.mean)), "std": " ".join(map(repr, self.std))}

    @classmethod
    def from_text(cls, header: Mapping[str, str]) -> Scaling:
        """Read back what `as_text` wrote; a ValueError names what is missing or wrong."""
        numbers = {}
        for name in ("mean", "std"):
            if name not in header:
                raise ValueError(f'"{name}" of the scaling is missing')
            try:
                numbers[name] = tuple(map(float, header[name].split()))
            except ValueError:
                raise ValueError(f'"{name}" of the scaling must be numbers, got {header[name][:60]!r}') from None
        return cls(**numbers)


def _moments(count: Tensor) -> tuple[float, float]:
    """Return mean and standard deviation of levels 0…255, scaled to 0…1, that occur `count` times each."""
    share = count.double() / max(int(count.sum()), 1)
    level = torch.arange(256, dtype=torch.float64) / 255
    mean = torch.dot(share, level)
    std = torch.dot(share, (level - mean).square()).sqrt()
    return mean.item(), std.item()
