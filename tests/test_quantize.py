"""Quantising: zeros and survivors stay what they are, values get few, training goes on, and the bits are right."""

import copy
import io
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from networks import CASES, Custom, Recurrent, Tied, convolutional, mlp
from torch import nn
from torch.nn import functional
from torch.testing import assert_close

from secateur import (
    QuantizeConfig,
    build_sibling,
    coded_bits,
    freeze,
    keep_zeros,
    learned_thresholds,
    parameter_groups,
    penalty,
    prune,
    quantize,
)
from secateur.measure import count
from secateur.parametrization import readings
from secateur.quantize.kmeans import assign, cluster, initial_centroids
from secateur.quantize.quantizers import IntegerGrid, LearnedStep, Quantizer
from secateur.quantize.rate import adaptive_bits, grid_bits, position_bits, symbol_bits
from secateur.train.loop import Journal, TrainConfig, fit

METHODS = ["shared", "uniform", "int8", "int4"]
sizes = st.builds(math.ldexp, st.floats(2**-10, 2, width=32), st.sampled_from([0, 0, 0, -45, -90]))
weights = st.lists(st.one_of(st.just(0.0), sizes, sizes.map(lambda x: -x)), min_size=1, max_size=60)


def sparse(model, share=0.5):
    """Set this share of every weight matrix to zero."""
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter *= torch.rand_like(parameter) >= share
    return model


def layer_of(values):
    layer = nn.Linear(len(values), 1)
    layer.weight.data = torch.tensor([values])
    return layer


def quantizers(model):
    return {
        reading.full_name: next(part for part in reading.chain if isinstance(part, Quantizer))
        for reading in readings(model, Quantizer)
    }


def matrices(model):
    return {name: value for name, value in model.state_dict().items() if value.dim() > 1}


def entropy_bits(counts):
    counts = counts[counts > 0].double()
    return -(counts * torch.log2(counts / counts.sum())).sum().item()


def tune(model, x, steps=3, lr=1e-2, rate=0.0):
    optimizer = torch.optim.Adam(parameter_groups(model, lr=lr, lambda_wd=1e-3))
    for _ in range(steps):
        outputs = model(x)
        loss = functional.cross_entropy(outputs, torch.arange(len(outputs)) % outputs.shape[1])
        if learned_thresholds(model):
            loss = loss + penalty(model)
        (loss + rate * coded_bits(model)).backward()
        optimizer.step()
        optimizer.zero_grad()
    return model


# k-means on a line


@given(weights, st.integers(1, 12), st.sampled_from(["linear", "density", "random"]))
def test_centroids_are_a_fixed_point_of_lloyds_iteration(values, k, init):
    values = torch.tensor(values, dtype=torch.float64)
    centroids = cluster(values, k, init)
    nearest = assign(values, centroids)
    assert torch.equal((values - centroids[nearest]).abs(), (values[:, None] - centroids).abs().min(1).values)
    for index in nearest.unique():
        assert_close(centroids[index], values[nearest == index].mean())


@given(weights, st.integers(1, 12), st.sampled_from(["linear", "density", "random"]))
def test_clustering_is_no_worse_than_its_start(values, k, init):
    values = torch.tensor(values, dtype=torch.float64)
    start = initial_centroids(values.sort().values, k, init) if k < len(values) else values.sort().values[:k]
    errors = [(values - c[assign(values, c)]).square().sum().item() for c in (cluster(values, k, init), start)]
    assert errors[0] <= errors[1] + 1e-12


@given(weights, st.integers(0, 5))
def test_as_many_centroids_as_distinct_values_lose_nothing(values, more):
    values = torch.tensor(values, dtype=torch.float64)
    centroids = cluster(values, len(values.unique()) + more)
    assert torch.equal(centroids[assign(values, centroids)], values)


@given(weights, st.integers(1, 12), st.sampled_from(["linear", "density", "random"]))
def test_no_centroid_is_wasted(values, k, init):
    values = torch.tensor(values, dtype=torch.float64)
    centroids = cluster(values, k, init)
    assert len(assign(values, centroids).unique()) == min(k, len(values.unique()))


def test_values_far_smaller_than_the_largest_have_means_of_their_own():
    values = torch.tensor([-1, 1e-20, 2e-20, 6e-20, 8e-20], dtype=torch.float64)
    assert_close(cluster(values, 3), torch.tensor([-1, 1.5e-20, 7e-20], dtype=torch.float64), rtol=1e-12, atol=0)


def test_filters_far_smaller_than_the_others_are_shared():
    torch.manual_seed(0)
    layer = nn.Conv2d(1, 20, 5)
    layer.weight.data[5:] *= 1e-13
    assert len(quantize(layer, QuantizeConfig(levels=256)).weight.unique()) == 256


def test_values_that_differ_in_their_last_bit_only_are_clustered():
    values = 1 + torch.arange(9, dtype=torch.float64) * 2**-52
    centroids = cluster(values, 4)
    assert (centroids[assign(values, centroids)] - values).abs().max() <= 3 * 2**-52


def test_the_three_starts_are_even_in_value_even_in_probability_and_drawn():
    ordered = torch.tensor([0.0, 1, 2, 3, 4, 5, 6, 60], dtype=torch.float64)
    assert initial_centroids(ordered, 4, "linear").tolist() == [0, 20, 40, 60]
    assert initial_centroids(ordered, 4, "density").tolist() == [1, 3, 5, 60]
    drawn = initial_centroids(ordered, 4, "random", seed=1)
    assert set(drawn.tolist()) <= set(ordered.tolist())
    assert torch.equal(drawn, initial_centroids(ordered, 4, "random", seed=1))
    assert any(not torch.equal(drawn, initial_centroids(ordered, 4, "random", seed=seed)) for seed in range(2, 9))


# Laws of every method


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


# Shared values


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


# Learned steps


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


def sibling_at(threshold, model):
    build_sibling(model)
    for function in learned_thresholds(model).values():
        nn.init.constant_(function.threshold, threshold)
    return model


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


# Integers


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


# Which tensors


def test_biases_are_quantised_only_when_asked():
    model = convolutional()
    nn.init.normal_(model[1].bias)
    assert set(quantizers(quantize(copy.deepcopy(model)))) == {"0.weight", "3.weight", "4.weight", "6.weight"}
    asked = quantizers(quantize(model, QuantizeConfig(bias_levels=15)))
    assert {"0.bias", "1.weight", "1.bias", "6.bias"} < set(asked)
    assert all(isinstance(asked[name], LearnedStep) for name in asked if name.endswith("bias"))
    assert len(freeze(model)[6].bias.unique()) <= 15


def test_a_bias_of_zeros_has_no_scale_and_is_left_as_it_is():
    model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))
    nn.init.zeros_(model[0].bias)
    assert quantizers(quantize(model, QuantizeConfig(bias_levels=15))).keys() == {"0.weight", "1.weight", "1.bias"}


@given(st.lists(st.floats(-2, 2, width=32), min_size=1, max_size=40).filter(any), st.integers(3, 33))
def test_biases_round_to_the_nearest_level_zero_included(values, levels):
    layer = nn.Linear(1, len(values))
    layer.bias.data = torch.tensor(values)
    bias = layer.bias.detach().clone()
    frozen = freeze(quantize(layer, QuantizeConfig(bias_levels=levels))).bias
    step = quantizers(layer)["bias"].step
    assert len(frozen.unique()) <= levels
    inside = bias.abs() <= (levels - 1) // 2 * step
    assert ((frozen - bias).abs()[inside] <= step / 2 * (1 + 1e-5)).all()


def test_rules_choose_by_layer():
    model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 8), Custom())
    rules = {"0": 3, "1": None, "2": QuantizeConfig(method="int8"), "3.matrix": 5, "0.bias": 2}
    found = quantizers(quantize(model, QuantizeConfig(levels=7), layers=rules))
    assert found.keys() == {"0.weight", "0.bias", "2.weight", "3.matrix"}
    assert [len(found[name].centroids) for name in ("0.weight", "3.matrix", "0.bias")] == [3, 5, 2]
    assert isinstance(found["2.weight"], IntegerGrid)


def test_rules_name_tensors_of_a_masked_model_as_those_of_the_plain_one():
    model = keep_zeros(sparse(mlp()))
    assert quantizers(quantize(model, layers={"2.weight": None})).keys() == {"0.weight"}


def test_tied_tensors_share_one_quantiser():
    model = quantize(sparse(Tied()), QuantizeConfig(levels=4))
    assert len({id(function) for function in quantizers(model).values()}) == 2
    assert torch.equal(model.embed.weight, model.head.weight)
    tune(model, torch.randint(0, 11, (9, 3)))
    frozen = freeze(model)
    assert frozen.embed.weight is frozen.head.weight
    assert torch.equal(frozen.embed.weight, model.embed.weight)


@pytest.mark.parametrize(
    ("make", "arguments", "message"),
    [
        (lambda: nn.Sequential(nn.ReLU()), {}, "nothing to quantise"),
        (mlp, {"layers": {"3": 4}}, 'no layer or tensor matches "3"'),
        (mlp, {"layers": {nn.Conv2d: 4}}, "no layer of type Conv2d"),
        (mlp, {"layers": {"0.weight": True}}, r'layers\["0.weight"\] must be .*, got True'),
        (mlp, {"layers": {nn.Linear: 3.5}}, r"layers\[Linear\] must be .*, got 3.5"),
        (lambda: quantize(mlp()), {}, '"0.weight" is quantised already'),
        (lambda: build_sibling(mlp()), {}, 'method "shared" fixes what is zero'),
        (lambda: nn.Linear(3, 3, dtype=torch.complex64), {}, "floating-point"),
        (lambda: layer_of([math.nan]), {}, "NaN or infinite"),
        (lambda: nn.Sequential(nn.LazyLinear(3)), {}, "run one batch"),
    ],
)
@pytest.mark.filterwarnings("ignore:Lazy modules are a new feature", "ignore:Complex modules are a new feature")
def test_what_cannot_be_quantised_is_refused_in_one_sentence(make, arguments, message):
    with pytest.raises(ValueError, match=message):
        quantize(make(), **arguments)


def test_a_refused_model_is_left_as_it_was():
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    nn.init.constant_(model[1].weight, math.inf)
    with pytest.raises(ValueError, match=r'"1\.weight" holds NaN'):
        quantize(model)
    assert list(model.state_dict()) == ["0.weight", "0.bias", "1.weight", "1.bias"]
    assert model[0].weight.requires_grad


@pytest.mark.parametrize(
    "settings",
    [
        {"method": "k-means"},
        {"init": "kmeans++"},
        {"granularity": "row"},
        {"levels": 0},
        {"levels": 65_536},
        {"levels": 3.5},
        {"levels": True},
        {"bias_levels": 2},
        {"bias_levels": 7.0},
        {"cutoff": -1.0},
    ],
)
def test_impossible_settings_are_refused(settings):
    with pytest.raises(ValueError, match=next(iter(settings))):
        QuantizeConfig(**settings)


def test_freezing_what_is_not_quantised_is_refused():
    with pytest.raises(ValueError, match="is not quantised"):
        freeze(mlp())


def test_a_quantised_sibling_that_would_vanish_is_refused():
    sibling = quantize(sibling_at(0.1, mlp()), QuantizeConfig(method="uniform"))
    learned_thresholds(sibling)["2.weight"].threshold.data.fill_(0.9)
    with pytest.raises(ValueError, match=r'"2\.weight" would lose all of its 64 weights'):
        freeze(sibling)


# Behaviours of any model


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("case", CASES)
def test_a_deep_copy_computes_the_same_and_trains_alone(case, method):
    make, inputs = CASES[case]
    model, x = quantize(sparse(make()), QuantizeConfig(method=method, levels=4)).eval(), inputs()
    outputs = model(x)
    twin = copy.deepcopy(model)
    assert torch.equal(twin(x), outputs)
    tune(twin, x)
    assert torch.equal(model(x), outputs)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("case", CASES)
def test_a_state_dict_round_trips(case, method):
    make, inputs = CASES[case]
    config = QuantizeConfig(method=method, levels=4, bias_levels=7)
    model, fresh, x = quantize(sparse(make()), config), quantize(sparse(make()), config), inputs()
    tune(model, x)
    file = io.BytesIO()
    torch.save(model.state_dict(), file)
    file.seek(0)
    fresh.load_state_dict(torch.load(file, weights_only=True), strict=True)
    assert torch.equal(fresh.eval()(x), model.eval()(x))
    assert coded_bits(fresh).item() == coded_bits(model).item()


@pytest.mark.parametrize(
    ("case", "method"), [("mlp", "int4"), ("tied", "shared"), ("attention", "uniform"), ("convolutional", "int8")]
)
def test_a_compiled_model_trains_like_an_eager_one(case, method):
    torch._dynamo.reset()
    make, inputs = CASES[case]
    model, x = quantize(sparse(make()), QuantizeConfig(method=method, levels=4, bias_levels=9)), inputs()
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    grads = []
    for run in (compiled, model):
        model.zero_grad()
        with torch._dynamo.config.patch(error_on_recompile=True):
            run(x).square().mean().backward()
        grads.append({name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None})
    assert grads[0].keys() == grads[1].keys()
    assert_close(*grads, rtol=1e-4, atol=1e-6)


def test_a_compiled_quantised_sibling_trains_like_an_eager_one():
    torch._dynamo.reset()
    model, x = quantize(sibling_at(0.1, mlp()), QuantizeConfig(method="uniform", levels=4)), torch.randn(9, 12)
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    grads = []
    for run in (compiled, model):
        model.zero_grad()
        (run(x).square().mean() + penalty(model)).backward()
        grads.append([parameter.grad.clone() for parameter in model.parameters()])
    assert_close(*grads, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("case", ["mlp", "lstm"])
def test_two_forwards_before_one_backward_add_up(case, method):
    make, inputs = CASES[case]
    model, x = quantize(sparse(make()), QuantizeConfig(method=method, levels=4)), inputs()

    def gradients(*losses):
        model.zero_grad()
        for loss in losses:
            loss().backward()
        return [p.grad.clone() for p in model.parameters() if p.grad is not None]

    first, second = (lambda: model(x).square().mean()), (lambda: model(2 * x).sum())
    assert_close(gradients(lambda: first() + second()), gradients(first, second), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("case", ["convolutional", "lstm"])
def test_a_quantised_model_exports(case, method):
    make, inputs = CASES[case]
    model, x = quantize(sparse(make()), QuantizeConfig(method=method, levels=4)).eval(), inputs()
    assert_close(torch.export.export(model, (x,)).module()(x), model(x))


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_other_precisions_keep_zeros_and_learn(method, dtype):
    model, x = sparse(mlp()).to(dtype), torch.randn(9, 12, dtype=dtype)
    kept = model[0].weight != 0
    quantize(model, QuantizeConfig(method=method, levels=4, bias_levels=7))
    assert model[0].weight.dtype is dtype
    frozen = freeze(tune(model, x))
    assert frozen[0].weight.dtype is dtype
    assert coded_bits(model).dtype is torch.float32
    assert torch.equal(frozen[0].weight != 0, kept)


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU])
def test_recurrent_layers_read_their_quantised_weights(kind):
    model, x = quantize(sparse(Recurrent(kind)), QuantizeConfig(levels=2)), torch.randn(3, 9, 5)
    assert_close(freeze(model)(x), model(x))


@pytest.mark.parametrize("method", METHODS)
def test_counting_sees_the_quantised_weights(method):
    model = sparse(mlp())
    expected = count(model).prunable.kept
    assert count(quantize(model, QuantizeConfig(method=method))).prunable.kept == expected


def test_what_a_quantiser_learns_is_never_decayed():
    model = quantize(sparse(mlp()), QuantizeConfig(method="uniform", bias_levels=7), layers={"2": QuantizeConfig()})
    model[2].parametrizations.weight.original.requires_grad_(True)
    decayed, free = parameter_groups(model, lr=0.1, lambda_wd=0.5, decay_biases=True)
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    assert free["weight_decay"] == 0
    assert {names[id(p)].rpartition(".")[2] for p in free["params"]} == {"log_step", "centroids"}
    assert {names[id(p)].rpartition(".")[2] for p in decayed["params"]} == {"original", "bias"}


class Images:
    """A few labelled vectors in memory."""

    def __init__(self):
        self.inputs, self.labels = torch.randn(40, 12), torch.arange(40) % 4

    def __len__(self):
        return len(self.labels)

    def batch(self, indices, generator):
        return self.inputs[indices], self.labels[indices]


@pytest.mark.parametrize("method", METHODS)
def test_the_loop_fine_tunes_a_quantised_model_and_resumes_it(method, tmp_path):
    config = TrainConfig(fine_tune_epochs=3, batch_size=8, fine_tune_lr=1e-2, schedule="cosine")
    images, model = (
        Images(),
        quantize(keep_zeros(sparse(mlp())), QuantizeConfig(method=method, levels=4, bias_levels=7)),
    )

    def run(model, name, stop_after=3):
        def measure(model):
            measured.append(coded_bits(model).item())
            if len(measured) == stop_after:
                raise KeyboardInterrupt
            return {"bits": measured[-1]}

        measured = []
        journal = Journal(checkpoint=tmp_path / name, log=tmp_path / f"{name}.log")
        fit(model, images, config, phase="fine-tune", seed=0, measure=measure, journal=journal)

    straight, resumed = copy.deepcopy(model), copy.deepcopy(model)
    before = functional.cross_entropy(model(images.inputs), images.labels)
    run(straight, "straight", stop_after=0)
    with pytest.raises(KeyboardInterrupt):
        run(copy.deepcopy(model), "resumed", stop_after=2)
    run(resumed, "resumed", stop_after=0)
    assert_close(resumed.state_dict(), straight.state_dict(), rtol=0, atol=0)
    assert functional.cross_entropy(straight(images.inputs), images.labels) < before


# Bits


@given(st.lists(st.integers(0, 300), min_size=1, max_size=12))
def test_an_adaptive_code_is_the_entropy_and_the_price_of_learning_it(counts):
    counts = torch.tensor(counts)
    n, used = int(counts.sum()), int((counts > 0).sum())
    bits = adaptive_bits(counts).item()
    assert entropy_bits(counts) - 1e-6 <= bits <= entropy_bits(counts) + (used - 1) / 2 * math.log2(n + 1) + used + 1e-6


def test_an_adaptive_code_is_the_product_of_its_predictions():
    symbols, counts, bits = [0, 2, 2, 1, 0, 2], torch.zeros(3), 0.0
    for symbol in symbols:
        bits -= math.log2((counts[symbol] + 0.5) / (counts.sum() + 1.5))
        counts[symbol] += 1
    assert adaptive_bits(counts).item() == pytest.approx(bits)


def test_one_more_symbol_costs_what_the_code_grows_by():
    counts = torch.tensor([5, 1, 9])
    grown = torch.stack([counts + torch.eye(3)[k] for k in range(3)])
    assert_close(symbol_bits(counts), adaptive_bits(grown) - adaptive_bits(counts))


@given(st.integers(1, 40), st.integers(2, 40), st.floats(0, 1))
def test_positions_cost_no_more_than_one_code_for_all(rows, columns, density):
    kept = torch.rand(rows, columns) < density
    whole = adaptive_bits(torch.tensor([kept.sum(), kept.numel() - kept.sum()])).item()
    assert 0 <= position_bits(kept).item() <= whole + 1e-9


def test_scattered_positions_cost_their_entropy():
    torch.manual_seed(0)
    kept = torch.rand(300, 784) < 0.02
    expected = entropy_bits(torch.tensor([kept.sum(), kept.numel() - kept.sum()]))
    assert position_bits(kept).item() == pytest.approx(expected, rel=0.01)


def test_positions_that_rows_and_columns_explain_cost_their_conditional_entropy():
    torch.manual_seed(0)
    row, column = torch.tensor([0.005, 0.1]).repeat(200)[:, None], torch.tensor([0.1, 1.0]).repeat(300)
    chances = row * column
    kept = torch.rand(400, 600) < chances
    ideal = -(torch.where(kept, chances, 1 - chances)).log2().sum().item()
    learning = 200 * math.log2(600) + 300 * math.log2(400)  # half a logarithm for every row and column
    assert 0.99 * ideal < position_bits(kept).item() < ideal + learning
    assert ideal + learning < adaptive_bits(torch.tensor([kept.sum(), kept.numel() - kept.sum()]))


@pytest.mark.parametrize("method", METHODS)
def test_the_estimate_is_near_the_real_entropies(method):
    torch.manual_seed(1)
    layer = sparse(nn.Linear(200, 100, bias=False), 0.95)
    model = quantize(layer, QuantizeConfig(method=method, levels=6))
    values = freeze(model).weight.detach()
    values, counts = values[values != 0].unique(return_counts=True)
    kept = int(counts.sum())
    side = {"shared": 16 * len(values)}.get(method, 16)
    ideal = entropy_bits(torch.tensor([kept, 20_000 - kept])) + entropy_bits(counts) + side
    learning = (len(values) + 1) / 2 * math.log2(kept) + len(values)
    assert ideal - 1 <= coded_bits(model).item() <= ideal + learning


def test_what_is_not_quantised_counts_with_all_of_its_bits():
    assert coded_bits(mlp()).item() == 32 * (12 * 16 + 16 + 16 * 4 + 4)
    norm = nn.BatchNorm1d(5)
    nn.init.ones_(norm.bias)
    assert coded_bits(norm).item() == 32 * 4 * 5 + 64
    layer = sparse(nn.Linear(100, 100, bias=False), 0.9)
    kept = int(layer.weight.count_nonzero())
    assert coded_bits(layer).item() == pytest.approx(32 * kept + position_bits(layer.weight != 0).item())


@pytest.mark.filterwarnings("ignore:Initializing zero-element tensors")
def test_empty_tensors_take_no_bits():
    assert coded_bits(nn.Linear(5, 0)).item() == 0
    layer = nn.Linear(0, 5)
    nn.init.ones_(layer.bias)
    assert coded_bits(layer).item() == 32 * 5


def test_tied_tensors_are_coded_once():
    model = quantize(Tied(), QuantizeConfig(method="uniform"))
    head = copy.deepcopy(model)
    head.head = nn.Identity()
    assert coded_bits(model).item() == coded_bits(head).item()


def test_the_bits_along_the_way_from_zero_add_up_to_what_a_weight_costs():
    torch.manual_seed(0)
    levels = torch.randint(-2, 3, (20, 30)).float()
    levels[0, 0] = 0
    ratios = (torch.arange(0, 40) + 0.5) / 20  # from 0 to 2
    total = 0.0
    for ratio in ratios:
        probe = levels.clone()
        probe[0, 0] = ratio
        probe.requires_grad_()
        grid_bits(probe, levels, 2, zeros_are_fixed=False).backward()
        total += probe.grad[0, 0].item() / 20
    with_two = levels.clone()
    with_two[0, 0] = 2
    costs = [grid_bits(each, each, 2, zeros_are_fixed=False).item() for each in (levels, with_two)]
    assert total == pytest.approx(costs[1] - costs[0], abs=0.05)


def test_a_fixed_survivor_gains_nothing_below_the_first_level():
    ratio = torch.tensor([[0.0, 0.4, -0.9, 1.5, -2.5]], requires_grad=True)
    levels = torch.tensor([[0.0, 1, -1, 2, -2]])
    grid_bits(ratio, levels, 2, zeros_are_fixed=True).backward()
    assert ratio.grad[0, :3].tolist() == [0, 0, 0]
    assert ratio.grad[0, 4].item() == 0  # clipped


def test_the_rate_pulls_small_weights_and_large_levels_down():
    layer = nn.Linear(60, 60)
    nn.init.normal_(layer.weight, std=0.1)
    sibling = quantize(sibling_at(0.1, layer), QuantizeConfig(method="uniform", levels=8))
    coded_bits(sibling).backward()
    weight = sibling.parametrizations.weight.original
    assert learned_thresholds(sibling)["weight"].threshold.grad.item() < 0  # a step downhill raises it
    assert (weight.grad * weight.detach().sign()).sum() > 0
    assert quantizers(sibling)["weight"].log_step.grad.item() < 0


def test_raising_lambda_rate_lowers_the_estimate_and_the_true_entropy():
    torch.manual_seed(0)
    images = torch.randn(200, 12)
    estimates, entropies = [], []
    start = quantize(
        sibling_at(0.02, nn.Sequential(nn.Linear(12, 40), nn.ReLU(), nn.Linear(40, 4))),
        QuantizeConfig(method="uniform", levels=8),
    )
    for rate in (0.0, 1e-4, 1e-3):
        model = tune(copy.deepcopy(start), images, steps=60, rate=rate)
        estimates.append(coded_bits(model).item())
        values = matrices(freeze(model)).values()
        entropies.append(sum(entropy_bits(value.unique(return_counts=True)[1]) for value in values))
    assert estimates[0] > estimates[1] > estimates[2]
    assert entropies[0] > entropies[1] > entropies[2]


def test_shared_values_have_bits_without_a_gradient():
    model = quantize(sparse(mlp()), QuantizeConfig(levels=4))
    assert not coded_bits(model).requires_grad
    (functional.mse_loss(model(torch.randn(3, 12)), torch.zeros(3, 4)) + 0.1 * coded_bits(model)).backward()


def test_filters_in_channels_last_order_are_shared_without_a_word():
    torch.manual_seed(0)
    layer = nn.Sequential(nn.Conv2d(4, 8, 3)).to(memory_format=torch.channels_last)
    weight = layer[0].weight.detach().clone()
    quantize(layer, QuantizeConfig(levels=500))
    assert_close(layer[0].weight, weight)
