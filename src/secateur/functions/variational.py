"""Gaussian noise on every weight, of learned size: sparse variational dropout."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from secateur.functions.scored import ScoredFunction

_LARGEST = 8.0  # of |log α|, which has no effect beyond
_K1, _K2, _K3 = 0.63576, 1.87320, 1.48695  # of the approximate divergence


class VariationalDropout(ScoredFunction):
    """A layer reads w with noise of variance σ²; weights of α = σ² ÷ w² above a bound are noise, and are not kept.

    The layer reads the mean w. While it trains, `add_noise` adds to its outputs what the noise of the weights adds to
    them, drawn for every output alone, which has much less variance than noise that a whole batch shares (the local
    reparametrisation trick).
    """

    strength: Tensor  # of the penalty: 1 ÷ training images in the end, nothing at the start

    def __init__(self, weight: Tensor, log_variance: float, bound: float) -> None:
        super().__init__()
        self.bound = bound
        self.log_variance = nn.Parameter(torch.full_like(weight, log_variance))
        self.register_buffer("strength", weight.new_zeros(()))

    def log_alpha(self, weight: Tensor) -> Tensor:
        """Return log α = log σ² − log w²."""
        tiny = torch.finfo(weight.dtype).tiny
        return (self.log_variance - torch.log(weight.square() + tiny)).clamp(-_LARGEST, _LARGEST)

    def forward(self, weight: Tensor) -> Tensor:
        """Return the weight; outside of training only where it is not noise."""
        return weight if self.training else torch.where(self.log_alpha(weight) < self.bound, weight, 0.0)

    def penalty(self, weight: Tensor) -> Tensor:
        """Return the divergence from the log-uniform prior, −(k₁·σ(k₂ + k₃·log α) − ½·log(1 + 1/α) − k₁) a weight."""
        log_alpha = self.log_alpha(weight)
        negative = _K1 * torch.sigmoid(_K2 + _K3 * log_alpha) - 0.5 * nn.functional.softplus(-log_alpha) - _K1
        return -self.strength * negative.sum()

    def scores(self, weight: Tensor) -> Tensor:
        """Return by how much log α is below the bound, without its limits."""
        log_size = torch.log(weight.square() + torch.finfo(weight.dtype).tiny)
        return log_size - self.log_variance.detach() + self.bound


def add_noise(layer: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> Tensor:
    """Add noise of variance (layer of σ²)(x²) to the output of a layer while it trains: a forward hook."""
    function = _function(layer)
    if not layer.training or function is None:
        return output
    variance = torch.exp(function.log_variance)
    squared = inputs[0].square()
    if isinstance(layer, nn.Linear):
        spread = nn.functional.linear(squared, variance)
    else:
        spread = layer._conv_forward(squared, variance, None)  # type: ignore[operator]  # of torch's convolutions
    return output + torch.sqrt(spread + 1e-12) * torch.randn_like(output)


def _function(layer: nn.Module) -> VariationalDropout | None:
    chains: Any = getattr(layer, "parametrizations", {})
    return next((each for each in chains["weight"] if isinstance(each, VariationalDropout)), None) if chains else None
