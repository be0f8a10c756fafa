"""STR: the soft threshold, its gradients, and an exact cut."""

import pytest
import torch
from small_training import small_network, train
from torch import nn

from secateur.functions.soft_threshold import SoftThreshold
from secateur.measure import count
from secateur.methods.str2020 import Str
from secateur.train.recipe import Recipe


def test_weights_are_shrunk_by_the_threshold():
    weight = torch.tensor([-1.0, -0.4, 0.2, 0.7])
    function = SoftThreshold(weight, start=0.0)  # σ(0) = ½
    torch.testing.assert_close(function(weight).detach(), torch.tensor([-0.5, 0.0, 0.0, 0.2]))
    torch.testing.assert_close(function.settle(weight), function(weight).detach())


def test_every_weight_that_is_left_pulls_at_the_threshold():
    weight = torch.tensor([-1.0, -0.4, 0.2, 0.7], requires_grad=True)
    function = SoftThreshold(weight.detach(), start=0.0)
    function(weight).backward(torch.tensor([1.0, 2.0, 3.0, 4.0]))
    assert weight.grad.tolist() == [1, 0, 0, 4]
    assert function.s.grad == pytest.approx(-(-1 * 1 + 1 * 4) * 0.25)  # −Σ g·sign(w)·σ′(s)


def test_a_weight_that_is_kept_below_its_threshold_is_not_zero():
    function = SoftThreshold(torch.ones(2), start=0.0)
    function.chosen = torch.tensor([True, True])
    torch.testing.assert_close(function.settle(torch.tensor([0.7, 0.2])), torch.tensor([0.2, 0.2]))


def test_decay_raises_the_threshold():
    function = SoftThreshold(torch.ones(3), start=-8.0)
    function.penalty(torch.ones(3)).backward()
    assert function.s.grad == -16  # downhill is up


def test_the_cut_keeps_as_many_weights_as_the_ratio_says_and_one_of_each_layer():
    model = nn.Sequential(nn.Linear(4, 1, bias=False), nn.Linear(4, 1, bias=False))
    stages = Str(ratio=2, fine_tune=0.5).stages(model, Recipe(epochs=2))
    next(stages)
    with torch.no_grad():
        for layer, s, size in ((model[0], 0.0, 1.0), (model[1], -2.0, 0.1)):
            layer.parametrizations.weight.original.copy_(size * torch.tensor([[1.0, 2.0, 3.0, 4.0]]))
            layer.parametrizations.weight[0].s.fill_(s)
    stage = next(stages)  # |w| − t is 0.5, 1.5, 2.5, 3.5, and 0.28 at most
    torch.testing.assert_close(stage.model[0].weight.detach(), torch.tensor([[0.0, 1.5, 2.5, 3.5]]))
    torch.testing.assert_close(
        stage.model[1].weight.detach(), torch.tensor([[0.0, 0.0, 0.0, 0.2808]]), atol=1e-4, rtol=0
    )


def test_the_cut_is_exact_before_a_threshold_has_risen():
    stages = Str(ratio=10).stages(model := small_network(), Recipe())
    next(stages)
    train(model)
    assert count(next(stages).model).prunable.kept == 84
