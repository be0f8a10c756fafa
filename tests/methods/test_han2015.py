"""Han et al. 2015: what a round retrains, and how dropout follows the connections."""

import copy
import itertools
import math

import pytest
import torch
from small_training import carry_out, small_network, train
from torch import nn

from secateur.budget import Budget
from secateur.measure import count
from secateur.methods import Han2015
from secateur.methods.layers import layers, others_fixed
from secateur.train.recipe import Recipe

# Rounds


@pytest.mark.parametrize("rounds", [1, 3])
def test_a_ratio_is_kept_by_all_layers_together_in_any_number_of_rounds(rounds):
    model = small_network()
    total = count(model).prunable.weights
    finished = carry_out(Han2015(rounds=rounds).with_budget(Budget(ratio=9)), model)
    assert count(finished).prunable.kept == total // 9


def test_zeros_never_come_back_and_every_round_adds_some():
    masks = []
    carry_out(
        Han2015(quality=0.9, rounds=2),
        small_network(),
        lambda stage: masks.append([weight != 0 for kind in ("fc", "conv") for _, weight in layers(stage.model, kind)]),
    )
    for earlier, later in itertools.pairwise(masks):
        assert all(not (new & ~old).any() for old, new in zip(earlier, later, strict=True))
        assert sum(int(new.sum()) for new in later) < sum(int(old.sum()) for old in earlier)


def test_survivors_start_a_round_with_the_values_they_had():
    stages = Han2015(quality=0.5, rounds=1).stages(nn.Sequential(nn.Linear(9, 9)), Recipe())
    dense = next(stages).model[0].weight.detach().clone()
    left = next(stages).model[0].weight
    assert torch.equal(left, torch.where(left != 0, dense, 0))


def test_a_round_goes_through_linear_layers_and_then_convolutions():
    names = []
    carry_out(
        Han2015(quality=0.5, rounds=2),
        small_network(),
        lambda stage: names.append((stage.name, stage.phase, stage.order)),
    )
    assert names == [
        ("train", "train", 0),
        ("quality=0.5-round=1-fc", "fine-tune", 1),
        ("quality=0.5-round=1-conv", "fine-tune", 2),
        ("quality=0.5-round=2-fc", "fine-tune", 3),
        ("quality=0.5-round=2-conv", "fine-tune", 4),
    ]


def test_while_one_kind_is_retrained_the_other_stays_as_it_is():
    stages, moved = Han2015(quality=0.5, rounds=1).stages(small_network(), Recipe()), []
    next(stages)
    for stage in stages:
        before = copy.deepcopy(stage.model)
        train(stage.model)
        changed = [
            not torch.equal(new, old)
            for index in (0, 3, 6)
            for new, old in (
                (stage.model[index].weight, before[index].weight),
                (stage.model[index].bias, before[index].bias),
            )
        ]
        moved.append(changed)
    assert moved == [[False, False, True, True, True, True], [True, True, False, False, False, False]]


def test_a_network_of_one_kind_is_retrained_whole():
    model = nn.Sequential(nn.Linear(3, 3), nn.LayerNorm(3), nn.Linear(3, 2))
    with others_fixed(model, "fc"):
        assert all(parameter.requires_grad for parameter in model.parameters())


def test_a_finished_network_can_be_trained_whole():
    finished = carry_out(Han2015(quality=0.5, rounds=1), small_network())
    assert all(parameter.requires_grad for parameter in finished.parameters())


# Dropout


def test_rounds_adjust_dropout():
    finished = carry_out(Han2015(quality=0.8, rounds=2), small_network())
    left = int(finished[3].weight.count_nonzero()) / finished[3].weight.numel()
    assert 0 < finished[4].p == pytest.approx(0.5 * math.sqrt(left))


# Settings


@pytest.mark.parametrize(
    ("settings", "complaint"),
    [
        ({"quality": 0.0}, "quality must be positive"),
        ({"quality": math.nan}, "quality must be positive"),
        ({"rounds": -1}, "rounds must be"),
        ({"retrain_epochs": -1}, "retrain_epochs must be"),
        ({"retrain_lr": -1.0}, "retrain_lr must be"),
    ],
)
def test_settings_that_make_no_sense_are_refused(settings, complaint):
    with pytest.raises(ValueError, match=complaint):
        Han2015(**settings)


def test_retraining_has_its_own_epochs_and_rate():
    stages = list(
        Han2015(rounds=1, retrain_epochs=3, retrain_lr=2e-4).stages(small_network(), Recipe(epochs=9, lr=0.1))
    )
    assert [(stage.recipe.epochs, stage.recipe.lr) for stage in stages] == [(9, 0.1), (3, 2e-4), (3, 2e-4)]


def test_a_network_with_nothing_to_cut_is_refused():
    with pytest.raises(ValueError, match="LayerNorm has no linear or convolution layer"):
        next(Han2015().stages(nn.LayerNorm(3), Recipe()))
