"""PDP: Cho et al. 2023, "PDP: Parameter-free Differentiable Pruning is All You Need" (arXiv 2305.11203).

No parameter is added. The mask of a weight is the softmax of its square and of a threshold's,

    m(w) = exp(w²/τ) ÷ (exp(w²/τ) + exp(t²/τ)) = σ((w² − t²) / τ),    a layer reads m(w) · w

where t lies half-way between the smallest |w| that is to be kept and the largest that is not. The gradient passes
through m, so that weights on either side of t can change sides. After some dense epochs the number of zeros grows
linearly to its target, and in the end m is cut to 0 and 1. Published: MobileNet-v1 on ImageNet 68.2 % top-1 with 86.6 %
zeros, BERT on MNLI 83.1 % with 90 %; nothing for the LeNets.

The paper ranks the weights of the whole network once, after the dense epochs, and fixes the number of each layer. Here
they are ranked again wherever t is set, every ten steps: at 60× after few epochs, layers of few inputs kept what was
left of their random start. The ramp ends half-way instead of after four fifths: where 2 % are kept instead of the
paper's 10 %, the end of a linear ramp does nearly all of the work. A share of the epochs after the cut is ours.
"""

from __future__ import annotations

import math
from collections.abc import Generator
from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch
from torch import nn
from typing_extensions import Doc

from secateur.functions.soft_mask import SoftMask
from secateur.methods.targeted import Targeted, cut_and_fine_tune, dense_first, read_through, require_parts
from secateur.train.recipe import Recipe
from secateur.train.stage import Stage

_EVERY = 10  # steps between two thresholds


@dataclass(frozen=True, kw_only=True)
class Pdp(Targeted):
    """Multiply weights by a mask that falls smoothly below a threshold, which rises while the network trains."""

    name: ClassVar[str] = "pdp"

    temperature: Annotated[float, Doc("τ, how soft the mask is, in units of w²")] = 1e-4
    dense: Annotated[float, Doc("share of the epochs that train the dense network first")] = 0.2
    ramp: Annotated[float, Doc("share of the epochs with soft masks after which no further weight is cut")] = 0.5
    fine_tune: Annotated[float, Doc("share of the epochs after the cut, with every zero kept")] = 0.3

    def __post_init__(self) -> None:
        super().__post_init__()
        require_parts(self.dense, self.fine_tune)
        for name, value in (("temperature", self.temperature), ("ramp", self.ramp)):
            if not 0 < value <= 1:
                raise ValueError(f"{name} must lie in (0, 1], got {value}")

    def stages(self, model: nn.Module, recipe: Recipe) -> Generator[Stage, None, nn.Module]:
        """Yield the dense network, the same behind soft masks, then what is left of it, and return that."""
        pruning, fine_tuning = yield from dense_first(model, recipe, self.dense, self.fine_tune)
        found = read_through(model, lambda tensor: SoftMask(tensor.stored.detach(), self.temperature))
        weights = sum(tensor.stored.numel() for tensor, _ in found)

        def between(done: int, total: int) -> None:
            if done % _EVERY and done != total:
                return
            progress = min(done / (self.ramp * total), 1.0)
            number = math.floor(weights * (1 - progress * (1 - 1 / self.ratio)))
            if 0 < number < weights:
                sizes = torch.cat([tensor.stored.detach().abs().flatten() for tensor, _ in found])
                threshold = sizes.topk(number + 1).values[-2:].mean()
                for tensor, function in found:
                    function.set_threshold(threshold, tensor.stored.detach())

        yield Stage(name="prune", model=model, recipe=pruning, between=between, target={"ratio": self.ratio})
        return (yield from cut_and_fine_tune(model, self.ratio, fine_tuning))
