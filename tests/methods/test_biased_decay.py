"""Biased decay: its slope is Hanson & Pratt's, and units of small weights lose them first."""

import pytest
import torch
from small_training import carry_out, small_network
from torch import nn
from torch.testing import assert_close

from secateur.budget import Budget
from secateur.measure import count
from secateur.methods.biased_decay import BiasedDecay
from secateur.train.recipe import Recipe


@pytest.mark.parametrize(
    ("bias", "slope"),
    [
        ("hyperbolic", lambda scaled: 1 / (1 + scaled) ** 2),
        ("exponential", lambda scaled: torch.exp(-scaled)),
    ],
)
def test_the_slope_of_the_decay_is_the_published_one(bias, slope):
    layer = nn.Linear(5, 3)
    [term] = BiasedDecay(bias=bias, steepness=0.7, strength=2.0).terms().values()
    term(layer).backward()
    units = layer.weight.detach().abs().sum(1, keepdim=True)
    assert_close(layer.weight.grad, 2.0 * layer.weight.detach().sign() * 0.7 * slope(0.7 * units))
    assert layer.bias.grad is None


def test_it_replaces_the_weight_decay_of_the_recipe():
    stages = BiasedDecay().stages(small_network(), Recipe(lambda_wd=1.0))
    first, second = next(stages), next(stages)
    assert first.recipe.lambda_wd == second.recipe.lambda_wd == 0
    assert (list(first.terms), list(second.terms)) == (["biased decay"], [])


def test_it_prunes_to_the_ratio_of_a_budget():
    method = BiasedDecay().with_budget(Budget(sparsity=0.75))
    assert count(carry_out(method, small_network())).prunable.kept == 840 / 4


def test_a_budget_of_bytes_and_settings_that_make_no_sense_are_refused():
    with pytest.raises(ValueError, match='"biased-decay" prunes to a ratio or a sparsity, not to 5,000 bytes'):
        BiasedDecay().with_budget(Budget(bytes=5_000))
    with pytest.raises(ValueError, match="bias must be one of"):
        BiasedDecay(bias="square")
    with pytest.raises(ValueError, match="at least 2 epochs"):
        next(BiasedDecay().stages(small_network(), Recipe(epochs=1)))
