"""Molchanov et al. 2017, "Variational Dropout Sparsifies Deep Neural Networks" (arXiv 1701.05369).

Every weight is a Gaussian of mean w and variance σ² = α·w² of its own. The variational bound for N images is

    L + 1/N · Σ KL(α)    with    −KL ≈ k₁·σ(k₂ + k₃·log α) − ½·log(1 + 1/α) − k₁      (equation 14)

which drives α up where the data allow it; a weight with log α > 3 is noise, and is cut. w and log σ² are learned, and
noise is drawn for outputs, not for weights. The weight of KL rises from zero. Published: LeNet-300-100 68× at 1.92 %
error, LeNet-5 280× at 0.75 %, a VGG on CIFAR-10 65×.

With a ratio, the weight of KL is raised or lowered so that about N/ratio weights are below the bound, and the final cut
keeps the N/ratio weights with the lowest α. What is left is fine-tuned without noise. The paper trains by Adam for 200
epochs; under SGD log σ², whose gradient is of the order of 1/N, needs a rate some hundred times that of the weights.
Linear and convolution layers only.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from typing import Annotated, ClassVar

from torch import nn
from torch.nn.modules.conv import _ConvNd
from typing_extensions import Doc

from secateur.functions.variational import VariationalDropout, add_noise
from secateur.methods.targeted import Selecting, cut_and_fine_tune, read_through, steered
from secateur.train.objective import penalty
from secateur.train.recipe import Recipe
from secateur.train.stage import Stage
from secateur.weights.tensors import TRANSPOSED_CONVOLUTIONS, NetworkTensor

_RATES = {"sgd": 300.0, "adam": 5.0}  # of log σ² ÷ learning rate of weights


@dataclass(frozen=True, kw_only=True)
class SparseVariationalDropout(Selecting):
    """Learn how much noise every weight bears, and cut those that are mostly noise."""

    name: ClassVar[str] = "sparse-vd"

    bound: Annotated[float, Doc("log α above which a weight is cut; a ratio takes its place")] = 3.0
    log_variance: Annotated[float, Doc("log σ² at the start")] = -10.0
    warm_up: Annotated[float, Doc("share of the training in which the weight of KL rises to 1")] = 0.3

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.warm_up <= 1:
            raise ValueError(f"warm_up must lie in (0, 1], got {self.warm_up}")
        for name, value in (("bound", self.bound), ("log_variance", self.log_variance)):
            if not -30 < value < 30:
                raise ValueError(f"{name} must lie between -30 and 30, got {value}")

    def stages(self, model: nn.Module, recipe: Recipe) -> Generator[Stage, None, nn.Module]:
        """Yield the network with noise, then what is left of it without, and return that."""
        train, fine_tuning = recipe.split(self.fine_tune)
        found = read_through(model, self._function)
        hooks = [place.module.register_forward_hook(add_noise) for tensor, _ in found for place in tensor.places]

        steer = steered(found, self.ratio)

        def between(done: int, total: int) -> None:
            steer(done, total)
            images = total / max(train.epochs, 1) * recipe.batch_size
            for _, function in found:
                function.strength.fill_(min(done / (self.warm_up * total), 1.0) / images * float(function.pressure))

        yield Stage(
            name="train",
            model=model,
            recipe=train,
            rho=_RATES[recipe.optimizer],
            between=between,
            terms={"divergence": lambda model: penalty(model, 1.0)},
            target=self.target,
        )
        for hook in hooks:
            hook.remove()
        return (yield from cut_and_fine_tune(model, self.ratio, fine_tuning))

    def _function(self, tensor: NetworkTensor) -> VariationalDropout:
        """Return the noise of a tensor; refuse one whose layer we do not know how to add noise to."""
        for place in tensor.places:
            if not isinstance(place.module, nn.Linear | _ConvNd) or isinstance(place.module, TRANSPOSED_CONVOLUTIONS):
                raise ValueError(
                    f'method "{self.name}" adds noise to linear and convolution layers, and "{tensor.name}" is one of '
                    f"{type(place.module).__name__}"
                )
        return VariationalDropout(tensor.stored.detach(), self.log_variance, self.bound)
