"""Optimal Brain Damage: its second derivatives are those of autograd, and it cuts what the loss misses least."""

import pytest
import torch
from small_training import small_network
from torch import nn
from torch.nn.functional import cross_entropy
from torch.testing import assert_close

from secateur.measure import count
from secateur.methods import Aids
from secateur.methods.curvature import measured
from secateur.methods.obd import OptimalBrainDamage
from secateur.train.recipe import Recipe
from secateur.weights.tensors import parameters

INPUTS, LABELS = torch.randn(40, 1, 6, 6, generator=torch.Generator().manual_seed(0)), torch.arange(40) % 3


def losses(model, samples):
    for _ in range(samples // len(INPUTS)):
        yield cross_entropy(model(INPUTS), LABELS)


def mlp():
    torch.manual_seed(1)
    return nn.Sequential(nn.Flatten(), nn.Linear(36, 6), nn.ReLU(inplace=True), nn.Linear(6, 3))


def test_the_diagonal_is_that_of_the_hessian():
    model = mlp()
    weights = [tensor for tensor in parameters(model) if tensor.is_weight]
    batches = [each["3.weight"] for each in measured(weights, model, Aids(losses=losses), 100 * 40)]
    found = sum(each.curvatures.T @ each.inputs.square() for each in batches) / (100 * 40)
    hessian = torch.autograd.functional.hessian(
        lambda weight: cross_entropy(nn.functional.linear(model[:3](INPUTS), weight, model[3].bias), LABELS),
        model[3].weight.detach(),
    )
    exact = hessian.flatten(2).flatten(0, 1).diagonal().view(3, 6)
    assert_close(found, exact, rtol=0.2, atol=2e-3)


def test_an_input_that_never_changes_anything_loses_its_weights_however_large():
    model = mlp()
    stages = OptimalBrainDamage(ratio=1.5, rounds=1, samples=40).aided_stages(
        model, Recipe(epochs=2), Aids(losses=lambda model, samples: (loss for loss in dark(model)))
    )

    def dark(model):
        inputs = INPUTS.clone()
        inputs[:, :, 0] = 0
        yield cross_entropy(model(inputs), LABELS)

    next(stages)
    model[1].weight.data[:, :6] = 10
    next(stages)
    assert not model[1].weight[:, :6].any()
    assert count(model).prunable.kept == round((36 * 6 + 18) / 1.5)


def test_layers_without_known_second_derivatives_are_refused():
    with pytest.raises(ValueError, match='"weight" is the weight of Embedding: method "obd"'):
        OptimalBrainDamage().check(nn.Embedding(5, 4))
    OptimalBrainDamage().check(small_network())
