"""Courbariaux, Hubara, Soudry, El-Yaniv & Bengio 2016, "Binarized Neural Networks" (BinaryNet, arXiv 1602.02830).

Weights are BinaryConnect's; the inputs of every layer but the first are signs too, and the gradient of a sign is that
of the hard tanh, g · 1[|x| ≤ 1] (equation 4). Batch normalisation comes before each sign, as in the paper; here it
belongs to the layer that reads the sign, so that any network of linear layers and convolutions can be trained so.
Published: 1.40 % on MNIST (three layers of 2048 units, Torch7), 0.96 % (three of 4096, Theano).

Returns a network of the original class whose binary layers have a child `inputs` that takes signs of what they are
given (`secateur.functions.inputs`): weights alone cannot say that. Files keep its buffers, and `load` restores it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

from torch import nn
from typing_extensions import Doc

from secateur.functions.inputs import LayerInputs, SignInputs
from secateur.methods.binary_connect import BinaryConnect, Scale


@dataclass(frozen=True, kw_only=True)
class BinaryNet(BinaryConnect):
    """Train weights and activations of one bit each."""

    name: ClassVar[str] = "binary-net"
    changes_inputs: ClassVar[bool] = True

    # Normalisation follows every layer but the last, whose products of signs are too small a score with less.
    scale: Annotated[Scale, Doc("H: by the size of the layer, or 1 for networks with batch normalisation")] = "one"

    def inputs(self, layer: nn.Linear | nn.Conv2d, *, is_first: bool) -> LayerInputs | None:
        """Return signs for all layers but the first, which reads the data."""
        return None if is_first else SignInputs(input_size(layer), scaled=False)


def input_size(layer: nn.Linear | nn.Conv2d) -> int:
    """Return how many units or channels a layer reads."""
    return layer.in_features if isinstance(layer, nn.Linear) else layer.in_channels
