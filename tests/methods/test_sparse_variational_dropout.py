"""Sparse variational dropout: the divergence, noise of the right size, and a plain network in the end."""

import math

import pytest
import torch
from small_training import small_network, train
from torch import nn

from secateur.functions.variational import VariationalDropout, add_noise
from secateur.measure import count
from secateur.methods.sparse_variational_dropout import SparseVariationalDropout
from secateur.train.recipe import Recipe


@pytest.mark.parametrize("log_alpha", [-4.0, 0.0, 2.0])
def test_the_divergence_is_the_published_approximation(log_alpha):
    function = VariationalDropout(torch.ones(1), log_alpha, bound=3)  # of w = 1, where α = σ²
    function.strength.fill_(0.5)
    alpha, sigmoid = math.exp(log_alpha), 1 / (1 + math.exp(-(1.87320 + 1.48695 * log_alpha)))
    expected = -(0.63576 * sigmoid - 0.5 * math.log(1 + 1 / alpha) - 0.63576)
    assert function.penalty(torch.ones(1)).item() == pytest.approx(0.5 * expected, rel=1e-5)


@pytest.mark.parametrize("layer", [nn.Linear(8, 4), nn.Conv2d(2, 4, 2, stride=2)])
def test_outputs_have_the_variance_that_noise_of_the_weights_gives_them(layer):
    x = torch.rand(1, 8) if isinstance(layer, nn.Linear) else torch.rand(1, 2, 2, 2)
    stage = next(SparseVariationalDropout(log_variance=-4.0).stages(layer, Recipe()))
    drawn = stage.model(x.expand(20_000, *x.shape[1:])).flatten(1)
    torch.testing.assert_close(drawn.var(0), torch.full((4,), math.exp(-4) * float(x.square().sum())), rtol=0.1, atol=0)
    layer.eval()
    assert torch.equal(layer(x), layer(x))


def test_weights_that_are_mostly_noise_are_not_read_outside_of_training():
    function = VariationalDropout(torch.ones(3), log_variance=0.0, bound=3)
    weight = torch.tensor([1.0, math.exp(-1.49), math.exp(-1.51)])  # of log α 0, 2.98 and 3.02
    assert torch.equal(function(weight), weight)
    assert function.eval()(weight).count_nonzero() == 2
    assert torch.equal(function.settle(weight), function(weight).detach())


def test_the_weight_of_the_divergence_rises_to_one_in_as_many_as_there_are_images():
    stage = next(
        SparseVariationalDropout(ratio=None, warm_up=0.5, fine_tune=0).stages(
            model := nn.Linear(4, 4), Recipe(epochs=5)
        )
    )
    for done, share in ((5, 0.5), (10, 1.0), (20, 1.0)):
        stage.between(done, 20)  # 4 steps of 128 images an epoch
        assert model.parametrizations.weight[0].strength == pytest.approx(share / 512)


def test_the_cut_is_exact_and_leaves_no_hook():
    stages = SparseVariationalDropout(ratio=10).stages(model := small_network(), Recipe())
    train(model, between=next(stages).between)
    finished = next(stages).model
    assert count(finished).prunable.kept == 84
    assert not any(add_noise in module._forward_hooks.values() for module in finished.modules())
