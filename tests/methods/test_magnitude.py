"""Magnitude pruning, in one shot and gradually: how many weights are left, and which."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from small_training import carry_out, small_network

from secateur.measure import count
from secateur.methods.magnitude import Magnitude, largest

sizes = st.lists(st.integers(1, 40), min_size=1, max_size=4)


def drawn(lengths):
    return [torch.randn(length, generator=torch.Generator().manual_seed(length)) for length in lengths]


@given(lengths=sizes, ratio=st.floats(1.1, 50))
def test_a_layer_keeps_its_largest_weights(lengths, ratio):
    weights = drawn(lengths)
    for weight, kept in zip(weights, largest(weights, ratio, "layer"), strict=True):
        assert kept.sum() == max(math.floor(len(weight) / ratio + 1e-9), 1)
        assert weight[kept].abs().min() >= weight[~kept].abs().max() if (~kept).any() else True


@given(lengths=sizes, ratio=st.floats(1.1, 50))
def test_the_network_keeps_its_largest_weights_and_one_of_every_layer(lengths, ratio):
    weights = drawn(lengths)
    masks = largest(weights, ratio, "global")
    assert sum(int(mask.sum()) for mask in masks) == max(math.floor(sum(lengths) / ratio + 1e-9), len(lengths))
    assert all(mask.any() for mask in masks)


def test_scopes_differ_where_layers_have_different_scales():
    weights = [torch.tensor([1.0, 2.0, 3.0, 4.0]), torch.tensor([0.1, 0.2, 0.3, 0.4])]
    assert [mask.tolist() for mask in largest(weights, 2, "layer")] == [[False, False, True, True]] * 2
    assert [mask.tolist() for mask in largest(weights, 2, "global")] == [
        [False, True, True, True],
        [False, False, False, True],
    ]


def test_one_shot_keeps_what_the_ratio_says_and_retrains_it():
    stages = []
    finished = carry_out(Magnitude(ratio=4, scope="layer"), small_network(), stages.append)
    assert [(stage.name, stage.phase) for stage in stages] == [("train", "train"), ("retrain", "fine-tune")]
    assert [tensor.kept for tensor in count(finished).prunable.tensors] == [9, 192, 9]


def test_a_ratio_next_to_one_cuts_nothing():
    assert count(carry_out(Magnitude(ratio=math.nextafter(1, 2)), small_network())).prunable.zeros == 0


@pytest.mark.parametrize("settings", [{"scope": "globl"}, {"ratio": 1.0}, {"ratio": math.nan}, {"retrain_epochs": -1}])
def test_settings_that_make_no_sense_are_refused(settings):
    with pytest.raises(ValueError, match=f"{next(iter(settings))} must be"):
        Magnitude(**settings)
