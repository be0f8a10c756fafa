"""LTP: a soft count, the derivative that is left out, and a threshold in the layer's own units."""

import torch
from small_training import small_network, train
from torch import nn

from secateur.functions.soft_l0 import SoftCount
from secateur.measure import count
from secateur.methods.ltp import Ltp
from secateur.train.objective import parameter_groups
from secateur.train.recipe import Recipe
from secateur.weights.function import after_step
from secateur.weights.tensors import parameters


def case(threshold=1.0):
    weight = torch.tensor([-2.0, 1.0, 0.5, 3.0], dtype=torch.float64, requires_grad=True)
    function = SoftCount(weight.detach(), temperature=0.5)
    function.threshold.data.fill_(threshold)
    squares = weight.detach().square()
    width = 0.5 * weight.detach().abs().var(correction=0)
    return weight, function, torch.sigmoid((squares - threshold * squares.mean()) / width), squares.mean() / width


def test_in_the_gradient_by_a_weight_the_mask_is_a_constant_and_by_the_threshold_it_is_not():
    weight, function, mask, slope = case()
    read = function(weight)
    torch.testing.assert_close(read, weight * mask)
    read.sum().backward()
    torch.testing.assert_close(weight.grad, mask)
    expected = -(weight.detach() * mask * (1 - mask) * slope).sum()
    torch.testing.assert_close(function.threshold.grad, expected)


def test_the_soft_count_is_differentiated_in_full():
    weight, function, mask, slope = case()
    soft_count = function.penalty(weight)
    torch.testing.assert_close(soft_count, mask.sum())
    soft_count.backward()
    inner = mask * (1 - mask) * slope
    torch.testing.assert_close(function.threshold.grad, -inner.sum())
    torch.testing.assert_close(weight.grad, inner / function.unit * 2 * weight.detach())


def test_weights_are_kept_above_the_root_of_the_threshold():
    weight, function, _, _ = case(threshold=0.5)  # of a mean square of 3.5625
    assert function.settle(weight.detach()).tolist() == [-2, 0, 0, 3]


def test_a_threshold_does_not_fall_below_zero():
    weight, function, _, _ = case(threshold=-1.0)
    with torch.no_grad():
        function.after_step(weight)
    assert function.threshold == 0


def test_thresholds_reach_the_ratio_before_the_cut_under_adam():
    torch.manual_seed(0)
    model, inputs, labels = small_network(), torch.randn(24, 1, 6, 6), torch.arange(24) % 3
    stage = next(Ltp(ratio=10, dense=0).stages(model, Recipe()))
    optimizer = torch.optim.Adam(parameter_groups(model, lr=1e-3, rho=stage.rho))
    for step in range(1, 301):
        optimizer.zero_grad()
        (nn.functional.cross_entropy(model(inputs), labels) + stage.terms["count"](model)).backward()
        optimizer.step()
        after_step(model)
        stage.between(step, 300)
    found = [(each.stored.detach(), each.function(SoftCount)) for each in parameters(model) if each.is_weight]
    assert sum(int((function.scores(weight) > 0).sum()) for weight, function in found) < 1.5 * 84


def test_the_cut_is_exact():
    stages = Ltp(ratio=10, dense=0).stages(model := small_network(), Recipe())
    next(stages)
    train(model)
    assert count(next(stages).model).prunable.kept == 84
