"""Shrink PyTorch networks while they train: every layer learns its own pruning threshold."""

from secateur.prune import keep_zeros, prune
from secateur.sibling import LearnedThreshold, SiblingConfig, Target, build_sibling, learned_thresholds, targets
from secateur.theta import hard_theta, theta, theta_derivatives, theta_inverse
from secateur.train import parameter_groups, penalty

__all__ = [
    "LearnedThreshold",
    "SiblingConfig",
    "Target",
    "build_sibling",
    "hard_theta",
    "keep_zeros",
    "learned_thresholds",
    "parameter_groups",
    "penalty",
    "prune",
    "targets",
    "theta",
    "theta_derivatives",
    "theta_inverse",
]
