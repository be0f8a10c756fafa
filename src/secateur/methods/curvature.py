"""Second derivatives of the loss by the outputs of layers, as Optimal Brain Damage and Optimal Brain Surgeon need them.

A layer computes a = W·z + b, where a convolution does so at every place of an image, and the network returns scores o.
Where all layers in between are piecewise linear (ReLU, max-pooling), the Hessian of a sample follows from that by o,

    ∂²E / ∂w_ij ∂w_kl = E[g_i·z_j · g_k·z_l]        with   g = ∂(s·o)/∂a   and   E[s·sᵀ] = ∂²E/∂o²

summed over places before the product. For the cross-entropy ∂²E/∂o² = diag(p) − p·pᵀ with p = softmax(o), which is that
of s = √p ⊙ v − p·(√p·v) with random signs v: one backward pass gives the g of all layers. Other layers in between would
add what LeCun et al. and Hassibi & Stork neglect, too. For any other loss s is ∂E/∂o itself, a usual substitute.

g² is never negative, and its noise is that of the few scores of a sample.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor, nn
from torch.nn import functional

from secateur.methods.method import Aids
from secateur.train.task import scores_of
from secateur.weights.tensors import NetworkTensor

_Seen: TypeAlias = dict[str, tuple[Tensor, Tensor]]  # inputs and outputs of layers, by the names of their weights

_ROUNDING = 1e-4  # of a sum of slopes that are at most 1


class Curvature(NamedTuple):
    """A batch as a layer sees it; a row is a sample or, in a convolution, a place in the image of a sample."""

    inputs: Tensor  # z (rows, weights of a unit)
    slopes: Tensor  # g (rows, units), of each sample: the mean of g² is ∂²E/∂a²
    samples: int

    def cpu(self) -> Curvature:
        """Return the same in memory that everything can read."""
        return Curvature(self.inputs.cpu(), self.slopes.cpu(), self.samples)


def require_known(weights: Sequence[NetworkTensor], method: str) -> None:
    """Raise a ValueError unless all weights are those of linear layers or of ordinary convolutions."""
    for tensor in weights:
        if _layer(tensor) is None:
            kind = type(tensor.places[0].module).__name__
            raise ValueError(
                f'"{tensor.name}" is the weight of {kind}: method "{method}" knows second derivatives of linear layers '
                "and of ordinary convolutions without groups only"
            )


def measured(
    weights: Sequence[NetworkTensor], model: nn.Module, aids: Aids, samples: int
) -> Iterator[dict[str, Curvature]]:
    """Yield what every layer sees of batches of training data, by the name of its weight; nothing without data."""
    if aids.losses is None:
        return
    generator = torch.Generator().manual_seed(0)
    layers = {tensor.name: layer for tensor in weights if (layer := _layer(tensor)) is not None}
    with _recording(model, layers) as (seen, returned):
        for loss in aids.losses(model, samples):
            scores, outputs = scores_of(returned.pop()), [output for _, output in seen.values()]
            (by_scores,) = torch.autograd.grad(loss * len(scores), scores, retain_graph=True)  # it is a mean of samples
            slopes = torch.autograd.grad(scores, outputs, _root(scores.detach(), by_scores, generator))
            found = {}
            for (name, (inputs, _)), slope in zip(seen.items(), slopes, strict=True):
                rows = _rows(inputs, layers[name])
                found[name] = Curvature(rows, _units(slope, rows), len(scores))
            yield found
            seen.clear()
            returned.clear()


def _root(scores: Tensor, by_scores: Tensor, generator: torch.Generator) -> Tensor:
    """Return s, of which E[s·sᵀ] is the Hessian of each sample's loss by its scores."""
    if scores.dim() < 2 or by_scores.sum(1).abs().max() > _ROUNDING:
        return by_scores  # no softmax, whose loss stays the same if all scores grow by the same
    signs = torch.randint(0, 2, scores.shape, generator=generator).to(scores) * 2 - 1
    shares = scores.softmax(1)
    return shares.sqrt() * signs - shares * (shares.sqrt() * signs).sum(1, keepdim=True)


def _layer(tensor: NetworkTensor) -> nn.Linear | nn.Conv2d | None:
    for place in tensor.places:
        layer = place.module
        if isinstance(layer, nn.Linear):
            return layer
        if isinstance(layer, nn.Conv2d) and layer.groups == 1 and _has_usual_places(layer):
            return layer
    return None


def _has_usual_places(layer: nn.Conv2d) -> bool:
    """Return whether a convolution sees what `unfold` does: a subclass may see other places."""
    is_usual = type(layer).forward is nn.Conv2d.forward
    return is_usual and layer.padding_mode == "zeros" and not isinstance(layer.padding, str)


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
def _recording(model: nn.Module, layers: dict[str, nn.Linear | nn.Conv2d]) -> Iterator[tuple[_Seen, list[Any]]]:
    """Note what layers read and return, and what the network returns, in evaluation mode."""
    seen: _Seen = {}
    returned: list[Any] = []

    def hook(name: str):  # type: ignore[no-untyped-def]  # torch's protocol of hooks
        def record(layer: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> Tensor:
            seen[name] = inputs[0], output
            return output.clone()  # what changes it in place must not change what is noted

        return record

    handles = [layer.register_forward_hook(hook(name)) for name, layer in layers.items()]
    handles.append(model.register_forward_hook(lambda model, inputs, output: returned.append(output)))
    was_training = model.training
    model.eval()
    try:
        yield seen, returned
    finally:
        model.train(was_training)
        for handle in handles:
            handle.remove()
