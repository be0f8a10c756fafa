"""ADMM: the penalty's gradient, the projection, and a dual variable that survives a change of ρ."""

import pytest
import torch
from small_training import small_network, train
from torch import nn

from secateur.functions.augmented import AugmentedLagrangian
from secateur.measure import count
from secateur.methods.admm import Admm
from secateur.train.objective import penalty
from secateur.train.recipe import Recipe
from secateur.weights.tensors import parameters


def test_the_penalty_draws_weights_to_the_sparse_point_less_the_dual():
    weight = torch.tensor([3.0, -1.0], requires_grad=True)
    function = AugmentedLagrangian(weight, rho=0.5)
    function.project(weight.detach(), torch.tensor([True, False]))  # Z = (3, 0)
    function.update_dual(weight.detach())  # U = (0, −1)
    function.penalty(weight).backward()
    assert weight.grad.tolist() == [0.5 * (3 - 3 + 0), 0.5 * (-1 - 0 + -1)]
    function.project(torch.tensor([2.0, -1.0]), torch.tensor([True, False]))
    function.update_dual(torch.tensor([2.0, -1.0]))
    assert function.sparse.tolist() == [2, 0]
    assert function.dual.tolist() == [0, -2]


def test_a_change_of_rho_keeps_the_dual_variable():
    function = AugmentedLagrangian(torch.zeros(2), rho=0.1)
    function.dual.copy_(torch.tensor([1.0, -2.0]))
    function.set_rho(1.0)
    torch.testing.assert_close(function.rho * function.dual, torch.tensor([0.1, -0.2]))


def test_the_dual_variable_is_zero_until_weights_have_been_trained():
    layer = nn.Linear(4, 2)
    stage = next(Admm(ratio=2, dense=0, projections=2).stages(layer, Recipe()))
    function = layer.parametrizations.weight[0]
    assert function.sparse.count_nonzero() == 4
    assert function.dual.count_nonzero() == 0
    stage.between(5, 10)
    assert function.dual.count_nonzero() == 4


def test_a_quadratic_problem_ends_at_its_best_sparse_solution():
    layer = nn.Linear(4, 1, bias=False)
    best = torch.tensor([[0.1, -2.0, 0.3, 1.0]])
    with torch.no_grad():
        layer.weight.copy_(best)
    stages = Admm(ratio=2, dense=0, fine_tune=0, rho=1.0, projections=50).stages(layer, Recipe(epochs=1))
    stage = next(stages)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.02)  # ρ ends at 100
    for step in range(600):
        optimizer.zero_grad()
        (0.5 * (layer.weight - best).square().sum() + penalty(layer, 1.0)).backward()
        optimizer.step()
        stage.between(step + 1, 600)
    with pytest.raises(StopIteration) as end:
        next(stages)
    torch.testing.assert_close(
        end.value.value.weight.detach(), torch.tensor([[0.0, -2.0, 0.0, 1.0]]), atol=0.02, rtol=0
    )


def test_the_projection_keeps_the_largest_of_the_whole_network():
    model = small_network()
    stages = Admm(ratio=10, dense=0).stages(model, Recipe())
    train(model, 6, next(stages).between)
    points = [each.function(AugmentedLagrangian).sparse for each in parameters(model) if each.is_weight]
    assert sum(int(point.count_nonzero()) for point in points) == 84
    assert count(next(stages).model).prunable.kept == 84
