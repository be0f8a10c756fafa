"""Labelled images: where they come from, and what is done to them before a network sees them."""

from secateur.data.augment import AugmentConfig, augmented_copies
from secateur.data.images import DataError, ImageSet, split_validation
from secateur.data.inputs import Scaling
from secateur.data.sets import load, names

__all__ = [
    "AugmentConfig",
    "DataError",
    "ImageSet",
    "Scaling",
    "augmented_copies",
    "load",
    "names",
    "split_validation",
]
