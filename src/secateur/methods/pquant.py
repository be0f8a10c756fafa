"""DST and AutoSparse as PQuantML has them (github.com/cern-nextgen/PQuantML), rivals from outside under our protocol.

DST (Liu et al. 2020, arXiv 2005.06870): a layer reads w · S(|w| − t) with the unit step S, a long-tailed gradient in
place of that of S, and α · Σ exp(−t) in the loss. AutoSparse (Kundu et al. 2023, arXiv 2304.06941) reads

    sign(w) · max(|w| − σ(t), 0)    with a gradient of α instead of 0 where |w| < σ(t)

and α falls from epoch to epoch. Thresholds, masks, gradients, losses and settings are PQuantML's, from its `dst_config`
and `autosparse_config`; its quantisation is not used, and layers, optimizer and stages are ours.

With a ratio, DST's α is steered as for our own `dst`; AutoSparse has no term of the loss. The final cut keeps the
N/ratio largest |w| − t or |w| − σ(t), or those above zero without a ratio. A share of the epochs after it is ours.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, cast

import torch
from torch import Tensor, nn

from secateur.functions.outside import OutsideFunction
from secateur.methods.learned import Learned
from secateur.methods.rivals import import_rival, require_rival
from secateur.weights.tensors import NetworkTensor


@dataclass(frozen=True, kw_only=True)
class _Pquant(Learned[OutsideFunction]):
    """Learn thresholds by a pruning layer of PQuantML."""

    package: ClassVar[str] = "pquant"
    term: ClassVar[str] = "thresholds"

    def check(self, model: nn.Module) -> None:
        """Raise a ValueError if PQuantML is not installed, or if the ratio leaves less than a weight a layer."""
        require_rival(self)
        super().check(model)

    @torch.no_grad()
    def move(self, functions: Sequence[OutsideFunction], done: int, total: int, epochs: int) -> None:
        """Tell the layers that an epoch has ended."""
        steps = max(total // max(epochs, 1), 1)
        if done % steps == 0:
            for function in functions:
                function.module.post_epoch_function(done // steps - 1, epochs)  # type: ignore[operator]

    def _built(self, module: str, kind: str, settings: str, shape: tuple[int, ...]) -> Any:
        """Return a pruning layer of PQuantML for a weight, past its pretraining."""
        layers = import_rival(self, f"pquant.core.torch.pruning_methods.{module}")
        config = getattr(import_rival(self, "pquant"), settings)()
        built = getattr(layers, kind)(config, "linear" if len(shape) == 2 else "conv")
        built.build(shape)
        built.post_pre_train_function()
        return built


@dataclass(frozen=True, kw_only=True)
class PquantDst(_Pquant):
    """Learn hard thresholds with the weights (DST by PQuantML)."""

    name: ClassVar[str] = "pquant-dst"

    @property
    def strength(self) -> float:
        """1: PQuantML multiplies by α itself."""
        return 1.0

    def function(self, tensor: NetworkTensor) -> OutsideFunction:
        """Return PQuantML's DST."""
        built = self._built("dst", "DST", "dst_config", tuple(tensor.stored.shape))
        return OutsideFunction(built, _above_threshold, _additional_loss)


@dataclass(frozen=True, kw_only=True)
class PquantAutoSparse(_Pquant):
    """Learn soft thresholds with the weights (AutoSparse by PQuantML)."""

    name: ClassVar[str] = "pquant-autosparse"

    @property
    def strength(self) -> float:
        """0: AutoSparse has no term of the loss."""
        return 0.0

    def function(self, tensor: NetworkTensor) -> OutsideFunction:
        """Return PQuantML's AutoSparse."""
        built = self._built("autosparse", "AutoSparse", "autosparse_config", tuple(tensor.stored.shape))
        return OutsideFunction(built, _above_soft_threshold, shrinks=True)


def _additional_loss(module: Any) -> Tensor:
    return cast("Tensor", module.calculate_additional_loss())


def _above_threshold(module: Any, weight: Tensor) -> Tensor:
    return weight.flatten(1).abs() - cast("Tensor", module.threshold)


def _above_soft_threshold(module: Any, weight: Tensor) -> Tensor:
    return weight.flatten(1).abs() - cast("Tensor", module.threshold.sigmoid())
