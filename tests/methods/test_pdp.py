"""PDP: the mask is a softmax, its threshold follows the number of weights, and the cut is exact."""

import pytest
import torch
from small_training import small_network, train
from torch import nn

from secateur.functions.soft_mask import SoftMask
from secateur.measure import count
from secateur.methods.pdp import Pdp
from secateur.train.recipe import Recipe
from secateur.weights.tensors import parameters


def test_the_mask_is_the_softmax_of_the_squares_and_has_its_gradient():
    weight = torch.linspace(-1, 1, 9, dtype=torch.float64, requires_grad=True)
    function = SoftMask(weight.detach(), temperature=0.1)
    function.set_threshold(torch.tensor(0.625), weight.detach())
    squares = torch.stack([weight.square(), torch.full_like(weight, 0.625**2)]) / 0.1
    torch.testing.assert_close(function(weight), weight * squares.softmax(0)[0])
    assert torch.autograd.gradcheck(function, (weight,))


def test_before_there_is_a_threshold_weights_are_read_as_they_are():
    weight = torch.randn(5)
    assert torch.equal(SoftMask(weight, 1e-4)(weight), weight)


def test_a_layer_is_not_emptied():
    weight = torch.tensor([0.1, -0.2])
    function = SoftMask(weight, 1e-4)
    function.set_threshold(torch.tensor(5.0), weight)
    assert function(weight).tolist() == pytest.approx([0, -0.1], abs=1e-6)


def test_zeros_grow_linearly_and_the_cut_is_exact():
    stages = Pdp(ratio=10, dense=0, ramp=0.5).stages(model := small_network(), Recipe())
    stage = next(stages)
    found = [(each.stored.detach(), each.function(SoftMask)) for each in parameters(model) if each.is_weight]
    for done, kept in ((10, 840 - 0.2 * 756), (40, 840 - 0.8 * 756), (100, 84)):
        stage.between(done, 100)
        assert abs(sum(int((function.scores(weight) > 0).sum()) for weight, function in found) - kept) <= 1
    train(model, 4, stage.between)
    assert count(next(stages).model).prunable.kept == 84


def test_epochs_are_shared():
    stages = Pdp(dense=0.2, fine_tune=0.2).stages(nn.Linear(9, 9), Recipe(epochs=10))
    assert [(stage.name, stage.recipe.epochs) for stage in stages] == [("dense", 2), ("prune", 6), ("fine-tune", 2)]
