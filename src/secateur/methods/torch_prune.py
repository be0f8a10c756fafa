"""PyTorch's own `torch.nn.utils.prune`: global magnitude pruning, iterated, a rival from outside under our protocol.

Train, and then in rounds of equal length let `global_unstructured` mask the smallest weights of the whole network and
train the others, as PyTorch's tutorial and Han et al. 2015 do. The masks, their forward hooks and the choice of weights
are PyTorch's. After round r of R a share ratio^(−r/R) of the weights is left. Nothing keeps a layer from being emptied.
"""

from __future__ import annotations

import math
from collections.abc import Generator
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Annotated, ClassVar

from torch import nn
from torch.nn.utils import prune
from typing_extensions import Doc

from secateur.methods.targeted import Targeted
from secateur.train.recipe import Recipe, require_share, require_whole
from secateur.train.stage import Stage
from secateur.weights.tensors import parameters


@dataclass(frozen=True, kw_only=True)
class TorchPrune(Targeted):
    """Mask the smallest weights in rounds with torch.nn.utils.prune, and train the others in between."""

    name: ClassVar[str] = "torch-prune"
    trains_dense: ClassVar[bool] = True

    rounds: Annotated[int, Doc("how often weights are masked and the others trained")] = 4
    retrain: Annotated[float, Doc("share of the epochs after the first mask, divided among the rounds")] = 0.5

    def __post_init__(self) -> None:
        super().__post_init__()
        require_whole(least=1, rounds=self.rounds)
        require_share(retrain=self.retrain)

    def stages(self, model: nn.Module, recipe: Recipe) -> Generator[Stage, None, nn.Module]:
        """Yield the dense network, then in every round what is left of it, and return that."""
        train, retrain = recipe.split(self.retrain)
        yield Stage(name="train", model=model, recipe=train, forms=lambda: {"dense": model})
        places = [tensor.places[0] for tensor in parameters(model) if tensor.is_weight]
        weights = [(place.module, place.name) for place in places]
        orders = {module: list(module._parameters) for module, _ in weights}
        total = alive = sum(place.read().numel() for place in places)
        bounds = [round(part * retrain.epochs / self.rounds) for part in range(self.rounds + 1)]
        for number, (begin, end) in enumerate(pairwise(bounds), start=1):
            left = max(1, math.floor(total / self.ratio ** (number / self.rounds)))
            prune.global_unstructured(weights, pruning_method=prune.L1Unstructured, amount=alive - left)
            alive = left
            yield Stage(
                name=f"round-{number}",
                model=model,
                recipe=replace(retrain, epochs=end - begin),
                phase="fine-tune",
                order=number,
            )
        for module, name in weights:
            prune.remove(module, name)
            getattr(module, name).data.add_(0.0)  # a negative weight times its mask is −0, which a file would store
        for module, order in orders.items():  # it puts the weight behind the bias
            for name in order:
                module._parameters[name] = module._parameters.pop(name)
        return model
