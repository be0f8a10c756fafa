"""Han et al. 2016, "Deep Compression" (arXiv 1510.00149): the rounds of 2015, then weight sharing.

The third stage, Huffman coding, changes no weight: it is what `secateur.save(…, codec="huffman")` does with the
network that comes out here.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from typing import Annotated

from torch import nn
from typing_extensions import Doc

from secateur.methods.han2015 import Han2015, layers
from secateur.methods.stage import Stage
from secateur.quantize import QuantizeConfig, freeze, quantize
from secateur.quantize.network import LayerRules, require_levels


@dataclass(frozen=True, kw_only=True)
class DeepCompression:
    """Prune as Han et al. 2015, let every layer share a few values, and train these."""

    quality: Annotated[float, Doc("threshold of a layer ÷ standard deviation of its weights")] = 1.0
    rounds: Annotated[int, Doc("how often all layers are cut and retrained")] = 5
    fc_levels: Annotated[int, Doc("values that a linear layer shares: 32 (5 bits), LeNet-300-100's 64")] = 32
    conv_levels: Annotated[int, Doc("values that a convolution shares: 256 (8 bits)")] = 256

    def __post_init__(self) -> None:
        # What is wrong is said now, and not after hours of training.
        self._rounds()
        for name in ("fc_levels", "conv_levels"):
            require_levels(name, getattr(self, name))

    def _rounds(self) -> Han2015:
        return Han2015(quality=self.quality, rounds=self.rounds)

    def _sharing(self, levels: int) -> QuantizeConfig:
        return QuantizeConfig(method="shared", levels=levels, init="linear")

    def stages(self, model: nn.Module) -> Generator[Stage, None, nn.Module]:
        """Yield what the rounds yield, and then the network whose shared values are to be trained."""
        pruned = yield from self._rounds().stages(model)
        levels: LayerRules = {name: self.conv_levels for name, _ in layers(pruned, "conv")}
        shared = quantize(pruned, self._sharing(self.fc_levels), layers=levels)
        name = f"quality={self.quality:g}-rounds={self.rounds}-shared={self.fc_levels},{self.conv_levels}"
        yield Stage(name, shared, "fine-tune")
        return freeze(shared)
