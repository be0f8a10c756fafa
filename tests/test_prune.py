"""Cutting: a plain model comes out, with exact zeros, and they stay."""

import copy
import math
import warnings

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.testing import assert_close
from toy_networks import CASES, Tied, convolutional, mlp, train

from secateur import SiblingConfig, build_sibling, keep_zeros, learned_thresholds, penalty, prune, theta
from secateur.prune import prune_
from secateur.weights.tensors import tensors


def trained(make=mlp, threshold=0.1):
    model = build_sibling(make())
    for function in learned_thresholds(model).values():
        nn.init.constant_(function.threshold, threshold)
    return model


@pytest.mark.parametrize("case", CASES)
def test_what_comes_out_is_the_plain_model(case):
    make, inputs = CASES[case]
    plain, sibling = make(), build_sibling(make())
    train(sibling, inputs())
    pruned = prune(sibling)
    assert [type(module) for module in pruned.modules()] == [type(module) for module in plain.modules()]
    assert list(pruned.state_dict()) == list(plain.state_dict())
    assert not any(module._forward_hooks or module._load_state_dict_pre_hooks for module in pruned.modules())
    plain.load_state_dict(pruned.state_dict(), strict=True)


@pytest.mark.parametrize("case", CASES)
def test_survivors_that_keep_theta_preserve_the_function(case):
    make, inputs = CASES[case]
    sibling, x = trained(make), inputs()
    assert_close(prune(sibling, 0).eval()(x), sibling.eval()(x))


@pytest.mark.parametrize("case", CASES)
def test_a_cut_in_place_leaves_the_bits_of_a_cut_copy_and_the_same_parameters(case):
    sibling = trained(CASES[case][0])
    expected, stored = prune(sibling, 0.01), [tensor.stored for tensor in tensors(sibling)]
    prune_(sibling, 0.01)
    assert list(sibling.state_dict()) == list(expected.state_dict())
    assert all(torch.equal(value, expected.state_dict()[name]) for name, value in sibling.state_dict().items())
    assert {id(tensor.stored) for tensor in tensors(sibling)} == {id(each) for each in stored}


def test_a_sibling_that_cannot_be_cut_in_place_stays_as_it_was():
    sibling = trained()
    nn.init.constant_(learned_thresholds(sibling)["2.weight"].threshold, 10.0)
    before = copy.deepcopy(sibling.state_dict())
    with pytest.raises(ValueError, match=r'"2\.weight" would lose all of its 64 weights'):
        prune_(sibling)
    assert all(torch.equal(value, before[name]) for name, value in sibling.state_dict().items())


def test_weights_below_the_cutoff_become_exact_zeros_and_the_others_keep_theta():
    sibling = trained()
    function = learned_thresholds(sibling)["0.weight"]
    mapped = theta(sibling[0].parametrizations.weight.original, function.threshold, function.alpha)
    expected = torch.where(mapped.abs() >= 0.01, mapped, 0.0)
    assert 0 < expected.count_nonzero() < expected.numel()
    assert torch.equal(prune(sibling, 0.01)[0].weight, expected)


def test_the_papers_literal_form_keeps_the_raw_weights():
    sibling = trained()
    raw = sibling[0].parametrizations.weight.original
    by_theta, literal = prune(sibling)[0].weight, prune(sibling, survivors="raw")[0].weight
    assert torch.equal(by_theta != 0, literal != 0)
    assert torch.equal(literal, torch.where(by_theta != 0, raw, 0.0))


def test_the_sibling_stays_usable():
    sibling, x = trained(), torch.randn(5, 12)
    before = sibling(x)
    prune(sibling)
    assert torch.equal(sibling(x), before)
    train(sibling, x)
    assert not torch.equal(sibling(x), before)


def test_pruning_a_deep_copy_leaves_the_original_sibling_intact():
    sibling, x = trained(), torch.randn(5, 12)
    before = sibling(x)
    prune(copy.deepcopy(sibling))
    assert torch.equal(sibling(x), before)
    assert sum(bool(tensor.functions) for tensor in tensors(sibling)) == 2


def test_ties_come_back():
    pruned = prune(trained(Tied))
    assert pruned.head.weight is pruned.embed.weight
    assert (pruned.embed.weight == 0).any()


def test_a_parametrization_of_other_code_survives_the_cut():
    model = nn.Sequential(nn.Linear(4, 4))
    build_sibling(model)
    nn.utils.parametrize.register_parametrization(model[0], "bias", nn.Tanh())
    x = torch.randn(3, 4)
    pruned = prune(model, 0)
    assert_close(pruned(x), model(x))
    assert nn.utils.parametrize.is_parametrized(pruned[0], "bias")
    assert isinstance(pruned[0].weight, nn.Parameter)
    assert_close(prune(model, 0)(x), model(x))


@pytest.mark.filterwarnings("ignore:.*no threshold gets a gradient")
def test_a_layer_that_would_vanish_is_refused_unless_allowed():
    sibling = trained(threshold=0.1)
    learned_thresholds(sibling)["2.weight"].threshold.data.fill_(0.9)
    with pytest.raises(ValueError, match=r'"2\.weight" would lose all of its 64 weights \(threshold 0\.9'):
        prune(sibling)
    assert not prune(sibling, allow_empty=True)[2].weight.any()


def test_a_threshold_without_gradient_is_pointed_out():
    sibling = trained()
    learned_thresholds(sibling)["2.weight"].threshold.data.fill_(30.0)
    with pytest.warns(UserWarning, match=r'"2\.weight": no threshold gets a gradient any more'):
        prune(sibling, allow_empty=True)


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda s: learned_thresholds(s)["0.weight"].threshold.data.fill_(math.nan), "has the threshold nan"),
        (
            lambda s: s[0].parametrizations.weight.original.data[0, 0].fill_(math.nan),
            "holds NaN or infinite weights",
        ),
    ],
)
def test_a_diverged_sibling_is_refused(spoil, message):
    sibling = trained()
    spoil(sibling)
    with pytest.raises(ValueError, match=message):
        prune(sibling)


@pytest.mark.parametrize(
    ("model", "arguments", "message"),
    [
        (mlp, {}, "is not a sibling"),
        (trained, {"cutoff": -0.1}, "cutoff must be"),
        (trained, {"cutoff": math.nan}, "cutoff must be"),
        (trained, {"survivors": "hard"}, "survivors must be"),
    ],
)
def test_wrong_arguments_are_refused(model, arguments, message):
    with pytest.raises(ValueError, match=message):
        prune(model(), **arguments)


OPTIMIZERS = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.01, momentum=0.9, weight_decay=0.1, nesterov=True),
    "adam": lambda p: torch.optim.Adam(p, lr=0.01, weight_decay=0.1),
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.01, weight_decay=0.1),
    "rmsprop": lambda p: torch.optim.RMSprop(p, lr=0.01, momentum=0.9, weight_decay=0.1),
    "fused": lambda p: torch.optim.Adam(p, lr=0.01, weight_decay=0.1, fused=True),
}


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_a_hundred_steps_leave_every_zero_zero(optimizer):
    pruned, x = prune(trained(convolutional)), torch.randn(9, 2, 6, 6)
    zeros = {name: value == 0 for name, value in pruned.state_dict().items() if value.dim() > 1}
    started = {name: value.clone() for name, value in pruned.state_dict().items()}
    tuned = keep_zeros(pruned)
    steps = OPTIMIZERS[optimizer](tuned.parameters())
    for group in steps.param_groups:  # momentum that remembers the time before the cut
        for parameter in group["params"]:
            parameter.grad = torch.randn_like(parameter)
    steps.step()
    for _ in range(99):
        steps.zero_grad()
        functional.cross_entropy(tuned(x), torch.arange(9) % 4).backward()
        steps.step()
    finished = prune(tuned).state_dict()
    for name, zero in zeros.items():
        assert not finished[name][zero].any()
        assert not torch.equal(finished[name], started[name])


@pytest.mark.parametrize("channels", [1, 3])
def test_kept_zeros_keep_the_order_of_the_memory(channels):
    layer = nn.Conv2d(channels, 4, 3).to(memory_format=torch.channels_last)
    nn.init.zeros_(layer.weight[0])
    order = layer.weight.stride()
    assert keep_zeros(layer).weight.stride() == order


def test_a_sibling_has_no_zeros_to_keep():
    sibling = trained()
    before = list(sibling.state_dict())
    with pytest.raises(ValueError, match="has a threshold, and no zeros yet: prune the sibling first"):
        keep_zeros(sibling)
    assert list(sibling.state_dict()) == before


def test_zeros_that_are_kept_are_kept_once():
    model = keep_zeros(prune(trained()))
    before = list(model.state_dict())
    assert list(keep_zeros(model).state_dict()) == before


def test_pruning_works_in_inference_mode_and_gives_weights_that_can_be_trained():
    sibling = trained()
    with torch.inference_mode():
        pruned = prune(sibling)
    assert not any(parameter.is_inference() for parameter in pruned.parameters())
    assert_close(pruned.state_dict(), prune(sibling).state_dict())


def test_a_model_without_zeros_has_nothing_to_keep():
    with pytest.raises(ValueError, match="no zero weights"):
        keep_zeros(mlp())


def test_a_theta_too_soft_for_its_weights_is_named_with_the_alpha_it_needs():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(200, 50, bias=False))
    nn.init.normal_(model[0].weight, std=0.045)
    for alpha, warned in ((50.0, True), (100.0, False), (500.0, False)):
        sibling = build_sibling(copy.deepcopy(model), SiblingConfig(alpha=alpha, init_quantile=0.95))
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            prune(sibling)
        said = [str(each.message) for each in caught]
        assert (len(said) == 1) == warned, (alpha, said)
        if warned:
            assert '"0.weight": 9500 of 10000 weights are below the threshold' in said[0]
            assert "an alpha of about 1" in said[0]


def trained_with_penalty(lambda_t, steps=25):
    torch.manual_seed(0)
    sibling = build_sibling(nn.Sequential(nn.Linear(20, 30), nn.ReLU(), nn.Linear(30, 3)))
    x, y = torch.randn(40, 20), torch.arange(40) % 3
    for _ in range(steps):
        sibling.zero_grad()
        (functional.cross_entropy(sibling(x), y) + penalty(sibling, lambda_t)).backward()
    return sibling, x, y


def test_a_penalty_that_drowns_the_task_is_named():
    sibling, _, _ = trained_with_penalty(lambda_t=1e3)
    with pytest.warns(UserWarning, match=r"about [\d,]+ times the task's for 2 of 2 thresholds .*0.weight"):
        prune(sibling)


def test_gradients_of_penalty_and_task_are_compared_by_their_sizes():
    sibling, x, y = trained_with_penalty(lambda_t=1e-2)
    for name, function in learned_thresholds(sibling).items():
        [task] = torch.autograd.grad(functional.cross_entropy(sibling(x), y), function.threshold)
        [both] = torch.autograd.grad(penalty(sibling, 1e-2), function.threshold)
        assert function.penalty_to_task == pytest.approx((both / task).abs().item(), rel=1e-3), name


def test_a_training_too_short_to_compare_says_nothing_of_its_penalty():
    sibling, _, _ = trained_with_penalty(lambda_t=1e3, steps=5)
    assert all(math.isnan(function.penalty_to_task) for function in learned_thresholds(sibling).values())
    prune(sibling)
