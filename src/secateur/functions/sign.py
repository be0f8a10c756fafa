"""Signs: a layer reads ±scale in place of each weight (BinaryConnect, BinaryNet, Binary-Weight-Networks, XNOR-Net)."""

from __future__ import annotations

import torch
from torch import Tensor

from secateur.weights.function import WeightFunction

_SCALE_BITS = 32


class Sign(WeightFunction):
    """A layer reads scale · sign(w); the stored weight is its full-precision shadow, which training moves.

    With a number H as scale (BinaryConnect), w is clipped to [−H, H] after every step. Without one, the scale of each
    filter is α = mean|w| of its weights, of all ±α the nearest to them (Binary-Weight-Networks), and w is clipped to
    [−1, 1]. The gradient of the sign passes straight through to a w that is not clipped, and that of α exactly.

    A stochastic sign is drawn in training: +1 with probability (w/H + 1) / 2, clipped to [0, 1]. What is evaluated and
    kept is always the deterministic one. The sign of zero is +1.
    """

    def __init__(self, scale: float | None, *, axis: int = 0, is_stochastic: bool = False) -> None:
        super().__init__()
        self.scale, self.axis, self.is_stochastic = scale, axis, is_stochastic

    @property
    def bound(self) -> float:
        """What stored weights are clipped to."""
        return 1.0 if self.scale is None else self.scale

    def forward(self, weight: Tensor) -> Tensor:
        """Return scale · sign(w)."""
        clipped = weight.clamp(-self.bound, self.bound) / self.bound
        signs = self._signs(weight.detach())
        return self.scales(weight) * (clipped + (signs - clipped).detach())

    def scales(self, weight: Tensor) -> Tensor | float:
        """Return H, or α of every filter in a shape that broadcasts over the weight."""
        if self.scale is not None:
            return self.scale
        return weight.abs().mean([dim for dim in range(weight.dim()) if dim != self.axis], keepdim=True)

    def _signs(self, weight: Tensor) -> Tensor:
        if self.is_stochastic and self.training:
            return torch.where(torch.rand_like(weight) < (weight / self.bound + 1) / 2, 1.0, -1.0).to(weight)
        return torch.where(weight < 0, -1.0, 1.0).to(weight)

    def settle(self, weight: Tensor) -> Tensor:
        """Return ±scale by the deterministic sign."""
        with torch.no_grad():
            settled: Tensor = self.scales(weight) * torch.where(weight < 0, -1.0, 1.0).to(weight)
        return settled

    def after_step(self, weight: Tensor) -> None:
        """Clip the stored weight: beyond the bound it would not come back for long."""
        weight.clamp_(-self.bound, self.bound)

    def bits(self, weight: Tensor) -> Tensor:
        """Return a bit for each sign, and the bits of the scales."""
        scales = 1 if self.scale is not None else weight.shape[self.axis]
        return torch.tensor(float(weight.numel() + _SCALE_BITS * scales))

    def extra_repr(self) -> str:
        """Show the scale and whether signs are drawn."""
        return f"scale={'mean' if self.scale is None else f'{self.scale:.3g}'}, is_stochastic={self.is_stochastic}"
