"""Distorted images: a random affine map and an elastic one, sampled together."""

import math
from dataclasses import dataclass
from typing import Annotated

import torch
import torch.nn.functional as F
from torch import Tensor

_CHUNK_IMAGES = 500  # small enough for a chunk's grids to stay in the cache; the draws depend on it


@dataclass(frozen=True, kw_only=True)
class AugmentConfig:
    """How far a copy may be from its original; ± means uniform, and the elastic part is Gaussian."""

    rotation_degrees: Annotated[float, "rotation, ±"] = 8.0
    scale: Annotated[float, "change of size, ±, as a fraction"] = 0.08
    shear: Annotated[float, "horizontal shear, ±"] = 0.1
    shift_px: Annotated[float, "shift in each direction, ±"] = 1.2
    elastic_sigma_px: Annotated[float, "smoothness of the elastic displacement"] = 4.0
    elastic_rms_px: Annotated[float, "root mean square of the elastic displacement in each direction"] = 0.55

    def __post_init__(self) -> None:
        if self.elastic_sigma_px <= 0:
            raise ValueError(f"elastic_sigma_px must be > 0, got {self.elastic_sigma_px}")


_DEFAULTS = AugmentConfig()


def augmented_copies(images: Tensor, copies: int, seed: int, config: AugmentConfig = _DEFAULTS) -> Tensor:
    """Return distorted copies (copies, images, channels, height, width) of uint8 images.

    Every copy of every image has its own distortion. The seed determines them all, and more copies do not change the
    first ones. Pixels from outside an image are 0.
    """
    if images.dtype != torch.uint8 or images.dim() != 4:
        got = f"{images.dtype} of shape {tuple(images.shape)}"
        raise ValueError(f"images must be uint8 (images, channels, height, width), got {got}")
    generator = torch.Generator().manual_seed(seed)
    result = torch.empty((copies, *images.shape), dtype=torch.uint8)
    for copy in result:
        for start in range(0, len(images), _CHUNK_IMAGES):
            chunk = images[start : start + _CHUNK_IMAGES]
            copy[start : start + _CHUNK_IMAGES] = distorted(chunk, generator, config)
    return result


def distorted(images: Tensor, generator: torch.Generator | None, config: AugmentConfig = _DEFAULTS) -> Tensor:
    """Return uint8 images (images, channels, height, width), each with a distortion drawn from the generator."""
    count, (height, width) = len(images), images.shape[2:]
    displacement = _affine(count, height, width, generator, config)
    displacement += _elastic(count, height, width, generator, config)
    return warp(images, displacement)


def warp(images: Tensor, displacement: Tensor) -> Tensor:
    """Return uint8 images whose pixels are interpolated bilinearly at other places of the originals, 0 outside.

    `displacement` (images, height, width, 2) points from each pixel to its source: x, then y, in pixels.
    """
    height, width = images.shape[2:]
    # grid_sample's coordinates run from −1 to 1 between the outer edges of an image.
    grid = (_centred_pixels(height, width) + displacement) * torch.tensor([2 / width, 2 / height])
    return F.grid_sample(images.float(), grid, align_corners=False).round_().to(torch.uint8)


def _centred_pixels(height: int, width: int) -> Tensor:
    """Return the coordinates (height, width, 2) of the pixels, x and y, with the centre of the image at 0."""
    y = torch.arange(height, dtype=torch.float32) - (height - 1) / 2
    x = torch.arange(width, dtype=torch.float32) - (width - 1) / 2
    return torch.stack(torch.meshgrid(x, y, indexing="xy"), dim=-1)


def _affine(count: int, height: int, width: int, generator: torch.Generator | None, config: AugmentConfig) -> Tensor:
    """Draw displacements p ↦ A·p + shift − p around the centre, with A = (1 + scale) · rotation · shear."""
    draws = torch.rand(5, count, generator=generator) * 2 - 1
    angle = draws[0] * math.radians(config.rotation_degrees)
    size = 1 + draws[1] * config.scale
    shear = draws[2] * config.shear
    shift = draws[3:].T * config.shift_px
    cos, sin = size * angle.cos(), size * angle.sin()
    # rotation · shear = [[cos, −sin], [sin, cos]] · [[1, shear], [0, 1]]
    matrix = torch.stack([cos, shear * cos - sin, sin, shear * sin + cos], dim=1).view(count, 2, 2)
    places = _centred_pixels(height, width).view(1, -1, 2)
    moved = places @ (matrix - torch.eye(2)).mT + shift.unsqueeze(1)
    return moved.view(count, height, width, 2)


def _elastic(count: int, height: int, width: int, generator: torch.Generator | None, config: AugmentConfig) -> Tensor:
    """Draw white noise and blur it: neighbours move together, and every pixel moves with the same variance."""
    noise = torch.randn(count, 2, height, width, generator=generator)
    vertical, horizontal = (_blur(length, config.elastic_sigma_px) for length in (height, width))
    field = vertical @ noise @ horizontal.T
    return field.permute(0, 2, 3, 1) * config.elastic_rms_px


def _blur(length: int, sigma: float) -> Tensor:
    """Return the matrix of a Gaussian blur; rows of norm 1 preserve the variance of noise, even at the edges."""
    place = torch.arange(length, dtype=torch.float32)
    return F.normalize(torch.exp(-0.5 * ((place[:, None] - place) / sigma).square()), dim=1)
