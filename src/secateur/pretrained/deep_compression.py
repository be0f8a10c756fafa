"""Han's compressed SqueezeNet 1.0 (Deep Compression, 2015), pruned to a third of its weights, in 675,763 bytes.

The file has no header. It holds the number of entries of every layer (uint32); then layer by layer 256 values and the
biases (float32), an index into the values for each entry (uint8), and the number of weights skipped before each entry
(4 bits, the low half of a byte first). A run of zeros longer than 15 is bridged by an entry whose value is zero, the
first of the 256.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from secateur import networks
from secateur.data.files import DataFile
from secateur.data.homes import Tarball
from secateur.networks.preprocessing import Preprocessing, levels
from secateur.pretrained.entry import Pretrained

_FILE = "compressed_SqueezeNet.net"
_COMMIT = "fb13faa2cf121ced9999f8a9d538ec6c56084733"
_VALUES = 256


def read_compressed(content: bytes, shapes: Mapping[str, torch.Size]) -> dict[str, Tensor]:
    """Return the tensors of a file for convolutions of these shapes: a weight and a bias of each, in the file's order.

    A ValueError says why the file cannot hold them.
    """
    layers = [name.removesuffix(".weight") for name in shapes if name.endswith(".weight")]
    file = _Cursor(content)
    entries = file.take("<u4", len(layers))
    state = {}
    for layer, count in zip(layers, entries.tolist(), strict=True):
        shape = shapes[f"{layer}.weight"]
        values = file.take("<f4", _VALUES)
        bias = file.take("<f4", shapes[f"{layer}.bias"].numel())
        codes = file.take("u1", count)
        nibbles = file.take("u1", (count + 1) // 2)
        skipped = np.stack([nibbles & 15, nibbles >> 4], 1).reshape(-1)[:count]
        places = np.cumsum(skipped.astype(np.int64) + 1) - 1
        if count and places[-1] >= shape.numel():
            raise ValueError(f'"{layer}.weight" has {shape.numel():,} weights, and the file places one behind them')
        weight = np.full(shape.numel(), values[0], np.float32)
        weight[places] = values[codes]
        state[f"{layer}.weight"] = torch.from_numpy(weight).view(shape)
        state[f"{layer}.bias"] = torch.from_numpy(bias.astype(np.float32))
    file.require_end()
    return state


class _Cursor:
    """Reads arrays from bytes, one after the other."""

    def __init__(self, content: bytes) -> None:
        self._content, self._offset = content, 0

    def take(self, dtype: str, count: int) -> np.ndarray:
        size = np.dtype(dtype).itemsize * count
        if self._offset + size > len(self._content):
            raise ValueError(f"it ends after {len(self._content):,} bytes, within a layer")
        found = np.frombuffer(self._content, dtype, count, self._offset)
        self._offset += size
        return found

    def require_end(self) -> None:
        if self._offset != len(self._content):
            raise ValueError(f"it has {len(self._content) - self._offset:,} bytes after the last layer")


def read_squeezenet(content: bytes) -> dict[str, Tensor]:
    """Return the tensors of Han's file under our names; the first convolution takes RGB instead of BGR.

    His layers and ours are in the same order: squeeze, expand 1×1 and expand 3×3 of each fire module.
    """
    with torch.device("meta"):
        empty = networks.build("squeezenet").state_dict()
    state = read_compressed(content, {name: tensor.shape for name, tensor in empty.items()})
    state["conv1.weight"] = state["conv1.weight"].flip(1)
    return state


SQUEEZENET_HAN = Pretrained(
    name="squeezenet",
    source="Han's compressed network, 33.4 % of its weights",
    files=(DataFile(_FILE, 675_763, "9e65b2784de743985f605095d7412130"),),
    homes=(
        Tarball(
            f"https://github.com/songhan/SqueezeNet-Deep-Compression/archive/{_COMMIT}.tar.gz",
            folder=f"SqueezeNet-Deep-Compression-{_COMMIT}",
        ),
    ),
    read=lambda files: read_squeezenet(files[_FILE]),
    preprocessing=Preprocessing(mean=levels(123, 117, 104), std=levels(1, 1, 1), size=227, short_side=256),
)
