"""Vanhoucke, Senior & Mao 2011, "Improving the speed of neural networks on CPUs": weights and activations of 8 bits.

Every layer multiplies integers, with one scale for its weights and one for what it reads,

    a = s_w·s_x · (Σ q_w·q_x + q_b)        q_w = round(w / s_w), q_x = round(x / s_x), q_b = round(b / (s_w·s_x))

of 8 bits each; sums and biases have 32. s_w reaches to the largest weight, s_x to the largest activation seen in
training (8 bits without a sign where none is negative). Rounding follows training; nothing is retrained.
Published: speech recognition at no cost in accuracy; fixed-point instructions are 3× as fast as optimised floats.

Returns a network of the original class whose layers have a child `inputs` that rounds what they are given
(`secateur.functions.inputs`): weights alone cannot say that. Files keep its buffers, and `load` restores it. It
computes in floats what `secateur.run.integers` computes in integers.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import nn

from secateur.functions.inputs import RoundedInputs, attach_inputs
from secateur.methods.method import Method
from secateur.train.recipe import Recipe
from secateur.train.stage import Stage

_LARGEST = 127
_LARGEST_BIAS = 2**31 - 1


@dataclass(frozen=True, kw_only=True)
class Int8(Method):
    """Train, then round weights and activations to 8 bits and biases to 32."""

    name: ClassVar[str] = "int8"
    leaves: ClassVar[str] = "int8"
    leaves_few_values: ClassVar[bool] = True
    changes_inputs: ClassVar[bool] = True

    def stages(self, model: nn.Module, recipe: Recipe) -> Generator[Stage, None, nn.Module]:
        """Yield the network once, while the range of its activations is measured, and return it rounded."""
        layers = [layer for layer in model.modules() if isinstance(layer, nn.Linear | nn.Conv2d)]
        for layer in layers:
            attach_inputs(layer, RoundedInputs(8, follows=True))
        yield Stage(name="train", model=model, recipe=recipe)
        for layer in layers:
            round_(layer)
        return model

    def epochs(self, recipe: Recipe) -> int:
        """Return the recipe's epochs: there is no other stage."""
        return recipe.epochs


@torch.no_grad()
def round_(layer: nn.Linear | nn.Conv2d) -> None:
    """Round the weights of a layer to 127 multiples of s_w on each side, and its bias to multiples of s_w·s_x."""
    inputs = layer.get_submodule("inputs")
    assert isinstance(inputs, RoundedInputs)
    scale = layer.weight.abs().max().double() / _LARGEST
    unit = scale * inputs.grid[0].double()
    if scale > 0:
        layer.weight.copy_((layer.weight / scale).round() * scale + 0.0)  # −0 becomes 0
    if layer.bias is not None and unit > 0:
        layer.bias.copy_((layer.bias / unit).round().clamp(-_LARGEST_BIAS, _LARGEST_BIAS) * unit + 0.0)
