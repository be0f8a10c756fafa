"""Optimal Brain Surgeon: its inverse is the inverse, and no other weights would make up better for a cut."""

import pytest
import torch
from small_training import small_network
from torch import nn
from torch.testing import assert_close

from secateur.measure import count
from secateur.methods import Aids
from secateur.methods.curvature import Curvature
from secateur.methods.obs import OptimalBrainSurgeon
from secateur.methods.surgery import UnitByUnit, WholeLayer, inverse_hessian
from secateur.train.recipe import Recipe


def batch(units=4, inputs=6, samples=300):
    torch.manual_seed(0)
    mixed = torch.randn(samples, inputs) @ torch.randn(inputs, inputs)
    return Curvature(mixed, torch.randn(samples, units), samples)


def damped(vectors):
    hessian = vectors.double().T @ vectors.double() / len(vectors)
    return hessian + 1e-2 * hessian.diagonal().mean() * torch.eye(len(hessian))


def test_the_woodbury_recursion_inverts_the_hessian():
    vectors = torch.randn(300, 10, dtype=torch.float64)
    assert_close(inverse_hessian(vectors, 10), torch.linalg.inv(damped(vectors)))


@pytest.mark.parametrize("kind", [WholeLayer, UnitByUnit])
def test_the_cheapest_weight_costs_its_saliency_and_the_others_make_up_for_it_exactly(kind):
    weight, seen = torch.randn(4, 6), batch()
    layer = kind(weight)
    layer.add(seen)
    scores = layer.saliencies()
    keep = scores > scores.min()
    layer.cut(keep)
    change = (layer.weight.view(4, 6) - weight).double()
    whole = damped(torch.einsum("su,sw->suw", seen.slopes, seen.inputs).flatten(1))
    factors = seen.slopes.double().square().mean(0)
    hessian = whole if kind is WholeLayer else torch.block_diag(*[factor * damped(seen.inputs) for factor in factors])
    assert (layer.weight.view(4, 6) != 0).sum() == 23
    assert_close(change.flatten() @ hessian @ change.flatten() / 2, scores.min().double(), rtol=1e-3, atol=0)
    slope = hessian @ change.flatten()
    assert slope[keep.flatten()].abs().max() < 1e-3 * slope.abs().max()  # zero where a weight may still move


def test_a_round_keeps_what_its_ratio_says_with_and_without_data():
    images, labels = torch.randn(40, 1, 6, 6), torch.arange(40) % 3
    for aids in (Aids(), Aids(losses=lambda model, n: iter([nn.functional.cross_entropy(model(images), labels)]))):
        model = small_network()
        stages = OptimalBrainSurgeon(ratio=10, rounds=2).aided_stages(model, Recipe(epochs=3), aids)
        assert [count(next(stages).model).prunable.kept for _ in range(3)] == [840, 265, 84]


def test_layers_that_are_too_wide_are_refused():
    with pytest.raises(ValueError, match='"weight" has 5,000 weights a unit: method "obs"'):
        OptimalBrainSurgeon().check(nn.Linear(5_000, 2))
