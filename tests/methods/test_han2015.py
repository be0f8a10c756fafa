"""Han et al. 2015: where it cuts, what a round retrains, and how dropout follows the connections."""

import copy
import itertools
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from small_training import carry_out, small_network, train
from torch import nn

from secateur.budget import Budget
from secateur.measure import count
from secateur.methods import Han2015
from secateur.methods.han2015 import cut_, solve_quality, threshold
from secateur.methods.layers import layers, others_fixed
from secateur.train.recipe import Recipe

weights = st.lists(st.floats(-3, 3, width=32), min_size=2, max_size=40).map(torch.tensor)


def linear(*rows):
    """A linear layer with these weights."""
    layer = nn.Linear(len(rows[0]), len(rows), bias=False)
    layer.weight.data.copy_(torch.tensor(rows))
    return layer


# Where Han et al. cut


def test_a_threshold_is_the_quality_times_the_standard_deviation():
    assert threshold(torch.tensor([[3.0, -3.0], [1.0, -1.0]]), 0.5) == pytest.approx(0.5 * math.sqrt(5))


def test_weights_that_are_gone_have_no_part_in_the_standard_deviation():
    assert threshold(torch.tensor([3.0, -3.0, 0.0, 0.0, 0.0]), 1.0) == pytest.approx(3)


def test_each_layer_is_cut_at_its_own_standard_deviation():
    model = nn.Sequential(linear([3.0, -3.0], [1.0, -1.0]), linear([0.3, 0.1], [-0.3, -0.1]), linear([2.0, -2.0]))
    cut_(model, 0.9, "fc")
    assert model[0].weight.tolist() == [[3, -3], [0, 0]]
    assert torch.equal(model[1].weight != 0, torch.tensor([[True, False], [True, False]]))
    assert model[2].weight.tolist() == [[2, -2]]


@given(weight=weights, quality=st.floats(0.1, 1))
def test_a_quality_of_at_most_one_empties_no_layer(weight, quality):
    model = nn.Sequential(linear(weight.tolist()))
    cut_(model, quality, "fc")
    assert bool(model[0].weight.any()) == bool(weight.any())


@given(weight=weights, quality=st.floats(0.1, 1), exponent=st.integers(-6, 6))
def test_the_scale_of_a_layer_does_not_matter(weight, quality, exponent):
    model = nn.Sequential(linear(weight.tolist()), linear((weight * 2.0**exponent).tolist()))
    cut_(model, quality, "fc")
    assert torch.equal(model[0].weight != 0, model[1].weight != 0)


def test_a_layer_that_would_lose_everything_is_named():
    with pytest.raises(ValueError, match=r'"0" would lose all of its weights.*smaller quality'):
        cut_(nn.Sequential(linear([1.0, -1.0])), 1.5, "fc")


@given(weight=weights, other=weights, share=st.floats(0, 1))
def test_a_solved_quality_leaves_as_many_weights_as_asked(weight, other, share):
    tensors = [weight[weight != 0], 100 * other[other != 0]]
    sizes = torch.cat([each.abs().double() / threshold(each, 1.0) for each in tensors])
    kept = int(share * len(sizes))
    quality = solve_quality(tensors, kept)
    left = int((sizes >= quality).sum())
    assert left == kept or (sizes == quality).any() or kept == 0  # equal magnitudes are kept together


@pytest.mark.parametrize("rounds", [1, 3])
def test_a_ratio_is_kept_by_all_layers_together_in_any_number_of_rounds(rounds):
    model = small_network()
    total = count(model).prunable.weights
    finished = carry_out(Han2015(rounds=rounds).with_budget(Budget(ratio=9)), model)
    assert count(finished).prunable.kept == total // 9


def test_a_kind_is_cut_and_the_other_left_alone():
    model = small_network()
    before = model[0].weight.clone()
    cut_(model, 0.5, "fc")
    assert torch.equal(model[0].weight, before)
    assert not model[3].weight.all()
    cut_(model, 0.5, "conv")
    assert not model[0].weight.all()


def test_a_tied_weight_is_cut_once():
    first = linear([4.0, -4.0], [2.0, -2.0])
    second = nn.Linear(2, 2)
    second.weight = first.weight
    assert len(list(layers(nn.Sequential(first, second), "fc"))) == 1


# Rounds


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
