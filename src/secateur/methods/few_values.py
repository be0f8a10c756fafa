"""Few values a layer: Deep Compression's weight sharing (Han et al. 2016, arXiv 1510.00149), or a grid with a step.

The second method of a pipeline, after one that prunes. Deep Compression's third stage, Huffman coding, changes no
weight: it is a matter of how the file is written.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass, replace
from typing import Annotated, ClassVar, Literal

from torch import nn
from torch.nn.modules.conv import _ConvNd
from typing_extensions import Doc

from secateur.graph.hidden_units import without_dead_units
from secateur.methods.method import Method
from secateur.nearest import require_choices
from secateur.quantize import LayerRules, QuantizeConfig, coded_bits, freeze, quantize, require_levels
from secateur.train.recipe import Recipe, require_not_negative, require_whole
from secateur.train.stage import Stage


@dataclass(frozen=True, kw_only=True)
class FewValues(Method):
    """Drop dead units, let every layer share a few values, and train these; defaults are Deep Compression's."""

    name: ClassVar[str] = "few-values"
    leaves: ClassVar[str] = "shared"
    leaves_few_values: ClassVar[bool] = True
    needs_trained: ClassVar[bool] = True

    quantizer: Annotated[
        Literal["shared", "uniform"], Doc("values shared by k-means, or a grid with a learned step")
    ] = "shared"
    levels: Annotated[int, Doc("values besides zero per linear layer (uniform: the largest level)")] = 32
    conv_levels: Annotated[int, Doc("the same for convolutions")] = 256
    bias_levels: Annotated[int | None, Doc("values per bias vector (none: biases stay as they are)")] = None
    quantize_epochs: Annotated[int, Doc("passes over the training images that train the shared values")] = 5
    quantize_lr: Annotated[float, Doc("learning rate of the shared values and steps")] = 1e-3
    lambda_rate: Annotated[float, Doc("weight of the estimated bits in the loss (uniform): what a bit may cost")] = 0.0

    def __post_init__(self) -> None:
        require_choices(self, quantizer=("shared", "uniform"))
        for name in ("levels", "conv_levels"):
            require_levels(name, getattr(self, name))
        self._rule(self.levels)  # which checks the rest
        if self.lambda_rate and self.quantizer != "uniform":
            raise ValueError(f'lambda_rate needs quantizer="uniform": levels of "{self.quantizer}" have no gradient')
        require_not_negative(lambda_rate=self.lambda_rate, quantize_lr=self.quantize_lr)
        require_whole(quantize_epochs=self.quantize_epochs)

    def _rule(self, levels: int) -> QuantizeConfig:
        return QuantizeConfig(method=self.quantizer, levels=levels, bias_levels=self.bias_levels)

    def stages(self, model: nn.Module, recipe: Recipe) -> Generator[Stage, None, nn.Module]:
        """Yield the network whose shared values are to be trained, and return it with exactly these values."""
        model = without_dead_units(model)
        present = {type(module) for module in model.modules() if isinstance(module, _ConvNd)}
        rules: LayerRules = {kind: self._rule(self.conv_levels) for kind in present}
        quantize(model, self._rule(self.levels), layers=rules)
        by_adam = replace(recipe, optimizer="adam", nesterov=False, lr=self.quantize_lr, schedule="cosine")
        yield Stage(
            name="quantize",
            model=model,
            recipe=replace(by_adam, epochs=self.quantize_epochs),
            phase="quantize",
            terms={"rate": lambda model: self.lambda_rate * coded_bits(model)} if self.lambda_rate else {},
        )
        return freeze(model, half_codebook=True)

    def epochs(self, recipe: Recipe) -> int:
        """Return the epochs of the shared values."""
        return self.quantize_epochs
