import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from secateur import settle
from secateur.functions.mask import FixedMask
from secateur.weights.reading import attach
from secateur.weights.tensors import parameters

numbers = st.lists(st.floats(-3, 3, width=32), min_size=1, max_size=20)


@given(values=numbers, kept=st.integers(0, 2**20))
def test_a_layer_reads_the_product_and_settles_to_it_without_signs_of_zero(values, kept):
    layer = nn.Linear(len(values), 1, bias=False)
    layer.weight.data.copy_(torch.tensor([values]))
    mask = torch.tensor([[kept >> place & 1 for place in range(len(values))]], dtype=torch.uint8)
    attach(parameters(layer)[0], FixedMask(mask))
    plain = settle(layer).weight
    assert torch.equal(plain, layer.weight)
    assert not (plain.signbit() & (mask == 0)).any()


def test_the_mask_of_a_weight_holds_its_zeros():
    weight = torch.tensor([[1.0, 0.0, -2.0]])
    mask = FixedMask.of(weight)
    assert mask.mask.tolist() == [[1, 0, 1]]
    assert mask(torch.tensor([[5.0, 5.0, 5.0]])).tolist() == [[5, 0, 5]]
