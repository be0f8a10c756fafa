"""Quantisers: zeros and survivors stay what they are, and values become few."""

import copy
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from quantizing import METHODS, layer_of, matrices, quantizers, sibling_at, sparse, tune, weights
from torch import nn
from torch.testing import assert_close
from toy_networks import CASES, mlp

from secateur import (
    QuantizeConfig,
    build_sibling,
    freeze,
    keep_zeros,
    learned_thresholds,
    prune,
    quantize,
)


@given(weights, st.sampled_from(METHODS), st.integers(1, 9), st.booleans())
def test_zeros_stay_zero_and_survivors_stay_non_zero(values, method, levels, half):
    layer = layer_of(values)
    kept = layer.weight.detach() != 0
    quantize(layer, QuantizeConfig(method=method, levels=levels))
    assert torch.equal(layer.weight != 0, kept)
    assert torch.equal(freeze(layer, half_codebook=half).weight != 0, kept)


@given(weights, st.sampled_from(METHODS), st.integers(1, 9))
def test_values_are_few(values, method, levels):
    layer = quantize(layer_of(values), QuantizeConfig(method=method, levels=levels))
    values = freeze(layer).weight.detach()
    values = values[values != 0].unique()
    assert len(values) <= {"shared": levels, "uniform": 2 * levels, "int8": 254, "int4": 14}[method]


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("case", CASES)
def test_zeros_stay_zero_and_survivors_non_zero_under_training(case, method):
    make, inputs = CASES[case]
    model, x = sparse(make()), inputs()
    kept = {name: value != 0 for name, value in matrices(model).items()}
    quantize(model, QuantizeConfig(method=method, levels=4))
    frozen = freeze(tune(model, x, steps=5))
    for name, value in matrices(frozen).items():
        assert torch.equal(value != 0, kept[name])


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("case", CASES)
def test_freezing_gives_the_plain_model_with_the_same_function(case, method):
    make, inputs = CASES[case]
    plain, model, x = make(), sparse(make()), inputs()
    quantize(model, QuantizeConfig(method=method, levels=4, bias_levels=7))
    tune(model, x)
    frozen = freeze(model)
    assert [type(module) for module in frozen.modules()] == [type(module) for module in plain.modules()]
    assert list(frozen.state_dict()) == list(plain.state_dict())
    assert all(parameter.requires_grad for parameter in frozen.parameters())
    assert not any(module._forward_hooks or module._load_state_dict_pre_hooks for module in frozen.modules())
    assert_close(frozen.eval()(x), model.eval()(x), rtol=0, atol=1e-6)
    plain.load_state_dict(frozen.state_dict(), strict=True)


@pytest.mark.parametrize("method", METHODS)
def test_a_mask_and_a_quantiser_chain(method):
    model = keep_zeros(sparse(mlp()))
    kept = model[0].weight != 0
    frozen = freeze(tune(quantize(model, QuantizeConfig(method=method, levels=3)), torch.randn(9, 12)))
    assert torch.equal(frozen[0].weight != 0, kept)
    assert type(frozen[0]) is nn.Linear


@pytest.mark.parametrize("method", METHODS)
def test_a_quantised_model_is_frozen_and_not_pruned(method):
    for model in (keep_zeros(sparse(mlp())), sparse(mlp())):
        with pytest.raises(ValueError, match=r"is quantised: freeze\(model\)"):
            prune(quantize(model, QuantizeConfig(method=method, levels=3, bias_levels=3)))


def test_a_quantised_sibling_is_frozen_and_not_pruned():
    model = quantize(build_sibling(mlp()), QuantizeConfig(method="uniform", levels=3))
    with pytest.raises(ValueError, match="is quantised"):
        prune(model)


def test_the_gradient_of_a_centroid_is_the_sum_over_its_cluster():
    layer = quantize(layer_of([0.0, 1.0, 1.2, -3.0, 0.0, 1.1]), QuantizeConfig(levels=2))
    (layer.weight * torch.tensor([[1.0, 2, 4, 8, 16, 32]])).sum().backward()
    shared = quantizers(layer)["weight"]
    assert_close(shared.centroids, torch.tensor([-3.0, 1.1]), check_dtype=False)
    assert shared.centroids.grad.tolist() == [8, 2 + 4 + 32]
    assert not layer.parametrizations.weight.original.requires_grad


def test_training_moves_centroids_and_leaves_assignments():
    model = quantize(sparse(mlp()), QuantizeConfig(levels=4))
    before = copy.deepcopy(model.state_dict())
    tune(model, torch.randn(9, 12))
    moved = {name for name, value in model.state_dict().items() if not torch.equal(value, before[name])}
    assert moved == {
        "0.parametrizations.weight.0.centroids",
        "2.parametrizations.weight.0.centroids",
        "0.bias",
        "2.bias",
    }


@pytest.mark.parametrize("init", ["linear", "density", "random"])
def test_enough_shared_values_lose_nothing(init):
    model = sparse(mlp())
    expected = copy.deepcopy(model.state_dict())
    frozen = freeze(quantize(model, QuantizeConfig(levels=200, init=init)))
    assert_close(frozen.state_dict(), expected, rtol=0, atol=0)


def test_a_centroid_at_zero_is_read_as_something_else_and_still_learns():
    layer = quantize(layer_of([0.0, 1.0, 2.0]), QuantizeConfig(levels=2))
    shared = quantizers(layer)["weight"]
    nn.init.zeros_(shared.centroids)
    assert torch.equal(layer.weight != 0, torch.tensor([[False, True, True]]))
    layer.weight.sum().backward()
    assert shared.centroids.grad.tolist() == [1, 1]


def test_half_precision_codebooks_hold_float16_values():
    model = quantize(sparse(mlp()), QuantizeConfig(levels=5))
    for value in matrices(freeze(model, half_codebook=True)).values():
        assert torch.equal(value.half().float(), value)
    assert_close(freeze(model, half_codebook=True)[0].weight, freeze(model)[0].weight, rtol=2**-11, atol=0)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("values", [[0.3, -1e9, 0.0], [3e-9, -2e-9, 0.0]])
def test_what_float16_cannot_hold_keeps_a_codebook_of_float32(values, method):
    model = quantize(layer_of(values), QuantizeConfig(method=method, levels=2))
    assert torch.equal(freeze(model, half_codebook=True).weight, freeze(model).weight)


def test_one_shared_value_out_of_the_range_of_float16_keeps_the_others_exact_too():
    frozen = freeze(quantize(layer_of([1e-12, -0.3, 0.0]), QuantizeConfig(levels=2)), half_codebook=True)
    assert torch.equal(frozen.weight, torch.tensor([[1e-12, -0.3, 0.0]]))


def test_a_channel_of_zeros_does_not_keep_the_other_scales_from_float16():
    layer = nn.Linear(3, 2)
    layer.weight.data = torch.tensor([[0.1, -0.3, 0.2], [0.0, 0.0, 0.0]])
    quantize(layer, QuantizeConfig(method="int8", granularity="channel"))
    scale = torch.tensor(0.3 / 127).half().float()
    assert torch.equal(freeze(layer, half_codebook=True).weight[0, 1], -127 * scale)


@pytest.mark.parametrize("half", [False, True])
@pytest.mark.parametrize(("method", "learned"), [("shared", "centroids"), ("uniform", "log_step")])
def test_a_codebook_that_diverged_is_refused(method, learned, half):
    model = quantize(mlp(), QuantizeConfig(method=method, levels=3))
    nn.init.constant_(getattr(quantizers(model)["2.weight"], learned), math.nan)
    with pytest.raises(ValueError, match=r'"2\.weight" would freeze to NaN or infinite values'):
        freeze(model, half_codebook=half)


@given(weights, st.integers(1, 40))
def test_a_uniform_quantiser_is_within_half_a_step(values, largest):
    layer = quantize(layer_of(values), QuantizeConfig(method="uniform", levels=largest))
    weight, step = layer.parametrizations.weight.original, quantizers(layer)["weight"].step
    inside = (weight.abs() >= step / 2) & (weight.abs() <= (largest + 0.5) * step)
    assert ((layer.weight - weight).abs()[inside] <= step / 2 * (1 + 1e-5)).all()
    small = (weight != 0) & (weight.abs() < step / 2)
    assert_close(layer.weight[small], (weight.sign() * step)[small])
    clipped = layer.weight.abs()[weight.abs() > largest * step]
    assert_close(clipped, (largest * step).expand_as(clipped))


def test_the_first_step_is_nearly_the_best():
    torch.manual_seed(3)
    layer = nn.Linear(40, 40)
    weight = layer.weight.detach().clone()
    quantize(layer, QuantizeConfig(method="uniform", levels=3))
    function = quantizers(layer)["weight"]
    found = (layer.weight - weight).square().sum()
    for factor in torch.linspace(0.3, 3, 50):
        other = copy.deepcopy(function)
        nn.init.constant_(other.log_step, (function.step * factor).log().item())
        assert (other(weight) - weight).square().sum() >= 0.99 * found


def test_the_gradient_of_a_step_is_lsqs():
    layer = quantize(layer_of([0.0, 0.3, -1.2, 5.0]), QuantizeConfig(method="uniform", levels=2))
    function = quantizers(layer)["weight"]
    nn.init.zeros_(function.log_step)  # Δ = 1: levels 0, 1, −1, 2 (clipped)
    assert layer.weight.tolist() == [[0, 1, -1, 2]]
    (layer.weight * torch.tensor([[1.0, 10, 100, 1000]])).sum().backward()
    slopes = 10 * (1 - 0.3) + 100 * (-1 + 1.2) + 1000 * 2
    assert function.log_step.grad.item() == pytest.approx(slopes / math.sqrt(4 * 2))
    original = layer.parametrizations.weight
    mask = original[0].mask
    assert original.original.grad.tolist() == (mask * torch.tensor([[1.0, 10, 100, 1000]])).tolist()


def test_a_float16_step_gives_exact_multiples():
    model = quantize(sparse(mlp()), QuantizeConfig(method="uniform", levels=100))
    weight = freeze(model, half_codebook=True)[0].weight.detach().double()
    step = quantizers(model)["0.weight"].step.half().double()
    levels = weight / step
    assert torch.equal(levels, levels.round())
    assert levels.abs().max() > 50


@pytest.mark.parametrize("method", ["uniform", "int8", "int4"])
def test_on_a_sibling_the_zero_bin_is_the_learned_threshold(method):
    sibling = sibling_at(0.1, mlp())
    pruned = prune(sibling, 0.01)
    quantize(sibling, QuantizeConfig(method=method, levels=9, cutoff=0.01))
    zeros = sibling[0].weight == 0
    assert torch.equal(zeros, pruned[0].weight == 0)
    assert 0 < zeros.sum() < zeros.numel()
    for function in learned_thresholds(sibling).values():
        nn.init.constant_(function.threshold, 0.2)
    assert (sibling[0].weight == 0).sum() > zeros.sum()


def test_thresholds_weights_and_steps_learn_together():
    sibling, x = sibling_at(0.1, mlp()), torch.randn(9, 12)
    quantize(sibling, QuantizeConfig(method="uniform", levels=4))
    before = copy.deepcopy(sibling.state_dict())
    tune(sibling, x, rate=1e-4)
    unmoved = [name for name, value in sibling.state_dict().items() if torch.equal(value, before[name])]
    assert unmoved == []
    frozen = freeze(sibling)
    assert_close(frozen(x), sibling(x))
    assert type(frozen[0]) is nn.Linear


def test_unquantised_tensors_of_a_sibling_are_cut_when_it_is_frozen():
    sibling = sibling_at(0.1, mlp())
    expected = prune(sibling)[2].weight
    frozen = freeze(quantize(sibling, QuantizeConfig(method="uniform"), layers={"2": None}))
    assert torch.equal(frozen[2].weight, expected)
    assert len(frozen[0].weight.unique()) <= 65


@given(weights, weights, st.sampled_from([("int8", 127), ("int4", 7)]))
def test_integers_per_channel_are_within_half_of_the_channels_own_scale(first, second, kind):
    method, largest = kind
    length = min(len(first), len(second))
    layer = nn.Linear(length, 2)
    layer.weight.data = torch.tensor([first[:length], second[:length]])
    weight = layer.weight.detach().clone()
    quantize(layer, QuantizeConfig(method=method, granularity="channel"))
    scale = weight.abs().amax(1, keepdim=True) / largest
    error = (layer.weight - weight).abs()
    assert (error <= torch.where(weight.abs() < scale / 2, scale, scale / 2) * (1 + 1e-5)).all()


def test_a_transposed_convolution_has_its_channels_second():
    layer = quantize(nn.ConvTranspose2d(3, 5, 2), QuantizeConfig(method="int8", granularity="channel"))
    function = quantizers(layer)["weight"]
    assert function.scale(layer.parametrizations.weight.original).shape == (1, 5, 1, 1)


def test_the_largest_weight_of_a_tensor_is_exact_in_integers():
    layer = quantize(layer_of([0.5, -1.27, 0.001, 0.0]), QuantizeConfig(method="int8"))
    assert_close(layer.weight, torch.tensor([[0.5, -1.27, 0.01, 0.0]]))
