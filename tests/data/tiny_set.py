"""A data set of eight images in the format of MNIST."""

import hashlib
import struct

import torch

from secateur.data.files import DataFile


def idx(tensor: torch.Tensor) -> bytes:
    header = struct.pack(f">4B{tensor.dim()}I", 0, 0, 8, tensor.dim(), *tensor.shape)
    return header + tensor.numpy().tobytes()


def random_bytes(*shape: int) -> torch.Tensor:
    return torch.randint(256, shape, generator=torch.Generator().manual_seed(len(shape))).to(torch.uint8)


CONTENT = {
    "train-images": idx(random_bytes(6, 4, 4)),
    "train-labels": idx(torch.arange(6).to(torch.uint8)),
    "test-images": idx(random_bytes(2, 4, 4)),
    "test-labels": idx(torch.tensor([7, 8], dtype=torch.uint8)),
}
FILES = tuple(DataFile(name, len(raw), hashlib.md5(raw).hexdigest()) for name, raw in CONTENT.items())
