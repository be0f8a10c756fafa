"""XNOR inference: layers of signs multiply packed bits, and count them.

For rows of n signs, packed 64 to a word with a bit set where a sign is −1,

    Σ_k a_k·b_k = n − 2 · popcount(a xor b).

The native routine counts as many rows of weights at once as a vector has words; its twin looks bytes up in a table.
"""

from __future__ import annotations

import ctypes
from functools import cache

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from secateur import native
from secateur.functions.inputs import SignInputs, inputs_of

_INT64, _POINTER = ctypes.c_int64, ctypes.c_void_p
_ALIGNMENT = 64  # bytes of the widest vector
_ONES = np.array([bin(byte).count("1") for byte in range(256)], dtype=np.uint8)


def pack(numbers: Tensor) -> NDArray[np.uint64]:
    """Return the signs of numbers (rows, n) as words (rows, ⌈n / 64⌉); zero is positive."""
    rows, signs = numbers.shape
    routine = native.routine("secateur_pack_signs", None, _POINTER, _INT64, _INT64, _POINTER)
    if routine is not None and numbers.dtype is torch.float32:
        source = numbers.detach().contiguous()
        words = np.empty((rows, -(-signs // 64)), np.uint64)
        routine(source.data_ptr(), rows, signs, words.ctypes.data)
        return words
    return _packed(numbers)


def _packed(numbers: Tensor) -> NDArray[np.uint64]:
    rows, signs = numbers.shape
    bits = np.zeros((rows, -(-signs // 64) * 64), bool)
    bits[:, :signs] = (numbers < 0).numpy()
    return np.packbits(bits, axis=1, bitorder="little").view("<u8").astype(np.uint64)


class PackedSigns:
    """A matrix (rows, n) of signs, packed for products with rows of signs."""

    def __init__(self, signs: Tensor, *, may_popcount: bool = True) -> None:
        self.rows, self.signs = signs.shape
        self.may_popcount = may_popcount  # False: as on machines without an instruction for it
        self.words = pack(signs)
        self._laid_out = _side_by_side(self.words) if native.is_available() else None

    def __call__(self, inputs: NDArray[np.uint64]) -> Tensor:
        """Return the products (inputs, rows) with packed inputs, as whole numbers in float32."""
        out = torch.empty(len(inputs), self.rows)
        if self._laid_out is None:
            return out.copy_(self.twin(inputs))
        routine = _product()
        assert routine is not None
        inputs = np.ascontiguousarray(inputs)
        sizes = len(inputs), self.rows, self.words.shape[1], self.signs
        routine(inputs.ctypes.data, self._laid_out.ctypes.data, *sizes, out.data_ptr(), self.may_popcount)
        return out

    def twin(self, inputs: NDArray[np.uint64]) -> Tensor:
        """Return the same without native code."""
        found = np.empty((len(inputs), self.rows), np.int64)
        for number, row in enumerate(inputs):
            found[number] = _ONES[(self.words ^ row).view(np.uint8)].sum(1, dtype=np.int64)
        return torch.from_numpy(self.signs - 2 * found).float()


@cache
def _product() -> native.Routine | None:
    return native.routine("secateur_xnor", None, _POINTER, _POINTER, *[_INT64] * 4, _POINTER, ctypes.c_int)


def _side_by_side(words: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Return words (rows, length) as (⌈rows / lanes⌉, length, lanes), aligned to a vector."""
    measure = native.routine("secateur_xnor_lanes", _INT64)
    assert measure is not None
    lanes, (rows, length) = measure(), words.shape
    padded = np.zeros((-(-rows // lanes) * lanes, length), np.uint64)
    padded[:rows] = words
    memory = np.empty(padded.size + _ALIGNMENT // 8, np.uint64)
    start = -memory.ctypes.data % _ALIGNMENT // 8
    aligned = memory[start : start + padded.size].reshape(-1, length, lanes)
    aligned[:] = padded.reshape(-1, lanes, length).transpose(0, 2, 1)
    return aligned


class XnorLinear(nn.Module):
    """A linear layer of signs that reads signs, as XNOR-Net and BinaryNet train it, on packed bits; for inference."""

    def __init__(self, layer: nn.Linear) -> None:
        super().__init__()
        function = layer._modules["inputs"]
        assert isinstance(function, SignInputs)
        self.inputs, self.bias = function.eval(), layer.bias
        scales = layer.weight.detach().abs()
        if not torch.allclose(scales, scales[:, :1].expand_as(scales)):
            raise ValueError("a layer for XNOR products has one size of weight per unit: settle the network first")
        self.scales, self.packed = scales[:, 0], PackedSigns(layer.weight.detach())

    def forward(self, x: Tensor) -> Tensor:
        """Return α·K·(n − 2·popcount) + bias."""
        normalised = (x - self.inputs.mean) / (self.inputs.variance + 1e-5).sqrt()
        out = self.packed(pack(normalised)) * self.scales
        factor = self.inputs.factor(self, x)
        out = out if factor is None else out * factor
        return out if self.bias is None else out + self.bias


def with_xnor(model: nn.Module) -> nn.Module:
    """Replace the linear layers of a network that read and hold signs by `XnorLinear`, in place, for inference."""
    for name, function in inputs_of(model).items():
        layer = model.get_submodule(name)
        if isinstance(function, SignInputs) and isinstance(layer, nn.Linear):
            owner, _, last = name.rpartition(".")
            setattr(model.get_submodule(owner), last, XnorLinear(layer))
    return model
