"""What a layer does to its inputs before it multiplies them: signs, or a few levels.

A network whose activations have few bits is not a plain network of its class: some layers have a child `inputs`, a
module with buffers, that a hook applies to what the layer is given. Class and parameters stay as they are, and so do
deep copies, state dicts and exports. Buffers say all there is to say, so that a file of tensors is enough to build such
a network again (`restore_inputs`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional

_CHILD = "inputs"
_ENOUGH_VALUES = 10_000  # to fit a step to
_EPSILON = 1e-5  # added to variances
_MOMENTUM = 0.1  # of running means and variances
_FADING = 0.999  # of the largest input, at every step
_SMALLEST_STEP = 1e-30  # so that nothing is divided by zero


class LayerInputs(nn.Module, ABC):
    """A function of what a layer is given."""

    @abstractmethod
    def forward(self, x: Tensor) -> Tensor:
        """Return what the layer multiplies by its weights."""

    def factor(self, layer: nn.Module, x: Tensor) -> Tensor | None:
        """Return what the products of the layer are multiplied by, before its bias is added; None for nothing."""
        return None


class SignInputs(LayerInputs):
    """Signs of normalised inputs (BinaryNet, XNOR-Net): x̂ = (x − μ)/σ of each unit or channel, then ±1.

    Batch normalisation before the sign is part of both papers; after a ReLU, which their networks lack there, the sign
    would be constant without it. The gradient passes straight through where |x̂| ≤ 1. With `scaled`, products are
    multiplied by K, the mean of |x̂| of what they are sums over (XNOR-Net, equation 11).
    """

    mean: Tensor
    variance: Tensor

    def __init__(self, size: int, *, scaled: bool) -> None:
        super().__init__()
        self.is_scaled = scaled
        self.register_buffer("mean", torch.zeros(size))
        self.register_buffer("variance", torch.ones(size))
        if scaled:
            self.register_buffer("scaled", torch.ones(1))  # its name is what counts: it tells a reader of a file

    def forward(self, x: Tensor) -> Tensor:
        """Return the signs."""
        clipped = self._normalised(x, update=self.training).clamp(-1, 1)
        return clipped + (torch.where(clipped < 0, -1.0, 1.0) - clipped).detach()

    def _normalised(self, x: Tensor, *, update: bool) -> Tensor:
        is_known = update or not self.training
        mean, variance = (self.mean, self.variance) if is_known else (None, None)
        return functional.batch_norm(x, mean, variance, training=self.training, momentum=_MOMENTUM, eps=_EPSILON)

    def factor(self, layer: nn.Module, x: Tensor) -> Tensor | None:
        """Return K, if inputs are scaled."""
        if not self.is_scaled:
            return None
        sizes = self._normalised(x, update=False).abs().mean(1, keepdim=True)
        if not isinstance(layer, nn.Conv2d):
            return sizes
        window = torch.full((1, 1, *layer.kernel_size), 1 / (layer.kernel_size[0] * layer.kernel_size[1]))
        return functional.conv2d(sizes, window.to(sizes), None, layer.stride, layer.padding, layer.dilation)


class RoundedInputs(LayerInputs):
    """Inputs on a grid: step · round(x / step), between `least` and `most` steps; from 0 on if none is negative.

    The first batch of training fits the step, by least squares, and the gradient passes straight through where x is not
    clipped. With `follows`, the grid reaches to the largest inputs of training, is not fitted, and nothing is rounded
    before training is over.
    """

    grid: Tensor  # step, least and most; a step of zero is not known yet

    def __init__(self, bits: int = 8, *, follows: bool = False) -> None:
        super().__init__()
        self.bits, self.follows = bits, follows
        self.register_buffer("grid", torch.tensor([0.0, 0.0, 2.0**bits - 1]))

    def forward(self, x: Tensor) -> Tensor:
        """Return the nearest multiples of the step."""
        if self.training and not torch.compiler.is_compiling():
            if self.follows:
                self._follow(x.detach())
                return x
            if not self.grid[0]:
                self._fit(x.detach())
        step, least, most = self.grid.to(x).unbind()
        clipped = torch.minimum(torch.maximum(x / step.clamp(min=_SMALLEST_STEP), least), most)
        rounded = step * (clipped + (clipped.round() - clipped).detach())
        return torch.where(step > 0, rounded, x)

    def _fit(self, x: Tensor) -> None:
        """Choose the step of least squared error: the largest input is 1 to 8 times the largest level."""
        self._include_negative(x)
        _, least, most = self.grid.tolist()
        values = x.flatten()[:: x.numel() // _ENOUGH_VALUES + 1]
        steps = x.abs().max() / most / torch.logspace(0, 0.9, 40)
        errors = [(values - step * (values / step).round().clamp(least, most)).square().sum() for step in steps]
        self.grid[0] = steps[int(torch.stack(errors).nan_to_num(torch.inf).argmin())]

    def _follow(self, x: Tensor) -> None:
        """Let the largest level be the largest input, of late."""
        self._include_negative(x)
        self.grid[0] = torch.maximum(x.abs().max() / self.grid[2], _FADING * self.grid[0])

    def _include_negative(self, x: Tensor) -> None:
        if self.grid[1] == 0 and (x < 0).any():
            most = 2.0 ** (self.bits - 1) - 1
            self.grid.copy_(torch.tensor([float(self.grid[0] * self.grid[2] / most), -most, most]))


def attach_inputs(layer: nn.Module, function: LayerInputs) -> None:
    """Let a layer apply a function to its inputs from now on, in place."""
    layer.add_module(_CHILD, function)
    layer.register_forward_pre_hook(_read_inputs)
    layer.register_forward_hook(_multiply_products)


def inputs_of(model: nn.Module) -> dict[str, LayerInputs]:
    """Return the layers of a network that apply a function to their inputs, by name."""
    found = {name: layer._modules.get(_CHILD) for name, layer in model.named_modules()}
    return {name: function for name, function in found.items() if isinstance(function, LayerInputs)}


def restore_inputs(model: nn.Module, shapes: Mapping[str, Sequence[int]]) -> None:
    """Give a new network the functions of inputs that the names and shapes of stored tensors tell of, in place."""
    known = set(model.state_dict())
    for name, shape in shapes.items():
        path, _, buffer = name.rpartition(".")
        owner, _, child = path.rpartition(".")
        if name in known or child != _CHILD or buffer not in ("mean", "grid"):
            continue
        try:
            layer = model.get_submodule(owner)
        except AttributeError:
            continue
        width = layer.in_features if isinstance(layer, nn.Linear) else getattr(layer, "in_channels", None)
        if buffer == "grid":
            attach_inputs(layer, RoundedInputs())
        elif tuple(shape) == (width,):
            attach_inputs(layer, SignInputs(shape[0], scaled=f"{path}.scaled" in shapes))


def _read_inputs(layer: nn.Module, arguments: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    function = layer._modules[_CHILD]
    assert isinstance(function, LayerInputs)
    layer.__dict__["_factor"] = function.factor(layer, arguments[0])
    return (function(arguments[0]), *arguments[1:])


def _multiply_products(layer: nn.Module, arguments: tuple[Tensor, ...], output: Tensor) -> Tensor:
    factor: Tensor | None = layer.__dict__.pop("_factor", None)
    if factor is None:
        return output
    bias = layer._parameters.get("bias")
    if bias is None:
        return output * factor
    shown = bias.view(-1, *[1] * (output.dim() - 2))
    return (output - shown) * factor + shown
