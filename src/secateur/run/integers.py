"""Layers of 8-bit weights and inputs computed in integers, as Vanhoucke et al. (2011) do; formula in `methods.int8`."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from secateur.functions.inputs import RoundedInputs, inputs_of

_LARGEST = 127  # of a weight of 8 bits


class IntegerLinear(nn.Module):
    """A linear layer that multiplies 8-bit integers and adds them, and a bias, in 32 bits; for inference."""

    weight: Tensor
    bias: Tensor

    def __init__(self, layer: nn.Linear) -> None:
        super().__init__()
        function = layer._modules["inputs"]
        assert isinstance(function, RoundedInputs)
        self.step, self.least, self.most = function.grid.tolist()
        scale = layer.weight.detach().double().abs().max() / _LARGEST
        self.unit = float(scale) * self.step
        weight = layer.weight.detach().double()
        levels = (weight / scale).round()
        if not torch.allclose(levels * scale, weight, rtol=1e-5, atol=1e-9):
            raise ValueError("a layer for integer products has weights of 8 bits: round them first, with method int8")
        bias = torch.zeros(layer.out_features) if layer.bias is None else layer.bias.detach()
        self.register_buffer("weight", levels.to(torch.int8))
        self.register_buffer("bias", (bias.double() / self.unit).round().to(torch.int32))

    def forward(self, x: Tensor) -> Tensor:
        """Return s_w·s_x · (Σ q_w·q_x + q_b)."""
        levels = (x / self.step).round().clamp(self.least, self.most).to(torch.int32)
        sums = levels @ self.weight.T.to(torch.int32) + self.bias
        scaled: Tensor = sums.double() * self.unit
        return scaled.to(x.dtype)


def with_integers(model: nn.Module) -> nn.Module:
    """Replace the linear layers of a network that method int8 has rounded by `IntegerLinear`, in place."""
    for name, function in inputs_of(model).items():
        layer = model.get_submodule(name)
        if isinstance(function, RoundedInputs) and isinstance(layer, nn.Linear):
            owner, _, last = name.rpartition(".")
            setattr(model.get_submodule(owner), last, IntegerLinear(layer))
    return model
