"""Labelled images: where they come from, and what is done to them before a network sees them."""

from secateur.data.augment import AugmentConfig, augmented_copies
from secateur.data.images import DataError, ImageSet, split_validation
from secateur.data.inputs import Scaling
from secateur.data.pictures import find_pictures, picture_suffixes, read_picture, require_pillow
from secateur.data.sets import class_name, load, names

__all__ = [
    "AugmentConfig",
    "DataError",
    "ImageSet",
    "Scaling",
    "augmented_copies",
    "class_name",
    "find_pictures",
    "load",
    "names",
    "picture_suffixes",
    "read_picture",
    "require_pillow",
    "split_validation",
]
