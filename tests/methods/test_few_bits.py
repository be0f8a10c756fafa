"""Ternary weights with activations of 3 bits, and 8-bit integers: values, grids, and integer products."""

import copy

import pytest
import torch
from small_training import carry_out, small_network
from torch import nn

from secateur.functions.inputs import RoundedInputs, inputs_of
from secateur.methods.int8 import Int8
from secateur.methods.ternary import TernaryFixedPoint
from secateur.run.integers import IntegerLinear, with_integers
from secateur.train.recipe import Recipe


def test_ternary_weights_are_minus_delta_zero_and_delta_and_delta_is_the_nearest():
    stages = TernaryFixedPoint().stages(model := small_network(), Recipe())
    next(stages)
    before = model[3].weight.detach().clone()
    read = next(stages).model[3].weight.detach()
    delta = read.abs().max()
    assert sorted(read.unique().tolist()) == [-delta, 0, delta]
    error = (before - read).square().sum()
    for other in (0.8 * delta, 1.25 * delta):
        assert error < (before - other * (before / other).round().clamp(-1, 1)).square().sum()


@pytest.mark.parametrize("largest", [1.0, 20.0])
def test_delta_is_the_nearest_of_all_however_large_single_weights_are(largest):
    stages = TernaryFixedPoint().stages(model := small_network(), Recipe())
    next(stages)
    with torch.no_grad():
        model[3].weight[0, 0] = largest * model[3].weight.std()
    before = model[3].weight.detach().clone()
    delta = next(stages).model[3].weight.detach().abs().max()
    tried = torch.linspace(0.001, 1, 2000)[:, None, None] * before.abs().max()
    errors = (before - tried * (before / tried).round().clamp(-1, 1)).square().sum((1, 2))
    assert (before - delta * (before / delta).round().clamp(-1, 1)).square().sum() <= 1.0001 * errors.min()


def test_activations_of_three_bits_have_eight_levels_and_the_first_layer_reads_eight_bits():
    finished = carry_out(TernaryFixedPoint(), small_network())
    assert [function.grid[2].item() for function in inputs_of(finished).values()] == [127, 7, 7]
    hidden = inputs_of(finished)["3"](torch.rand(500) * 10)
    assert len(hidden.unique()) <= 8


@pytest.mark.parametrize(("x", "least"), [(torch.linspace(0, 6, 50), 0), (torch.linspace(-6, 6, 50), -3)])
def test_a_grid_is_fitted_to_the_first_batch_and_passes_gradients_inside_it(x, least):
    function, x = RoundedInputs(3), x.requires_grad_()
    out = function(x)
    step, low, high = function.grid.tolist()
    assert (low, high) == (least, 7 if least == 0 else 3)
    torch.testing.assert_close(out, step * (x / step).round().clamp(low, high))
    out.sum().backward()
    inside = (x > low * step) & (x < high * step)
    assert torch.equal(x.grad[inside], torch.ones(int(inside.sum())))
    assert not x.grad[(x > high * step) | (x < low * step)].any()


def test_a_network_of_eight_bits_computes_in_integers_what_it_computes_in_floats():
    finished = carry_out(Int8(), small_network()).eval()
    integers, x = with_integers(copy.deepcopy(finished)), torch.randn(7, 1, 6, 6)
    assert isinstance(integers[6], IntegerLinear)
    assert (integers[6].weight.dtype, integers[6].bias.dtype) == (torch.int8, torch.int32)
    assert integers[6].weight.abs().max() == 127
    torch.testing.assert_close(integers(x), finished(x), rtol=1e-4, atol=1e-5)


def test_weights_that_are_not_rounded_are_refused():
    layer = nn.Linear(40, 9)
    layer.add_module("inputs", RoundedInputs(8))
    layer.inputs.grid[0] = 0.1
    with pytest.raises(ValueError, match="weights of 8 bits: round them first"):
        IntegerLinear(layer)
