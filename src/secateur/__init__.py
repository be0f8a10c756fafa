"""Shrink PyTorch networks while they train: every layer learns its own pruning threshold."""

from secateur.prune import keep_zeros, prune
from secateur.quantize import QuantizeConfig, coded_bits, freeze, quantize
from secateur.sibling import LearnedThreshold, SiblingConfig, Target, build_sibling, learned_thresholds, targets
from secateur.theta import hard_theta, theta, theta_derivatives, theta_inverse
from secateur.train import parameter_groups, penalty

__all__ = [
    "LearnedThreshold",
    "QuantizeConfig",
    "SiblingConfig",
    "Target",
    "build_sibling",
    "coded_bits",
    "freeze",
    "hard_theta",
    "keep_zeros",
    "learned_thresholds",
    "parameter_groups",
    "penalty",
    "prune",
    "quantize",
    "targets",
    "theta",
    "theta_derivatives",
    "theta_inverse",
]
