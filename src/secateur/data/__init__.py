"""Labelled images: data sets by name or folder, and what turns images into a network's inputs.

A new data set is a file with an entry `DataSet`, listed in the table in `sets.py`. Another package adds one through an
entry point of the group `secateur.data_sets` whose value is such an entry.
"""

from secateur.data.augment import AugmentConfig, augmented_copies
from secateur.data.folders import FolderImages, classes_of, common_size, load_folder
from secateur.data.images import DataError, Images, ImageSet, Split, Subset, in_memory, split_validation
from secateur.data.inputs import Inputs
from secateur.data.pictures import find_pictures, picture_suffixes, printable, read_picture, require_pillow
from secateur.data.scaling import Scaling
from secateur.data.sets import DATA_SETS, DataSet, load, names, require_known

__all__ = [
    "DATA_SETS",
    "AugmentConfig",
    "DataError",
    "DataSet",
    "FolderImages",
    "ImageSet",
    "Images",
    "Inputs",
    "Scaling",
    "Split",
    "Subset",
    "augmented_copies",
    "classes_of",
    "common_size",
    "find_pictures",
    "in_memory",
    "load",
    "load_folder",
    "names",
    "picture_suffixes",
    "printable",
    "read_picture",
    "require_known",
    "require_pillow",
    "split_validation",
]
