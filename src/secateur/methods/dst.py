"""DST: Liu et al. 2020, "Dynamic Sparse Training" (arXiv 2005.06870): trainable masked layers.

A layer reads w · S(|w| − t) with the unit step S and a threshold t for every output unit, trained with the weights. The
gradient of S is replaced by a long-tailed one, so that weights that are not read are trained as well:

    dS/dx ≈ 2 − 4|x| for |x| ≤ 0.4,    0.4 for 0.4 < |x| ≤ 1,    0 beyond

The loss is L + α · Σ exp(−t). Thresholds of a layer that keeps less than 1 % go back to zero. α decides how many
weights are left. A reproduction that follows the paper reports LeNet-300-100 with 2.5 % of its weights at 2.1 % error
and LeNet-5 with 1.5 % at 0.95 %.

With a ratio, α is raised or lowered while the network trains, so that about N/ratio weights are left, and the final cut
keeps the N/ratio largest |w| − t. A layer then goes back at a tenth of 1/ratio, if that is less than 1 %. α is that of
the authors for the LeNets, and thresholds have the weights' learning rate. A share of the epochs after the cut is ours.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

from typing_extensions import Doc

from secateur.functions.row_threshold import RowThreshold
from secateur.methods.learned import Learned
from secateur.sibling import threshold_shape
from secateur.train.recipe import require_not_negative
from secateur.weights.tensors import NetworkTensor

_LEAST = 0.01  # share of a layer's weights below which its thresholds begin anew


@dataclass(frozen=True, kw_only=True)
class Dst(Learned[RowThreshold]):
    """Learn a hard threshold for every output unit together with the weights."""

    name: ClassVar[str] = "dst"
    term: ClassVar[str] = "thresholds"

    alpha: Annotated[float, Doc("α, the weight of Σ exp(−t) in the loss")] = 5e-4

    def __post_init__(self) -> None:
        super().__post_init__()
        require_not_negative(alpha=self.alpha)

    @property
    def strength(self) -> float:
        """α."""
        return self.alpha

    def function(self, tensor: NetworkTensor) -> RowThreshold:
        """Return the thresholds of a layer's output units."""
        least = _LEAST if self.ratio is None else min(_LEAST, 0.1 / self.ratio)
        return RowThreshold(tensor.stored.detach(), threshold_shape(tensor, "filter"), least)
