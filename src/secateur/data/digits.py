"""scikit-learn's handwritten digits, 8×8 pixels: a real set that needs no network."""

from typing import Literal

import torch
import torch.nn.functional as F

from secateur.data.images import DataError, ImageSet

_TRAIN_IMAGES = 1500  # of 1,797


def load_digits(split: Literal["train", "test"]) -> ImageSet:
    """Return the digits as 28×28 images like MNIST's: every pixel becomes 3×3, with a margin of 2."""
    try:
        from sklearn import datasets  # optional, so not at the top
    except ModuleNotFoundError as error:
        remedy = "pip install 'secateur[digits]'"
        raise DataError(f"the set digits comes with scikit-learn, which is not installed: {remedy}") from error
    digits = datasets.load_digits()
    levels = torch.from_numpy(digits.images).mul(255 / 16).round().to(torch.uint8)  # 0..16 become 0..255
    large = levels.repeat_interleave(3, dim=1).repeat_interleave(3, dim=2)
    images = F.pad(large, (2, 2, 2, 2)).unsqueeze(1)
    labels = torch.from_numpy(digits.target).long()
    part = slice(_TRAIN_IMAGES) if split == "train" else slice(_TRAIN_IMAGES, None)
    return ImageSet(images[part], labels[part])
