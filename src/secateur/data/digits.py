"""scikit-learn's handwritten digits, 8×8 pixels: a real data set that needs no download."""

from __future__ import annotations

from pathlib import Path

import torch
import torch.nn.functional as F

from secateur.data.images import DataError, ImageSet, Shape, Split

_TRAIN_IMAGES = 1500  # of 1,797


class Digits:
    """The digits as 28×28 images like MNIST's: every pixel becomes 3×3, with a margin of 2."""

    name = "digits"
    note = "scikit-learn's handwritten digits, enlarged to 28×28, 1,500 for training"
    shape: Shape = (1, 28, 28)
    classes = tuple("0123456789")

    def load(self, split: Split, root: Path | None = None) -> ImageSet:
        """Return one part of the set; `root` is ignored, because the images come with scikit-learn."""
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
        return ImageSet(images[part], labels[part], self.classes)
