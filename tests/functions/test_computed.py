"""Weights that are computed from smaller tensors: every formula has a function, and ties, casts and copies hold."""

import copy

import pytest
import torch
from fuzz import computed
from torch import nn
from torch.testing import assert_close
from toy_networks import Tied

import secateur
from secateur.encode import ComputedTensor
from secateur.functions.computed import compute_from, is_small, small_form
from secateur.functions.low_rank import LowRank
from secateur.functions.small_forms import attach_small_forms, small_forms
from secateur.measure import count
from secateur.measure.size import dense_bytes
from secateur.weights.tensors import parameters, tensors

COMPUTED = {name: tensor for name, tensor in computed().items() if isinstance(tensor, ComputedTensor)}


class Layer(nn.Module):
    """A layer with a weight of any shape."""

    def __init__(self, shape, dtype):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(shape, dtype=dtype))


@pytest.mark.parametrize("name", COMPUTED)
def test_a_layer_reads_what_a_file_gives_and_trains_what_it_is_computed_from(name):
    form = COMPUTED[name]
    layer = Layer(form.shape, form.dtype)
    attach_small_forms(layer, {"weight": form})
    assert_close(layer.weight, form.value())
    layer.weight.square().sum().backward()
    trained = [parameter for parameter in layer.parameters() if parameter.requires_grad]
    assert trained
    assert all(parameter.grad.any() for parameter in trained)
    again = small_forms(layer)["weight"]
    assert again.formula == form.formula
    assert all(map(torch.equal, again.parts, form.parts))
    plain = secateur.settle(copy.deepcopy(layer))
    assert torch.equal(plain.weight, form.value())
    assert plain.weight.requires_grad


def test_a_tied_weight_is_computed_once_and_stays_tied(tmp_path):
    model, tokens = Tied().eval(), torch.randint(0, 11, (2, 3))
    [tied] = [tensor for tensor in parameters(model) if len(tensor.names) == 2]
    compute_from(tied, LowRank.truncated(tied.stored, 2))
    [again] = [tensor for tensor in tensors(model) if len(tensor.names) == 2]
    assert small_form(again).stored == 2 * sum(small_form(again).shape)
    assert count(model).prunable.tensors[0].kept == 2 * (11 + 6)
    assert dense_bytes(model) == dense_bytes(Tied())
    plain = secateur.settle(model)
    assert plain.embed.weight is plain.head.weight
    assert_close(plain(tokens), model(tokens))
    secateur.save(model, tmp_path / "tied.cut")
    small = secateur.load(tmp_path / "tied.cut", Tied(), small=True).eval()
    assert small.embed.parametrizations.weight[0] is small.head.parametrizations.weight[0]
    assert_close(small(tokens), model(tokens))
    assert not is_small(secateur.load(tmp_path / "tied.cut", Tied()))


def test_a_cast_network_computes_in_its_dtype():
    layer = nn.Linear(8, 6)
    compute_from(parameters(layer)[0], LowRank.truncated(layer.weight, 2))
    layer.bfloat16()
    assert layer(torch.randn(3, 8).bfloat16()).dtype is torch.bfloat16
    assert secateur.settle(layer).weight.dtype is torch.bfloat16


def test_a_second_function_behind_a_computed_weight_is_refused_when_it_is_saved(tmp_path):
    layer = nn.Linear(8, 6)
    compute_from(parameters(layer)[0], LowRank.truncated(layer.weight, 2))
    nn.utils.parametrize.register_parametrization(layer, "weight", nn.Identity())
    with pytest.raises(ValueError, match='"weight" is read through LowRank: make the model plain first'):
        secateur.save(layer, tmp_path / "chained.cut")
