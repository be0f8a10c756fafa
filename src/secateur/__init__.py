"""Shrink PyTorch networks while they train: every layer learns its own pruning threshold."""

from secateur.encode import FormatError, load, load_state, save
from secateur.prune import keep_zeros, prune
from secateur.quantize import QuantizeConfig, coded_bits, freeze, quantize
from secateur.run import compile_sparse, load_sparse
from secateur.sibling import SiblingConfig, Target, build_sibling, targets
from secateur.theta import hard_theta, theta, theta_derivatives, theta_inverse
from secateur.threshold import LearnedThreshold, learned_thresholds
from secateur.train import parameter_groups, penalty

__all__ = [
    "FormatError",
    "LearnedThreshold",
    "QuantizeConfig",
    "SiblingConfig",
    "Target",
    "build_sibling",
    "coded_bits",
    "compile_sparse",
    "freeze",
    "hard_theta",
    "keep_zeros",
    "learned_thresholds",
    "load",
    "load_sparse",
    "load_state",
    "parameter_groups",
    "penalty",
    "prune",
    "quantize",
    "save",
    "targets",
    "theta",
    "theta_derivatives",
    "theta_inverse",
]
