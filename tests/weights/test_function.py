"""The type of all weight functions: what a new one gets for its few lines."""

import copy

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations, parametrize
from torch.testing import assert_close
from toy_networks import CASES, Tied, mlp

from secateur import (
    QuantizeConfig,
    SiblingConfig,
    WeightFunction,
    build_sibling,
    coded_bits,
    freeze,
    keep_zeros,
    learned_thresholds,
    parameter_groups,
    penalty,
    prune,
    quantize,
    settle,
)
from secateur.weights.function import after_step, functions
from secateur.weights.reading import attach
from secateur.weights.tensors import parameters, tensors


class Sign(WeightFunction):
    """±scale, with every method of a function in use."""

    def __init__(self, weight):
        super().__init__()
        self.scale = nn.Parameter(weight.detach().abs().mean())

    def forward(self, weight):
        return self.scale * (weight + (weight.sign() - weight).detach())

    def penalty(self, weight):
        return (weight.abs() - 1).square().sum()

    def after_step(self, weight):
        weight.clamp_(-0.1, 0.1)


class Half(WeightFunction):
    def forward(self, weight):
        return weight / 2


class Replaced(WeightFunction):
    """A function that does not read the stored weight."""

    reads_weight = False

    def __init__(self, value):
        super().__init__()
        self.value = nn.Parameter(value)

    def forward(self, weight):
        return self.value


def with_function(model, make):
    for tensor in parameters(model):
        if tensor.is_weight:
            attach(tensor, make(tensor.stored))
    return model


@pytest.mark.parametrize("case", CASES)
def test_any_function_settles_to_a_plain_copy(case):
    make, inputs = CASES[case]
    model, plain, x = with_function(make(), Sign).eval(), make(), inputs()
    settled = settle(model)
    assert_close(settled(x), model(x))
    assert list(settled.state_dict()) == list(plain.state_dict())
    assert [type(module) for module in settled.modules()] == [type(module) for module in plain.modules()]
    assert functions(model)
    assert not functions(settled)


def test_functions_settle_in_the_order_of_their_chain():
    model = with_function(with_function(nn.Linear(3, 2), Sign), lambda _: Half())
    scale = model.parametrizations.weight[0].scale.item()
    assert settle(model).weight.abs().unique().tolist() == pytest.approx([scale / 2])


def test_settling_a_plain_network_copies_it():
    model = mlp()
    settled = settle(model)
    assert_close(settled.state_dict(), model.state_dict())
    assert settled[0].weight is not model[0].weight


def test_settling_a_sibling_is_pruning_it_and_settling_a_quantised_network_is_freezing_it():
    sibling = build_sibling(mlp())
    for function in learned_thresholds(sibling).values():
        nn.init.constant_(function.threshold, 0.1)
    assert_close(settle(sibling).state_dict(), prune(sibling).state_dict(), rtol=0, atol=0)
    quantised = quantize(prune(sibling), QuantizeConfig(levels=3))
    assert_close(settle(quantised).state_dict(), freeze(quantised).state_dict(), rtol=0, atol=0)


def test_a_quantised_sibling_settles_with_the_cutoff_of_its_quantisers():
    sibling = build_sibling(mlp())
    for function in learned_thresholds(sibling).values():
        nn.init.constant_(function.threshold, 0.1)
    quantize(sibling, QuantizeConfig(method="uniform", levels=9, cutoff=0.02))
    assert torch.equal(settle(sibling)[0].weight, sibling[0].weight)


def test_parametrizations_of_others_are_left_alone_unless_a_function_is_chained_to_them():
    model = nn.Sequential(parametrizations.spectral_norm(nn.Linear(4, 4)), nn.Linear(4, 2)).eval()
    attach(parameters(model)[-2], Half())
    settled = settle(model)
    assert parametrize.is_parametrized(settled[0], "weight")
    assert_close(settled[1].weight, model[1].weight)
    attach(parameters(model)[0], Half())
    assert_close(settle(model)[0].weight, model[0].weight)


def test_one_stored_tensor_behind_two_functions_settles_to_two():
    model = Tied()
    shared = model.embed.weight
    attach(tensors(model.embed)[0], Half())
    attach(tensors(model.head)[0], Sign(shared))
    expected = model.embed.weight.clone(), model.head.weight.clone()
    settled = settle(model)
    assert torch.equal(settled.embed.weight, expected[0])
    assert torch.equal(settled.head.weight, expected[1])


def test_a_function_that_cannot_settle_is_refused_under_the_tensors_name():
    class Refusing(Half):
        def settle(self, weight):
            raise ValueError("would lose all of its weights")

    model = with_function(mlp(), lambda _: Refusing())
    with pytest.raises(ValueError, match=r'^"0\.weight" would lose all of its weights$'):
        settle(model)


def test_a_weight_that_is_no_longer_read_is_not_trained_until_it_is_settled():
    model = with_function(mlp(), lambda weight: Replaced(torch.ones_like(weight)))
    stored = parameters(model)[0].stored
    assert not stored.requires_grad
    settled = settle(model)
    assert settled[0].weight.requires_grad
    assert (settled[0].weight == 1).all()
    frozen = mlp().requires_grad_(False)
    assert not settle(with_function(frozen, lambda weight: Replaced(torch.ones_like(weight))))[0].weight.requires_grad


def test_the_penalty_adds_the_terms_of_all_functions_each_given_what_it_reads():
    sibling = build_sibling(mlp(), layers={"2": None})
    attach(next(tensor for tensor in tensors(sibling) if tensor.name == "0.weight"), Sign(torch.ones(1)))
    mapped = sibling[0].parametrizations.weight[0](sibling[0].parametrizations.weight.original)
    expected = mapped.abs().sum() + (mapped.abs() - 1).square().sum()
    assert penalty(sibling, 0.5).item() == pytest.approx(0.5 * expected.item(), rel=1e-5)


def test_parameters_of_a_function_train_at_the_weights_rate_without_decay():
    model = with_function(mlp(), Sign)
    decayed, free = parameter_groups(model, lr=0.1, lambda_wd=0.5)
    assert [parameter.dim() for parameter in free["params"]] == [1, 0, 1, 0]
    assert (free["lr"], free["weight_decay"]) == (0.1, 0)
    assert [parameter.dim() for parameter in decayed["params"]] == [2, 2]


def test_a_pruned_vector_is_decayed_like_a_weight_and_a_quantised_one_is_not():
    layers = {"0.bias": SiblingConfig()}
    decayed = parameter_groups(build_sibling(mlp(), layers=layers), lr=0.1, lambda_wd=0.5)[0]
    assert [parameter.dim() for parameter in decayed["params"]] == [2, 1, 2]
    quantised = quantize(mlp(), QuantizeConfig(method="int8", bias_levels=7))
    assert [parameter.dim() for parameter in parameter_groups(quantised, lr=0.1)[0]["params"]] == [2, 2]


def test_after_a_step_every_function_may_change_its_stored_weight():
    model = with_function(mlp(), Sign)
    with torch.no_grad():
        parameters(model)[0].stored.fill_(3.0)
    after_step(model)
    assert parameters(model)[0].stored.max().item() == pytest.approx(0.1)


def test_after_a_step_no_threshold_is_negative():
    sibling = build_sibling(mlp())
    for function in learned_thresholds(sibling).values():
        nn.init.constant_(function.threshold, -0.1)
    after_step(sibling)
    assert [function.threshold.item() for function in learned_thresholds(sibling).values()] == [0, 0]


def test_without_bits_of_its_own_a_function_costs_those_of_its_values():
    assert coded_bits(with_function(mlp(), Sign)).item() == coded_bits(mlp()).item()


def test_a_sibling_costs_the_bits_of_the_weights_that_it_would_keep():
    sibling = build_sibling(nn.Linear(100, 50, bias=False))
    nn.init.constant_(learned_thresholds(sibling)["weight"].threshold, 0.09)
    assert coded_bits(sibling).item() == coded_bits(prune(sibling)).item()


@pytest.mark.parametrize("verb", [build_sibling, quantize, keep_zeros])
def test_a_verb_that_works_in_place_says_so_and_returns_its_model(verb):
    model = mlp()
    with torch.no_grad():
        model[0].weight[0] = 0
    assert verb(model) is model
    assert ", in place" in verb.__doc__.split("\n\n")[0]


@pytest.mark.parametrize("verb", [prune, freeze, settle])
def test_a_verb_that_copies_says_so(verb):
    assert verb.__doc__.startswith("Return a plain copy ")


def test_a_copy_forgets_the_optimizer_and_the_graph_of_its_original():
    sibling = build_sibling(mlp())
    parameter_groups(sibling, lr=0.1)[-1]["lr"] = 0.1
    sibling(torch.randn(2, 12))
    twin = copy.deepcopy(sibling)
    penalty(twin)
    with pytest.warns(UserWarning, match="has overwritten it"):
        penalty(sibling)
