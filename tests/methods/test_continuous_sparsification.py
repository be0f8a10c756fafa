"""Continuous sparsification: gates start as the identity, harden with β, and are cut at zero."""

import pytest
import torch
from small_training import small_network, train

from secateur.functions.smooth_gate import SmoothGate
from secateur.measure import count
from secateur.methods.continuous_sparsification import ContinuousSparsification
from secateur.train.recipe import Recipe
from secateur.weights.tensors import parameters


@pytest.mark.parametrize("start", [-0.5, 0.0, 2.0])
def test_at_the_start_the_network_is_the_same(start):
    weight = torch.randn(6)
    torch.testing.assert_close(SmoothGate(weight, start)(weight), weight)


def test_gradients_match_finite_differences():
    weight = torch.linspace(-1, 1, 6, dtype=torch.float64, requires_grad=True)
    function = SmoothGate(weight.detach(), start=0.1)
    function.beta.fill_(3.0)

    def read(weight, gate):
        return torch.func.functional_call(function, {"gate": gate}, (weight,))

    assert torch.autograd.gradcheck(read, (weight, function.gate))
    function.penalty(weight).backward()
    sigmoid = torch.sigmoid(3 * function.gate.detach())
    torch.testing.assert_close(function.gate.grad, 3 * sigmoid * (1 - sigmoid))


def test_a_hard_gate_reads_what_the_cut_keeps():
    weight = torch.randn(8)
    function = SmoothGate(weight, start=0.0)
    function.gate.data.copy_(torch.linspace(-1, 1, 8))
    function.beta.fill_(1e4)
    torch.testing.assert_close(function(weight).detach(), function.settle(weight))
    assert function.settle(weight).count_nonzero() == 4


def test_beta_grows_geometrically_and_the_cut_is_exact():
    model = small_network()
    stages = ContinuousSparsification(ratio=10, last_beta=100).stages(model, Recipe())
    stage = next(stages)
    [function, *_] = [each.function(SmoothGate) for each in parameters(model) if each.is_weight]
    stage.between(1, 2)
    assert function.beta == pytest.approx(10)
    train(model, 4, stage.between)
    assert function.beta == pytest.approx(100)
    assert count(next(stages).model).prunable.kept == 84


def test_a_layer_whose_gates_all_close_is_refused_by_name():
    model = small_network()
    stages = ContinuousSparsification(ratio=None, start=-1.0).stages(model, Recipe())
    next(stages)
    with pytest.raises(ValueError, match=r'"0.weight" would lose all of its 36 weights, none has a score above zero'):
        next(stages)
