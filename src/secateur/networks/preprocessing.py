"""What turns photographs into the inputs that a pretrained network was trained on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class Preprocessing:
    """Resize to `short_side`, cut `size` × `size` pixels at the centre, then x ↦ (x / 255 − mean) / std by channel.

    Channels are red, green, blue. Weights that were trained on another order are reordered when they are read.
    """

    mean: tuple[float, float, float]
    std: tuple[float, float, float]
    size: int
    short_side: int
    interpolation: Literal["bilinear", "bicubic"] = "bilinear"

    def __post_init__(self) -> None:
        if not 0 < self.size <= self.short_side:
            raise ValueError(f"size must lie in 1…{self.short_side}, the short side, got {self.size}")
        if min(self.std) <= 0:
            raise ValueError(f"std must be above 0, got {self.std}")

    def __call__(self, images: Tensor) -> Tensor:
        """Map images (images, 3, height, width) of uint8 to float32 inputs (images, 3, size, size)."""
        height, width = images.shape[-2:]
        scale = self.short_side / min(height, width)
        resized = (max(self.short_side, round(height * scale)), max(self.short_side, round(width * scale)))
        pixels = images.float()
        if resized != (height, width):
            # Levels are rounded, as those of a decoded and resized picture are.
            pixels = F.interpolate(pixels, resized, mode=self.interpolation, antialias=True).round_().clamp_(0, 255)
        top, left = (round((length - self.size) / 2) for length in resized)
        pixels = pixels[..., top : top + self.size, left : left + self.size]
        mean, std = (torch.tensor(numbers).view(3, 1, 1) for numbers in (self.mean, self.std))
        return (pixels / 255 - mean) / std


def levels(*mean: float) -> tuple[float, float, float]:
    """Return a mean that is given in levels from 0 to 255 as a share of 255."""
    red, green, blue = (level / 255 for level in mean)
    return red, green, blue
