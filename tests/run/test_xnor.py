"""XNOR products on packed bits: the routine, its twin and a product of ±1 in floats agree to the last number."""

import copy

import pytest
import torch
from torch import nn

from secateur.functions.inputs import SignInputs, attach_inputs
from secateur.run.xnor import PackedSigns, XnorLinear, _packed, pack, with_xnor


@pytest.mark.parametrize(("batch", "inputs", "rows"), [(1, 1, 1), (3, 63, 5), (4, 64, 8), (9, 65, 17), (5, 4200, 9)])
def test_a_product_of_packed_signs_is_the_product_of_signs(batch, inputs, rows):
    torch.manual_seed(0)
    weight, x = torch.randn(rows, inputs), torch.randn(batch, inputs)
    x[0, 0] = -0.0  # which is positive
    packed = PackedSigns(weight)
    exact = torch.where(x < 0, -1.0, 1.0) @ torch.where(weight < 0, -1.0, 1.0).T
    assert torch.equal(packed(pack(x)), exact)
    assert torch.equal(PackedSigns(weight, may_popcount=False)(pack(x)), exact)
    assert torch.equal(packed.twin(pack(x)), exact)
    assert (pack(x) == _packed(x)).all()


@pytest.mark.parametrize("scaled", [True, False])
def test_a_layer_on_packed_bits_computes_what_the_layer_of_signs_does(scaled):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(20, 70), nn.ReLU(), nn.Linear(70, 11))
    attach_inputs(model[2], SignInputs(70, scaled=scaled))
    with torch.no_grad():
        model[2].weight.copy_(model[2].weight.sign() * torch.rand(11, 1))
        model(torch.randn(50, 20))  # in training: it fits means and variances
    x, packed = torch.randn(6, 20), with_xnor(copy.deepcopy(model).eval())
    assert isinstance(packed[2], XnorLinear)
    torch.testing.assert_close(packed(x), model.eval()(x), rtol=1e-4, atol=1e-5)


def test_a_layer_of_many_sizes_is_refused():
    layer = nn.Linear(4, 2)
    attach_inputs(layer, SignInputs(4, scaled=False))
    with pytest.raises(ValueError, match="one size of weight per unit: settle the network first"):
        XnorLinear(layer)
