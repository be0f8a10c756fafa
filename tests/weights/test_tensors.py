"""The tensors of a network: each once, under its plain name, whatever stands between it and its layers."""

import copy

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations, parametrize
from torch.nn.utils import prune as torch_prune
from toy_networks import CASES, Tied, mlp

from secateur import QuantizeConfig, build_sibling, keep_zeros, learned_thresholds, prune, quantize, settle, targets
from secateur.measure import count
from secateur.weights.tensors import parameters, tensors


def names(model):
    return [tensor.names for tensor in tensors(model)]


@pytest.mark.parametrize("case", CASES)
def test_a_sibling_has_the_tensors_of_its_network_under_the_same_names(case):
    make, _ = CASES[case]
    model = make()
    plain = {frozenset(each) for each in names(model)}
    assert {frozenset(each) for each in names(build_sibling(model))} == plain
    assert {name for each in plain for name in each} == set(make().state_dict())


def test_a_tied_tensor_has_all_of_its_places():
    embed = tensors(Tied())[0]
    assert embed.names == ("embed.weight", "head.weight")
    assert [type(place.module) for place in embed.places] == [nn.Embedding, nn.Linear]


def test_buffers_are_tensors_and_temporary_ones_are_not():
    model = nn.BatchNorm1d(3)
    model.register_buffer("scratch", torch.zeros(3), persistent=False)
    found = {tensor.name: tensor.is_parameter for tensor in tensors(model)}
    assert found == {
        "weight": True,
        "bias": True,
        "running_mean": False,
        "running_var": False,
        "num_batches_tracked": False,
    }


def test_a_tensor_reads_as_its_layer_does():
    model = build_sibling(mlp())
    read = {tensor.name: tensor.read() for tensor in tensors(model)}
    assert torch.equal(read["0.weight"], model[0].weight)
    assert read["0.bias"] is model[0].bias
    masked = torch_prune.l1_unstructured(nn.Linear(3, 3), "weight", amount=4)
    assert torch.equal(tensors(masked)[0].read(), masked.weight)


def test_a_composed_tensor_is_one_tensor_without_a_stored_one_to_prune():
    model = parametrizations.weight_norm(nn.Linear(3, 2))
    assert names(model) == [("weight",), ("bias",)]
    assert [tensor.name for tensor in parameters(model)] == ["bias"]


def test_a_parametrized_buffer_is_left_to_its_owner():
    model = nn.Linear(3, 2)
    model.register_buffer("table", torch.ones(3))
    parametrize.register_parametrization(model, "table", nn.Identity())
    assert quantize(model, QuantizeConfig(levels=2)).weight.unique().numel() == 2


def shared_memory():
    model = Tied()
    model.head.weight = nn.Parameter(model.embed.weight.data)
    return model


def test_tensors_that_share_memory_have_one_threshold_and_stay_one_when_they_are_pruned():
    model = shared_memory()
    assert [target.names for target in targets(model)] == [("embed.weight", "head.weight"), ("body.weight",)]
    sibling = build_sibling(model)
    assert learned_thresholds(sibling).keys() == {"embed.weight", "body.weight"}
    for function in learned_thresholds(sibling).values():
        nn.init.constant_(function.threshold, 0.3)
    pruned = prune(sibling)
    assert pruned.head.weight is pruned.embed.weight
    assert count(pruned).prunable.weights == count(model).prunable.weights == 11 * 6 + 6 * 6
    assert torch.equal(pruned.embed.weight != 0, sibling.embed.weight.abs() >= 1e-3)


def test_memory_that_is_read_in_two_shapes_is_refused():
    model = nn.Sequential(nn.Linear(3, 5), nn.Linear(5, 3))
    model[1].weight = nn.Parameter(model[0].weight.data.t())
    for verb in (build_sibling, quantize):
        with pytest.raises(ValueError, match=r'"0\.weight" and "1\.weight" share memory in different shapes'):
            verb(copy.copy(model))


def test_a_copy_keeps_a_transposed_tie_apart():
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    model[1].weight = nn.Parameter(model[0].weight.data.t())
    assert torch.equal(settle(model)[1].weight, model[0].weight.t())


def test_masks_of_torch_are_part_of_their_tensor():
    model = torch_prune.l1_unstructured(nn.Linear(3, 3), "weight", amount=4)
    sibling = build_sibling(model)
    assert learned_thresholds(sibling).keys() == {"weight"}


@pytest.mark.filterwarnings("ignore:Lazy modules are a new feature")
def test_lazy_tensors_are_found_before_they_have_a_shape():
    model = nn.Sequential(nn.LazyLinear(3))
    assert [(tensor.name, tensor.is_weight) for tensor in tensors(model)] == [("0.weight", True), ("0.bias", False)]


def test_functions_are_told_by_their_kind():
    model = mlp()
    with torch.no_grad():
        model[0].weight[0] = 0
    kinds = {tensor.name: [type(part).__name__ for part in tensor.functions] for tensor in tensors(keep_zeros(model))}
    assert kinds == {"0.weight": ["FixedMask"], "0.bias": [], "2.weight": [], "2.bias": []}
