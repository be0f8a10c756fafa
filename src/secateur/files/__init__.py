"""Step 5, encode: a network in one small file, and back.

The format itself (`secateur.encode`) knows tensors only. This package joins it with the networks: which architecture a
file names, how that is built again, and how its inputs are scaled.
"""

from secateur.files.architecture import GivenArchitecture, build_empty, is_ours
from secateur.files.inputs import FileInputs, describe_inputs, input_shape, read_inputs, recorded_shape
from secateur.files.loading import build_imported, load, skeleton
from secateur.files.saving import encoded, save

__all__ = [
    "FileInputs",
    "GivenArchitecture",
    "build_empty",
    "build_imported",
    "describe_inputs",
    "encoded",
    "input_shape",
    "is_ours",
    "load",
    "read_inputs",
    "recorded_shape",
    "save",
    "skeleton",
]
