"""Rastegari, Ordonez, Redmon & Farhadi 2016, "XNOR-Net" (arXiv 1603.05279), section 3.1: Binary-Weight-Networks.

A filter W is replaced by α·B with B = sign(W) and α = ‖W‖₁ / n, of all scaled signs the nearest to it (equations 4 and
6). The gradient by α·B moves the real W, straight through signs where |w| ≤ 1 and exactly through α. The first and the
last layer stay as they are. Published: AlexNet 56.8 % top-1 on ImageNet with binary weights (authors' repository), the
same as in full precision; nothing on MNIST.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

from typing_extensions import Doc

from secateur.functions.sign import Sign
from secateur.methods.binary import Binary
from secateur.weights.tensors import NetworkTensor, filter_axis


@dataclass(frozen=True, kw_only=True)
class BinaryWeights(Binary):
    """Train weights that are read as ±α, the mean size of their filter, and keep these."""

    name: ClassVar[str] = "binary-weights"

    keep_first: Annotated[bool, Doc("leave the first layer as it is")] = True
    keep_last: Annotated[bool, Doc("leave the last layer as it is")] = True

    def sign(self, tensor: NetworkTensor) -> Sign:
        """Return signs with a scale for each filter."""
        return Sign(None, axis=filter_axis(tensor.places[0]))
