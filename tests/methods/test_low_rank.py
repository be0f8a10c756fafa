"""Low rank: the nearest product, both ways to fold a convolution, and ranks that a budget chooses."""

import pytest
import torch
from small_training import carry_out, small_network
from torch import nn
from torch.testing import assert_close

from secateur.budget import Budget
from secateur.functions.low_rank import LowRank, unfolded
from secateur.measure import count
from secateur.methods.low_rank import LowRankMethod, decompose
from secateur.methods.small import weights_of


@pytest.mark.parametrize("pairing", [1, 2, 5])
def test_the_product_is_the_nearest_one_of_its_rank(pairing):
    weight = torch.randn(6, 5, 3, 2, dtype=torch.float64)
    matrix = unfolded(weight, pairing)
    values = torch.linalg.svdvals(matrix)
    for rank in (1, 3, min(matrix.shape)):
        product = LowRank.truncated(weight, rank, pairing)(weight)
        assert_close((product - weight).square().sum(), values[rank:].square().sum())  # Eckart and Young
        assert product.shape == weight.shape


def test_both_factors_get_the_gradient_of_the_product():
    function, upstream = LowRank.truncated(torch.randn(4, 5), 2), torch.randn(4, 5)
    function(torch.empty(0, 0)).backward(upstream)
    assert_close(function.left.grad, upstream @ function.right.T)
    assert_close(function.right.grad, function.left.T @ upstream)


def test_a_weight_of_low_rank_loses_nothing_and_leaves_room_for_others():
    model = nn.Sequential(nn.Linear(20, 20), nn.Linear(20, 20))
    with torch.no_grad():
        model[0].weight.copy_(torch.outer(torch.randn(20), torch.randn(20)))
    ranks = {tensor.name: rank for tensor, rank, _ in decompose(weights_of(model), 3.0)}
    assert ranks == {"0.weight": 1, "1.weight": 5}  # 800 / 3 / 40 = 6 directions


@pytest.mark.parametrize(("product", "pairing"), [("f,chw->fchw", 1), ("c,fhw->fchw", 2)])
def test_a_convolution_is_folded_in_the_way_that_keeps_more(product, pairing):
    layer = nn.Conv2d(8, 8, 3)
    layer.weight.data = torch.einsum(product, torch.randn(8), torch.randn(8, 3, 3))
    [(_, _, chosen)] = decompose(weights_of(layer), 3.0)
    assert chosen == pairing


@pytest.mark.parametrize("ratio", [1.5, 4, 8])
def test_a_budget_is_met(ratio):
    finished = carry_out(LowRankMethod().with_budget(Budget(ratio=ratio)), small_network())
    assert 840 / ratio - 80 < count(finished).prunable.kept <= 840 / ratio


def test_what_cannot_be_is_refused_in_one_sentence():
    with pytest.raises(ValueError, match=r"a ratio of 9 would keep 93.33 of 840 numbers, .* 8.077 is the most"):
        LowRankMethod(ratio=9).check(small_network())
    with pytest.raises(ValueError, match='"low-rank" prunes to a ratio or a sparsity, not to 500 bytes'):
        LowRankMethod().with_budget(Budget(bytes=500))
