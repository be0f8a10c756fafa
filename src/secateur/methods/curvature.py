"""Second derivatives of the loss by the outputs of layers, as Optimal Brain Damage and Optimal Brain Surgeon need them.

A layer computes a = W·z + b, where a convolution does so at every place of an image. Where all layers after it are
piecewise linear (ReLU, max-pooling), the Hessian by its weights follows exactly from that by its outputs,

    ∂²E / ∂w_ij ∂w_ik = Σ ∂²E/∂a_i² · z_j · z_k.

The diagonal ∂²E/∂a_i² comes from exact Hessian-vector products with random signs, E[v ⊙ Hv], one for each layer and
batch: the noise is that of the few outputs of a sample and falls with the number of samples. The sum is over samples
and, as in LeCun's, over the places that share a weight, without the products of two different places.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple, TypeAlias

import torch
from torch import Tensor, nn
from torch.nn import functional

from secateur.methods.method import Aids
from secateur.weights.tensors import NetworkTensor

_Seen: TypeAlias = dict[str, tuple[Tensor, Tensor]]  # inputs and outputs of layers, by the names of their weights


class Curvature(NamedTuple):
    """A batch as a layer sees it; a row is a sample or, in a convolution, a place in the image of a sample."""

    inputs: Tensor  # z (rows, weights of a unit)
    slopes: Tensor  # ∂E/∂a (rows, units), of the loss of each sample
    curvatures: Tensor  # ∂²E/∂a² (rows, units)
    samples: int

    def cpu(self) -> Curvature:
        """Return the same in memory that everything can read."""
        return Curvature(self.inputs.cpu(), self.slopes.cpu(), self.curvatures.cpu(), self.samples)


def require_known(weights: Sequence[NetworkTensor], method: str) -> None:
    """Raise a ValueError unless all weights are those of linear layers or of ordinary convolutions."""
    for tensor in weights:
        if _layer(tensor) is None:
            kind = type(tensor.places[0].module).__name__
            raise ValueError(
                f'"{tensor.name}" is the weight of {kind}: method "{method}" knows second derivatives of linear layers '
                "and of convolutions without groups only"
            )


def measured(
    weights: Sequence[NetworkTensor], model: nn.Module, aids: Aids, samples: int
) -> Iterator[dict[str, Curvature]]:
    """Yield what every layer sees of batches of training data, by the name of its weight; nothing without data."""
    if aids.losses is None:
        return
    generator = torch.Generator().manual_seed(0)
    layers = {tensor.name: layer for tensor in weights if (layer := _layer(tensor)) is not None}
    with _recording(model, layers) as seen:
        for loss in aids.losses(model, samples):
            outputs = [output for _, output in seen.values()]
            slopes = torch.autograd.grad(loss, outputs, create_graph=True)
            found = {}
            for name, slope in zip(seen, slopes, strict=True):
                inputs, output = seen[name]
                signs = torch.randint(0, 2, slope.shape, generator=generator).to(slope) * 2 - 1
                product = _product(slope, output, signs)
                rows, number = _rows(inputs, layers[name]), len(output)  # the loss of a batch is a mean
                found[name] = Curvature(
                    rows, number * _units(slope.detach(), rows), number * _units(signs * product, rows), number
                )
            yield found
            seen.clear()


def _product(slope: Tensor, output: Tensor, signs: Tensor) -> Tensor:
    """Return Hv, the derivative of ∂E/∂a · v by a."""
    if not slope.requires_grad:  # the loss is linear in it
        return torch.zeros_like(slope)
    (product,) = torch.autograd.grad((slope * signs).sum(), output, retain_graph=True, materialize_grads=True)
    return product


def _layer(tensor: NetworkTensor) -> nn.Linear | nn.Conv2d | None:
    for place in tensor.places:
        layer = place.module
        if isinstance(layer, nn.Linear):
            return layer
        if isinstance(layer, nn.Conv2d) and layer.groups == 1 and not isinstance(layer.padding, str):
            return layer
    return None


def _rows(inputs: Tensor, layer: nn.Linear | nn.Conv2d) -> Tensor:
    if isinstance(layer, nn.Linear):
        return inputs.detach().flatten(0, -2)
    patches = functional.unfold(inputs.detach(), layer.kernel_size, layer.dilation, layer.padding, layer.stride)  # type: ignore[arg-type]  # torch's stubs
    return patches.transpose(1, 2).flatten(0, 1)


def _units(outputs: Tensor, rows: Tensor) -> Tensor:
    """Return what belongs to the outputs of a layer with units last, row by row."""
    if outputs.dim() == 4:
        outputs = outputs.flatten(2).transpose(1, 2)
    return outputs.reshape(len(rows), -1)


@contextmanager
def _recording(
    model: nn.Module, layers: dict[str, nn.Linear | nn.Conv2d]
) -> Iterator[dict[str, tuple[Tensor, Tensor]]]:
    """Note what layers read and return, in evaluation mode."""
    seen: dict[str, tuple[Tensor, Tensor]] = {}

    def hook(name: str):  # type: ignore[no-untyped-def]  # torch's protocol of hooks
        def record(layer: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> Tensor:
            seen[name] = inputs[0], output
            return output.clone()  # what changes it in place must not change what is noted

        return record

    handles = [layer.register_forward_hook(hook(name)) for name, layer in layers.items()]
    was_training = model.training
    model.eval()
    try:
        yield seen
    finally:
        model.train(was_training)
        for handle in handles:
            handle.remove()
