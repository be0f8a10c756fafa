"""What the methods that train weights of one bit have in common."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Generator
from dataclasses import dataclass, replace
from typing import Annotated, ClassVar

from torch import nn
from typing_extensions import Doc

from secateur.functions.inputs import LayerInputs, attach_inputs
from secateur.functions.sign import Sign
from secateur.methods.method import Method
from secateur.train.recipe import Recipe
from secateur.train.stage import Stage
from secateur.weights.reading import attach, settle
from secateur.weights.tensors import NetworkTensor, filter_axis, parameters


@dataclass(frozen=True, kw_only=True)
class Binary(Method):
    """Train a network whose weights are read as signs, and keep these; weight decay would only make signs flip."""

    leaves: ClassVar[str] = "signs"
    leaves_few_values: ClassVar[bool] = True

    keep_first: Annotated[bool, Doc("leave the first layer as it is")] = False
    keep_last: Annotated[bool, Doc("leave the last layer as it is")] = False

    @abstractmethod
    def sign(self, tensor: NetworkTensor) -> Sign:
        """Return what a weight is read through."""

    def inputs(self, layer: nn.Linear | nn.Conv2d, *, is_first: bool) -> LayerInputs | None:
        """Return what the inputs of a layer of signs go through; None for nothing."""
        return None

    def stages(self, model: nn.Module, recipe: Recipe) -> Generator[Stage, None, nn.Module]:
        """Yield the network once, with signs for weights, and return it with these for good."""
        weights = [tensor for tensor in parameters(model) if tensor.is_weight]
        chosen = weights[int(self.keep_first) : len(weights) - int(self.keep_last)]
        if not chosen:
            raise ValueError(
                f'{type(model).__name__} has {len(weights)} layers with weights, and method "{self.name}" leaves the '
                "first and the last as they are: set keep_first or keep_last to false"
            )
        for tensor in chosen:
            layer = tensor.places[0].module
            if isinstance(layer, nn.Linear | nn.Conv2d):
                function = self.inputs(layer, is_first=tensor is weights[0])
                if function is not None:
                    attach_inputs(layer, function)
            attach(tensor, self.sign(tensor))
        yield Stage(name="train", model=model, recipe=replace(recipe, lambda_wd=0.0))
        return settle(model)

    def epochs(self, recipe: Recipe) -> int:
        """Return the recipe's epochs: there is no other stage."""
        return recipe.epochs


def glorot(tensor: NetworkTensor) -> float:
    """Return √(1.5 / (inputs + outputs)) of a layer, BinaryConnect's H where no batch normalisation follows it."""
    weight = tensor.stored
    axis = filter_axis(tensor.places[0])
    outputs = weight.shape[axis]
    places = weight[0, 0].numel()
    return float((1.5 / (weight.numel() / outputs + outputs * places)) ** 0.5)
