"""What methods with a ratio share: the exact choice, budgets, and the final cut."""

import re

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from secateur.budget import Budget
from secateur.functions.scored import ScoredFunction
from secateur.measure import count
from secateur.methods import METHODS
from secateur.methods.targeted import Selecting, Targeted, cut_and_fine_tune, highest, read_through, steered
from secateur.train.recipe import Recipe

DIRECTED = [name for name, kind in METHODS.items() if issubclass(kind, Targeted | Selecting)]
# Others store more than weights, or need a package that may be missing.
PRUNING = [name for name in DIRECTED if not METHODS[name].leaves_small and not METHODS[name].package]


@given(lengths=st.lists(st.integers(1, 20), min_size=1, max_size=4), number=st.floats(0, 80))
def test_exactly_as_many_are_kept_as_are_wanted_and_one_of_each_layer(lengths, number):
    scores, number = [torch.randn(length) for length in lengths], min(number, sum(lengths))
    kept = highest(scores, number)
    assert sum(int(keep.sum()) for keep in kept) == max(int(number), len(lengths))
    assert all(keep[score.argmax()] for keep, score in zip(kept, scores, strict=True))


@pytest.mark.parametrize("name", DIRECTED)
def test_a_budget_of_weights_sets_the_ratio_and_others_are_refused(name):
    method = METHODS[name]()
    assert method.with_budget(Budget(sparsity=0.75)).ratio == 4
    with pytest.raises(ValueError, match=f'method "{name}" prunes to a ratio or a sparsity, not to 5,000 bytes'):
        method.with_budget(Budget(bytes=5000))


@pytest.mark.parametrize("name", PRUNING)
def test_a_ratio_that_leaves_less_than_a_weight_a_layer_is_refused_by_shapes(name):
    network = nn.Sequential(nn.Linear(10, 10, device="meta"), nn.Linear(10, 2, device="meta"))
    METHODS[name](ratio=60).check(network)
    with pytest.raises(ValueError, match="2 layers need one each, so 60 is the most"):
        METHODS[name](ratio=61).check(network)


class Known(ScoredFunction):
    """Scores 1, 0, −1, … in the order of the weights."""

    def forward(self, weight):
        return weight

    def scores(self, weight):
        return 1 - torch.arange(float(weight.numel())).view(weight.shape)


@pytest.mark.parametrize(("ratio", "kept"), [(None, 1), (4, 3), (12, 1)])
def test_the_cut_keeps_scores_above_zero_or_as_many_as_the_ratio_says(ratio, kept):
    model = nn.Linear(4, 3)
    start = model.weight.detach().clone()
    read_through(model, lambda tensor: Known())
    [stage] = cut_and_fine_tune(model, ratio, Recipe(epochs=1))
    assert count(stage.model).prunable.kept == kept
    assert torch.equal(stage.model.weight.flatten()[:kept], start.flatten()[:kept])


def test_the_penalty_rises_while_too_many_are_left_and_falls_while_too_few_are():
    found = read_through(model := nn.Linear(10, 10), lambda tensor: Known())  # of which one is above zero
    for ratio, rises in ((1000, True), (2, False)):
        model.parametrizations.weight[0].pressure.fill_(1.0)
        steered(found, ratio)(100, 100)
        assert (model.parametrizations.weight[0].pressure > 1) == rises


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        *((name, {"ratio": 1.0}) for name in DIRECTED),
        *((name, {"dense + fine_tune": 1.0}) for name in ("admm", "pdp", "soft-movement", "ltp", "network-surgery")),
        *[("admm", {"rho": 0.0}), ("admm", {"projections": 0}), ("pdp", {"temperature": 0.0}), ("pdp", {"ramp": 1.5})],
        *[("soft-movement", {"bound": 1.0}), ("ltp", {"temperature": 0.0}), ("dst", {"alpha": -1.0})],
        *[("str", {"start": 1.0}), ("sparse-vd", {"warm_up": 0.0}), ("continuous-sparsification", {"last_beta": 0.5})],
    ],
)
def test_settings_that_make_no_sense_are_refused_by_name(name, settings):
    [complained] = settings
    settings = {"dense": 0.5, "fine_tune": 0.5} if complained.startswith("dense") else settings
    with pytest.raises(ValueError, match=f"^{re.escape(complained)} must"):
        METHODS[name](**settings)
