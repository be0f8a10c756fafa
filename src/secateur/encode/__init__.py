"""Step 5, encode: the levels of a pruned network in one small file."""

from secateur.encode.bounds import Bounds, FormatError, Matrix
from secateur.encode.container import Architecture, Archive, open_archive, to_bytes
from secateur.encode.files import load, load_state, save
from secateur.encode.records import Record
from secateur.encode.sparse import SparseTensor

__all__ = [
    "Architecture",
    "Archive",
    "Bounds",
    "FormatError",
    "Matrix",
    "Record",
    "SparseTensor",
    "load",
    "load_state",
    "open_archive",
    "save",
    "to_bytes",
]
