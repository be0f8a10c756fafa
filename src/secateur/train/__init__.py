"""Step 2, train: the paper's objective for any loop, and a complete small loop of our own."""

from secateur.threshold import ParameterGroup
from secateur.train.objective import parameter_groups, penalty

__all__ = ["ParameterGroup", "parameter_groups", "penalty"]
