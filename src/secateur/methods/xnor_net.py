"""Rastegari, Ordonez, Redmon & Farhadi 2016, "XNOR-Net" (arXiv 1603.05279): binary weights and binary inputs.

    I ∗ W ≈ (sign(I) ⊛ sign(W)) ⊙ K·α        (equation 11)

with α of Binary-Weight-Networks, and K the mean of |I| over the channels and the window of each output; ⊛ needs no
multiplication, only XNOR and counts of bits (`secateur.run.xnor`). Batch normalisation comes before the sign, whose
gradient passes where |x| ≤ 1. The first and the last layer stay as they are. Published: AlexNet 43.3 % top-1 on
ImageNet (authors' repository; binary weights alone 56.8 %), convolutions 58× faster; nothing on MNIST.

Returns a network of the original class whose binary layers have a child `inputs` that takes signs of what they are
given (`secateur.functions.inputs`): weights alone cannot say that. Files keep its buffers, and `load` restores it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

from torch import nn
from typing_extensions import Doc

from secateur.functions.inputs import LayerInputs, SignInputs
from secateur.methods.binary_net import input_size
from secateur.methods.binary_weights import BinaryWeights


@dataclass(frozen=True, kw_only=True)
class XnorNet(BinaryWeights):
    """Train weights and inputs of one bit each, both with scales."""

    name: ClassVar[str] = "xnor-net"
    changes_inputs: ClassVar[bool] = True

    scale_inputs: Annotated[bool, Doc("multiply products by K, the mean size of the inputs")] = True

    def inputs(self, layer: nn.Linear | nn.Conv2d, *, is_first: bool) -> LayerInputs:
        """Return signs, with K or without."""
        return SignInputs(input_size(layer), scaled=self.scale_inputs)
