"""The estimated bits: what an adaptive code costs, for positions, levels and whole models."""

import copy
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from quantizing import METHODS, entropy_bits, matrices, quantizers, sibling_at, sparse, tune
from torch import nn
from torch.nn import functional
from torch.testing import assert_close
from toy_networks import Tied, mlp

from secateur import (
    QuantizeConfig,
    coded_bits,
    freeze,
    learned_thresholds,
    quantize,
)
from secateur.rate import adaptive_bits, grid_bits, position_bits, symbol_bits


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
