"""The .cut format: tensors in one small file. It knows tensors, not networks or data; `secateur.files` joins them."""

from secateur.encode.codecs.bounds import Bounds, Matrix
from secateur.encode.container import Archive, load_state, open_archive, to_bytes
from secateur.encode.errors import FormatError
from secateur.encode.formulas import ComputedTensor, Formula
from secateur.encode.preamble import Architecture
from secateur.encode.records import TensorRecord
from secateur.encode.sparse import SparseTensor

__all__ = [
    "Architecture",
    "Archive",
    "Bounds",
    "ComputedTensor",
    "FormatError",
    "Formula",
    "Matrix",
    "SparseTensor",
    "TensorRecord",
    "load_state",
    "open_archive",
    "to_bytes",
]
