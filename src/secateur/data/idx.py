"""The idx format of MNIST: two zero bytes, the type, the number of dimensions, each size, then the values."""

import math
import struct
from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from secateur.data.images import DataError, ImageSet

_UNSIGNED_BYTE = 0x08  # the only type that MNIST and Fashion-MNIST use


def read_idx(content: bytes, name: str) -> Tensor:
    """Return the array in an idx file of unsigned bytes; errors call the file `name`."""
    if len(content) < 4 or content[:2] != b"\0\0":
        raise DataError(f"{name} is not an idx file: it begins with {content[:4].hex() or 'nothing'}")
    if content[2] != _UNSIGNED_BYTE:
        raise DataError(f"{name}: values must be unsigned bytes (type 0x08), got type 0x{content[2]:02x}")
    dimensions = content[3]
    start = 4 + 4 * dimensions
    if len(content) < start:
        raise DataError(f"{name} ends inside its header, after {len(content)} of {start} bytes")
    shape = struct.unpack_from(f">{dimensions}I", content, 4)
    if len(content) - start != math.prod(shape):
        raise DataError(f"{name}: shape {shape} needs {math.prod(shape)} values, got {len(content) - start}")
    return torch.from_numpy(np.frombuffer(content, np.uint8, offset=start).reshape(shape).copy())


def read_idx_pair(files: Mapping[str, bytes]) -> ImageSet:
    """Return the set whose images and labels are two idx files, in this order."""
    images, labels = (read_idx(content, name) for name, content in files.items())
    return ImageSet(images.unsqueeze(1), labels.long())
