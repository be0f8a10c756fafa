"""Which part of a picture a network sees: its centre, or a part drawn at random as AlexNet and ResNet were trained."""

from __future__ import annotations

import math
import random
from typing import Literal, NamedTuple, TypeAlias, get_args

import torch
import torch.nn.functional as F
from torch import Tensor

CropKind: TypeAlias = Literal["centre", "shift-flip", "alexnet", "resized"]
Size: TypeAlias = tuple[int, int]  # width, height
Box: TypeAlias = tuple[float, float, float, float]  # left, top, right, bottom

CROPS: tuple[CropKind, ...] = get_args(CropKind)
_PADDING = 4  # of the shift, in pixels
_LEAST_AREA = 0.08  # of a resized crop, as a share of the picture
_MOST_STRETCH = 4 / 3  # of a resized crop: its width ÷ height lies between 3/4 and 4/3
_TRIES = 10
# The principal components of ImageNet's colours in columns (rows: red, green, blue; levels from 0 to 1) and their
# variances, as published with fb.resnet.torch. AlexNet adds them to a picture, each multiplied by its variance and a
# Gaussian number of deviation 0.1 (Krizhevsky et al. 2012, section 4.1).
_COMPONENTS = ((-0.5675, 0.7192, 0.4009), (-0.5808, -0.0045, -0.8140), (-0.5836, -0.6948, 0.4203))
_VARIANCES = (0.2175, 0.0188, 0.0045)
_LIGHT_DEVIATION = 0.1


class View(NamedTuple):
    """What is shown of a picture: a part of it, perhaps mirrored, with the levels of its colours moved."""

    box: Box
    is_mirrored: bool = False
    light: tuple[float, float, float] | None = None  # added to the levels of red, green and blue, 0…255


def needs_pictures(kind: CropKind) -> bool:
    """Return whether a kind of crop is drawn from the whole picture, not from its centre at the network's size."""
    return kind in ("alexnet", "resized")


def view(kind: CropKind, size: Size, wanted: Size, seed: int | None = None) -> View:
    """Return what is shown of a picture of a size to a network that wants another one.

    Without a seed it is the centre, for evaluation. The seed determines everything that is drawn at random:

    - "alexnet": a crop of the picture whose shorter side is 256 pixels (for 224 or 227 wanted pixels; in proportion
      for other sizes), mirrored or not, with a change of its light
    - "resized": a crop of 8 to 100 % of the area and of any shape from 3:4 to 4:3, mirrored or not

    The others are the centre here: `shifted_and_mirrored` varies images that have the network's size.
    """
    if seed is None or not needs_pictures(kind):
        return View(_central(size, wanted, _margin(kind, wanted)))
    draw = random.Random(seed)
    box = _placed(size, wanted, draw) if kind == "alexnet" else _resized(size, wanted, draw)
    is_mirrored = draw.random() < 0.5
    return View(box, is_mirrored, _light(draw) if kind == "alexnet" else None)


def _margin(kind: CropKind, wanted: Size) -> float:
    """Return the shorter side of the resized picture, as a multiple of the crop's: 256/227, 256/224, or 1."""
    if not needs_pictures(kind):
        return 1.0
    side = max(wanted)
    return max(side, side * 8 // 7 // 8 * 8) / side  # a multiple of 8, which is 256 for 224 as well as for 227


def _covering_scale(size: Size, wanted: Size) -> float:
    """Return how many pixels of the picture become one if it is resized until it just covers the wanted size."""
    return min(size[0] / wanted[0], size[1] / wanted[1])


def _central(size: Size, wanted: Size, margin: float = 1.0) -> Box:
    scale = _covering_scale(size, wanted) / margin
    width, height = wanted[0] * scale, wanted[1] * scale
    left, top = (size[0] - width) / 2, (size[1] - height) / 2
    return max(left, 0.0), max(top, 0.0), min(left + width, size[0]), min(top + height, size[1])


def _placed(size: Size, wanted: Size, draw: random.Random) -> Box:
    """Draw a place for a crop of the wanted size in the resized picture, and return it in the original's pixels."""
    scale = _covering_scale(size, wanted) / _margin("alexnet", wanted)
    left, top = (
        draw.randint(0, max(0, int(side / scale + 1e-9) - length)) * scale
        for side, length in zip(size, wanted, strict=True)
    )
    return left, top, min(left + wanted[0] * scale, size[0]), min(top + wanted[1] * scale, size[1])


def _resized(size: Size, wanted: Size, draw: random.Random) -> Box:
    """Draw area and shape of a crop, then its place; after ten that do not fit into the picture, take the centre."""
    for _ in range(_TRIES):
        area = draw.uniform(_LEAST_AREA, 1) * size[0] * size[1]
        stretch = math.exp(draw.uniform(-1, 1) * math.log(_MOST_STRETCH)) * wanted[0] / wanted[1]
        width, height = round(math.sqrt(area * stretch)), round(math.sqrt(area / stretch))
        if 0 < width <= size[0] and 0 < height <= size[1]:
            left, top = draw.randint(0, size[0] - width), draw.randint(0, size[1] - height)
            return left, top, left + width, top + height
    return _central(size, wanted)


def _light(draw: random.Random) -> tuple[float, float, float]:
    amounts = [draw.gauss(0, _LIGHT_DEVIATION) * variance for variance in _VARIANCES]
    red, green, blue = (
        255 * sum(part * amount for part, amount in zip(row, amounts, strict=True)) for row in _COMPONENTS
    )
    return red, green, blue


def shifted_and_mirrored(images: Tensor, generator: torch.Generator | None) -> Tensor:
    """Return images (images, channels, height, width), each moved by up to 4 pixels and mirrored or not, at random.

    What comes in from outside is 0. The generator determines the draws: places first, then which are mirrored.
    """
    count, (height, width) = len(images), images.shape[2:]
    top, left = torch.randint(2 * _PADDING + 1, (2, count), generator=generator)
    is_mirrored = torch.rand(count, generator=generator) < 0.5
    padded = F.pad(images, (_PADDING,) * 4)
    windows = padded.unfold(2, height, 1).unfold(3, width, 1)  # (images, channels, tops, lefts, height, width), no copy
    moved = windows[torch.arange(count), :, top, left]
    moved[is_mirrored] = moved[is_mirrored].flip(-1)
    return moved
