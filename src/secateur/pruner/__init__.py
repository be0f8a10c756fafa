"""A budget in the paper's own terms; the formulas are at the head of `secateur.pruner.controller`."""

from secateur.pruner.controller import FIXED, RAMP, Pruner
from secateur.pruner.goals import final_ratio

__all__ = ["FIXED", "RAMP", "Pruner", "final_ratio"]
