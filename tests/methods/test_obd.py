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
from secateur.networks.tiled import TiledConv2d
from secateur.train.recipe import Recipe
from secateur.weights.tensors import parameters

INPUTS, LABELS = torch.randn(40, 1, 6, 6, generator=torch.Generator().manual_seed(0)), torch.arange(40) % 3


def losses(model, samples):
    for _ in range(samples // len(INPUTS)):
        yield cross_entropy(model(INPUTS), LABELS)


def mlp():
    torch.manual_seed(1)
    return nn.Sequential(nn.Flatten(), nn.Linear(36, 6), nn.ReLU(inplace=True), nn.Linear(6, 3))


def seen(model, passes, name):
    weights = [tensor for tensor in parameters(model) if tensor.is_weight]
    return [each[name] for each in measured(weights, model, Aids(losses=losses), passes * 40)]


def test_second_moments_of_the_slopes_are_the_hessian():
    model = mlp()
    vectors = torch.cat([torch.einsum("su,sw->suw", *each[1::-1]).flatten(1) for each in seen(model, 100, "3.weight")])
    hessian = torch.autograd.functional.hessian(
        lambda weight: cross_entropy(nn.functional.linear(model[:3](INPUTS), weight, model[3].bias), LABELS),
        model[3].weight.detach(),
    )
    assert_close(vectors.T @ vectors / len(vectors), hessian.reshape(18, 18), rtol=0.2, atol=2e-3)


def test_a_few_passes_are_enough_for_a_layer_of_many_units():
    torch.manual_seed(1)
    model = nn.Sequential(nn.Flatten(), nn.Linear(36, 200), nn.ReLU(), nn.Linear(200, 3))
    batches = seen(model, 20, "1.weight")
    found = sum(each.slopes.square().T @ each.inputs.square() for each in batches) / 20
    shares = model(INPUTS).softmax(1)
    by_scores = torch.diag_embed(shares) - shares[:, :, None] * shares[:, None]
    slopes = (model[1](INPUTS.flatten(1)) > 0)[:, None] * model[3].weight  # (samples, scores, units)
    exact = torch.einsum("sau,sab,sbu->su", slopes, by_scores, slopes).T @ INPUTS.flatten(1).square()
    assert (found - exact).norm() < 0.15 * exact.norm()  # signs at the 200 outputs: 0.5


def test_a_loss_without_softmax_counts_by_its_slopes():
    model = mlp()
    aids = Aids(losses=lambda model, samples: iter([model(INPUTS).square().sum(1).mean()]))
    [batch] = measured([tensor for tensor in parameters(model) if tensor.is_weight], model, aids, 40)
    assert_close(batch["3.weight"].slopes, 2 * model(INPUTS))


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
    with pytest.raises(ValueError, match='"weight" is the weight of TiledConv2d: method "obd"'):
        OptimalBrainDamage().check(TiledConv2d(2, 3, 3, tile=2))
    OptimalBrainDamage().check(small_network())
