"""SNIP: the sensitivity of a connection is the gradient by a factor of 1, collected without moving a weight."""

import pytest
import torch
from torch import nn

from secateur.functions.sensitivity import ConnectionSensitivity
from secateur.measure import count
from secateur.methods.snip import Snip
from secateur.train.recipe import Recipe
from secateur.weights.function import after_step
from secateur.weights.tensors import parameters


def test_scores_are_the_gradients_by_a_factor_of_one():
    layer, inputs = nn.Linear(5, 3), torch.randn(8, 5)
    factor = torch.ones(3, 5, requires_grad=True)
    nn.functional.linear(inputs, layer.weight * factor, layer.bias).square().sum().backward()
    stage = next(Snip().stages(layer, Recipe()))
    for batch in inputs.split(4):  # two batches add up to the gradient of both
        layer.zero_grad()
        layer(batch).square().sum().backward()
        after_step(layer)
    [tensor] = [each for each in parameters(layer) if each.is_weight]
    function = tensor.function(ConnectionSensitivity)
    torch.testing.assert_close(function.scores(tensor.stored), factor.grad.abs())
    assert (stage.recipe.lr, stage.recipe.epochs) == (0, 1)


def test_the_highest_scores_of_all_layers_are_kept_at_their_initial_values():
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2))
    start = model[0].weight.detach().clone()
    stages = Snip(ratio=4).stages(model, Recipe(epochs=3))
    next(stages)
    functions = [each.function(ConnectionSensitivity) for each in parameters(model) if each.is_weight]
    functions[0].slope.copy_(torch.arange(16.0).view(4, 4) - 14)  # of sizes 14 … 1, 0, 1
    pruned = next(stages)
    assert [tensor.kept for tensor in count(pruned.model).prunable.tensors] == [5, 1]
    assert torch.equal(pruned.model[0].weight.flatten()[:5], start.flatten()[:5])
    assert (pruned.name, pruned.phase, pruned.recipe.epochs) == ("train", "train", 2)


def test_one_epoch_is_not_enough():
    with pytest.raises(ValueError, match="one epoch to rank weights: train for 2 or more, got 1"):
        next(Snip().stages(nn.Linear(4, 4), Recipe(epochs=1)))
