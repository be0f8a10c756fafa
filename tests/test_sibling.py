"""Building: which tensors get thresholds, where those start, and what is refused."""

import copy
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.testing import assert_close
from toy_networks import CASES, Attention, Custom, Recurrent, Tied, convolutional, mlp

from secateur import SiblingConfig, build_sibling, learned_thresholds, targets, theta


def thresholds_of(model, config=None, layers=None):
    sibling = build_sibling(model, config, layers=layers)
    return {name: tuple(function.threshold.shape) for name, function in learned_thresholds(sibling).items()}


def test_building_is_in_place_and_keeps_the_class():
    model = mlp()
    assert build_sibling(model) is model
    assert isinstance(model[0], nn.Linear)


def test_a_sibling_computes_with_theta_of_its_weights():
    model, x = mlp(), torch.randn(5, 12)
    raw = model[0].weight.detach().clone()
    build_sibling(model, SiblingConfig(alpha=30))
    threshold = learned_thresholds(model)["0.weight"].threshold
    assert_close(model[0](x), nn.functional.linear(x, theta(raw, threshold, 30), model[0].bias))


def test_the_papers_granularity_is_filters_for_convolutions_and_layers_otherwise():
    assert thresholds_of(convolutional()) == {
        "0.weight": (6, 1, 1, 1),
        "3.weight": (6, 1, 1, 1),
        "4.weight": (1, 4, 1, 1),  # a transposed convolution stores its filters second
        "6.weight": (1, 1),
    }


@pytest.mark.parametrize(
    ("granularity", "linear", "convolution"),
    [
        ("layer", (1, 1), (1, 1, 1, 1)),
        ("filter", (4, 1), (6, 1, 1, 1)),
        ("row", (4, 1), (6, 1, 1, 1)),
        ("element", (4, 100), (6, 2, 3, 3)),
    ],
)
def test_granularity_decides_what_shares_a_threshold(granularity, linear, convolution):
    shapes = thresholds_of(convolutional(), SiblingConfig(granularity=granularity))
    assert (shapes["6.weight"], shapes["0.weight"]) == (linear, convolution)


@given(st.floats(0, 0.99), st.sampled_from(["layer", "filter", "element"]), st.integers(0, 1000))
def test_a_share_p_of_each_group_starts_below_its_threshold(p, granularity, seed):
    torch.manual_seed(seed)
    layer = nn.Conv2d(3, 4, 3)
    size = layer.weight.detach().abs()
    build_sibling(layer, SiblingConfig(granularity=granularity, init_quantile=p))
    threshold = learned_thresholds(layer)["weight"].threshold
    group = {"layer": 108, "filter": 27, "element": 1}[granularity]
    below = (size < threshold).view(-1, group).sum(1)
    assert (below == math.floor(p * group)).all()


@pytest.mark.parametrize("make", [mlp, lambda: nn.Conv2d(6, 6, 3, groups=6)], ids=["elements", "filters of nine"])
def test_groups_of_which_no_whole_weight_is_a_share_start_untouched(make):
    config = SiblingConfig(granularity="element" if make is mlp else "filter", init_quantile=0.1)
    model = make()
    before = [parameter.clone() for parameter in model.parameters()]
    sibling = build_sibling(copy.deepcopy(model), config)
    layers = [module for module in sibling.modules() if isinstance(module, nn.Linear | nn.Conv2d)]
    read = [tensor for layer in layers for tensor in (layer.weight, layer.bias)]
    for tensor, plain in zip(read, before, strict=True):
        assert_close(tensor, plain)


def test_a_quantile_of_zero_starts_with_the_network_untouched():
    model, x = mlp(), torch.randn(5, 12)
    expected = model(x)
    build_sibling(model, SiblingConfig(init_quantile=0))
    assert torch.equal(model(x), expected)


def test_the_inverse_start_keeps_a_trained_networks_function():
    model, x = mlp().double(), torch.randn(5, 12, dtype=torch.float64)
    expected = model(x)
    build_sibling(model, SiblingConfig(init="inverse", init_quantile=0.5, alpha=20))
    assert_close(model(x), expected)


@pytest.mark.parametrize("case", CASES)
def test_targets_say_beforehand_what_building_does(case):
    make, _ = CASES[case]
    model = make()
    planned = {target.name: target.thresholds for target in targets(model)}
    built = {name: f.threshold.numel() for name, f in learned_thresholds(build_sibling(model)).items()}
    assert planned == built


def test_attention_and_recurrent_matrices_are_found():
    assert thresholds_of(Attention()).keys() == {
        "attention.in_proj_weight",
        "attention.out_proj.weight",
        "head.weight",
    }
    names = thresholds_of(Recurrent(nn.LSTM)).keys()
    assert len(names) == 9
    assert "rnn.weight_hh_l1_reverse" in names


def test_tied_tensors_share_one_threshold():
    model = build_sibling(Tied())
    functions = learned_thresholds(model)
    assert functions.keys() == {"embed.weight", "body.weight"}
    assert model.head.parametrizations.weight[0] is functions["embed.weight"]
    assert model.head.parametrizations.weight.original is model.embed.parametrizations.weight.original


def test_none_leaves_a_layer_alone():
    assert thresholds_of(mlp(), layers={"2": None}).keys() == {"0.weight"}
    assert thresholds_of(convolutional(), layers={nn.Linear: None}).keys() == {
        "0.weight",
        "3.weight",
        "4.weight",
    }


def test_custom_tensors_and_biases_are_pruned_when_named():
    model = nn.Sequential(Custom(), nn.Linear(6, 3))
    rules = {"0.matrix": SiblingConfig(), "1.bias": SiblingConfig(init_quantile=0)}
    assert thresholds_of(model, layers=rules) == {"0.matrix": (1, 1), "1.weight": (1, 1), "1.bias": (1,)}


def test_the_most_specific_rule_wins():
    rules = {
        nn.Module: SiblingConfig(alpha=1),
        nn.Linear: SiblingConfig(alpha=2),
        "*": SiblingConfig(alpha=3),
        "head*": SiblingConfig(alpha=4),
        "head.0": SiblingConfig(alpha=5),
        "head.1.weight": SiblingConfig(alpha=6),
    }
    model = nn.ModuleDict(
        {"body": nn.Linear(3, 3), "head": nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3), nn.Linear(3, 3))}
    )
    alphas = {name: f.alpha for name, f in learned_thresholds(build_sibling(model, layers=rules)).items()}
    assert alphas == {"body.weight": 3, "head.0.weight": 5, "head.1.weight": 6, "head.2.weight": 4}
    only_types = {nn.Module: SiblingConfig(alpha=1), nn.Linear: SiblingConfig(alpha=2)}
    sibling = build_sibling(nn.Sequential(nn.Linear(2, 2), nn.Conv1d(2, 2, 1)), layers=only_types)
    assert [f.alpha for f in learned_thresholds(sibling).values()] == [2, 1]


@pytest.mark.parametrize(
    ("make", "layers", "message"),
    [
        (lambda: nn.Sequential(nn.ReLU()), None, "nothing to prune"),
        (lambda: nn.Sequential(Custom()), None, "nothing to prune"),
        (mlp, {"3": None}, 'no layer or tensor matches "3"'),
        (lambda: nn.ModuleDict({"encoder": nn.Linear(2, 2)}), {"encodr": None}, 'did you mean "encoder"'),
        (mlp, {nn.Conv2d: None}, "no layer of type Conv2d"),
        (Tied, {"head": None}, '"embed.weight" and "head.weight" are one tied tensor'),
        (lambda: build_sibling(mlp()), None, 'layer "0" is parametrized already'),
        (lambda: nn.Sequential(nn.LazyLinear(3)), None, "run one batch"),
        (lambda: nn.Sequential(nn.Linear(0, 3)), None, "is empty"),
        (lambda: nn.Sequential(nn.Linear(3, 3, dtype=torch.complex64)), None, "floating-point"),
        (mlp, {"2": False}, r'layers\["2"\] must be a SiblingConfig or None, got False'),
        (mlp, {nn.Linear: 50.0}, r"layers\[Linear\] must be"),
        (mlp, {nn.Linear(2, 2): None}, "a mapping from names or types"),
    ],
)
@pytest.mark.filterwarnings("ignore:Initializing zero-element tensors", "ignore:Lazy modules are a new feature")
@pytest.mark.filterwarnings("ignore:Complex modules are a new feature")
def test_what_cannot_be_built_is_refused_in_one_sentence(make, layers, message):
    with pytest.raises(ValueError, match=message):
        build_sibling(make(), layers=layers)


def test_a_refused_model_is_left_as_it_was():
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    with torch.no_grad():
        model[1].weight[0, 0] = math.nan
    with pytest.raises(ValueError, match=r'"1\.weight" holds NaN'):
        build_sibling(model)
    assert list(model.state_dict()) == ["0.weight", "0.bias", "1.weight", "1.bias"]


def test_an_all_zero_weight_is_pointed_out():
    model = nn.Linear(3, 3)
    nn.init.zeros_(model.weight)
    with pytest.warns(UserWarning, match='"weight" is all zeros'):
        build_sibling(model)


@pytest.mark.parametrize(
    "settings",
    [
        {"alpha": 0},
        {"alpha": -1},
        {"alpha": math.inf},
        {"init_quantile": 1},
        {"init_quantile": -0.1},
        {"granularity": "layers"},
        {"init": "invers"},
    ],
)
def test_impossible_settings_are_refused(settings):
    with pytest.raises(ValueError, match=next(iter(settings))):
        SiblingConfig(**settings)
