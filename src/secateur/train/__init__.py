"""Step 2, train: the paper's objective for any loop, and a complete small loop of our own."""

from secateur.train.objective import parameter_groups, penalty
from secateur.train.recipe import Recipe
from secateur.train.stage import Stage
from secateur.weights.function import ParameterGroup

__all__ = ["ParameterGroup", "Recipe", "Stage", "parameter_groups", "penalty"]
