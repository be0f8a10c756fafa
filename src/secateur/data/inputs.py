"""From bytes to a network's inputs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor


@dataclass(frozen=True)
class Scaling:
    """x ↦ (x / 255 − mean) / std.

    Mean and standard deviation are one number each for all pixels, so that the first layer can absorb them.
    """

    mean: float = 0.0
    std: float = 1.0

    @classmethod
    def fit(cls, images: Tensor, kind: Literal["unit", "standard"]) -> Scaling:
        """Return the scaling to 0..1 ("unit"), or to mean 0 and variance 1 over `images` ("standard").

        Give it training images only: validation and test images are scaled by what these say.
        """
        if kind == "unit":
            return cls()
        if kind != "standard":
            raise ValueError(f"kind must be 'unit' or 'standard', got {kind!r}")
        if images.dtype != torch.uint8:
            raise TypeError(f"images must be uint8, got {images.dtype}")
        # From the histogram: exact sums, whatever the number of images, and no float copy of them.
        share = torch.bincount(images.flatten(), minlength=256).double() / max(images.numel(), 1)
        level = torch.arange(256, dtype=torch.float64) / 255
        mean = torch.dot(share, level)
        std = torch.dot(share, (level - mean).square()).sqrt()
        if std == 0:
            raise ValueError("images that are all of one level, or none, have no standard scaling: use 'unit'")
        return cls(mean.item(), std.item())

    def __call__(self, images: Tensor) -> Tensor:
        """Return the images as float32 inputs."""
        return images.to(torch.float32).div_(255).sub_(self.mean).div_(self.std)
