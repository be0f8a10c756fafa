"""PyTorch's own pruning as a method: exact counts, zeros that stay, and plain layers in the end."""

import math
from collections import deque

import pytest
import torch
from small_training import carry_out, small_network

from secateur.budget import Budget
from secateur.measure import count
from secateur.methods.torch_prune import TorchPrune
from secateur.train.recipe import Recipe


@pytest.mark.parametrize("rounds", [1, 3])
def test_every_round_keeps_the_share_that_leads_to_the_ratio(rounds):
    torch.manual_seed(0)
    model, kept = small_network(), []
    total = count(model).prunable.weights
    method = TorchPrune(rounds=rounds).with_budget(Budget(ratio=8))
    finished = carry_out(method, model, lambda stage: kept.append(count(stage.model).prunable.kept))
    assert kept == [total, *(math.floor(total / 8 ** (number / rounds)) for number in range(1, rounds + 1))]
    assert count(finished).prunable.kept == kept[-1]


def run_through(stages):
    """Return what a method returns if nothing is trained."""
    found = []

    def whole():
        found.append((yield from stages))

    deque(whole())
    return found[0]


def test_the_weights_masked_are_the_smallest_of_the_network():
    torch.manual_seed(0)
    model = small_network()
    weights = torch.cat([each.detach().abs().flatten() for each in model.parameters() if each.dim() > 1])
    untrained = run_through(TorchPrune(rounds=2, ratio=4).stages(model, Recipe(epochs=2)))
    left = torch.cat([each.detach().abs().flatten() for each in untrained.parameters() if each.dim() > 1])
    assert left[left > 0].sort().values.tolist() == weights.topk(int((left > 0).sum())).values.sort().values.tolist()


@pytest.mark.parametrize("settings", [{"ratio": 1.0}, {"rounds": 0}, {"retrain": 1.0}])
def test_settings_are_refused(settings):
    with pytest.raises(ValueError, match=next(iter(settings))):
        TorchPrune(**settings)


def test_a_budget_of_bytes_is_refused():
    with pytest.raises(ValueError, match='"torch-prune" prunes to a ratio or a sparsity, not to 5,000 bytes'):
        TorchPrune().with_budget(Budget(bytes=5000))
