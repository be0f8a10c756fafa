"""Soft movement pruning: the gradient of a score, the penalty, and bounds that follow the cubic law."""

import math

import torch
from small_training import small_network, train

from secateur.functions.movement import MovementMask
from secateur.measure import count
from secateur.methods.gradual_magnitude import sparsity
from secateur.methods.soft_movement import SoftMovement
from secateur.train.recipe import Recipe
from secateur.weights.tensors import parameters


def test_every_score_has_a_gradient_and_only_weights_that_are_read_have_one():
    weight = torch.tensor([2.0, -3.0, 4.0], requires_grad=True)
    function = MovementMask(weight.detach())
    with torch.no_grad():
        function.score.copy_(torch.tensor([1.0, -1.0, 0.5]))
        function.bound.fill_(0.0)
    read = function(weight)
    read.backward(torch.tensor([0.1, 0.2, 0.3]))
    assert read.tolist() == [2, 0, 4]
    torch.testing.assert_close(function.score.grad, torch.tensor([0.2, -0.6, 1.2]))
    torch.testing.assert_close(weight.grad, torch.tensor([0.1, 0.0, 0.3]))


def functions_of(model):
    return [each.function(MovementMask) for each in parameters(model) if each.is_weight]


def test_with_a_ratio_the_number_of_weights_follows_the_cubic_law():
    model = small_network()
    stage = next(SoftMovement(ratio=10, dense=0, ramp=0.5).stages(model, Recipe()))
    for function in functions_of(model):
        function.score.data.normal_()
    for done, progress in ((20, 0.4), (50, 1.0), (100, 1.0)):
        stage.between(done, 100)
        wanted = 840 * (1 - sparsity(progress, 0.9))
        assert abs(count(model).prunable.kept - wanted) <= 1


def test_without_a_ratio_the_bound_is_a_share_and_the_penalty_grows_with_it():
    model = small_network()
    stage = next(SoftMovement(ratio=None, dense=0, ramp=0.5, bound=0.1, lambda_s=840.0).stages(model, Recipe()))
    function = functions_of(model)[0]
    assert function.penalty(None) == 0
    stage.between(100, 100)
    torch.testing.assert_close(function.penalty(None).detach(), torch.tensor(0.5 * 36))  # σ(0) a weight
    function.score.data.fill_(math.log(1 / 9) + 0.01)
    function.score.data[0] -= 0.02
    assert int(function(torch.ones(4, 1, 3, 3)).sum()) == 27


def test_the_cut_is_exact():
    model = small_network()
    stages = SoftMovement(ratio=10, dense=0).stages(model, Recipe())
    train(model, 6, next(stages).between)
    assert count(next(stages).model).prunable.kept == 84
