"""Gradual magnitude pruning: the cubic law, and a mask that follows it between steps."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from small_training import carry_out, small_network, train

from secateur.measure import count
from secateur.methods.gradual_magnitude import GradualMagnitude, sparsity
from secateur.train.recipe import Recipe


@given(final=st.floats(0, 1), progress=st.floats(0, 1))
def test_the_share_of_zeros_rises_from_nothing_to_the_final_one(final, progress):
    assert sparsity(0, final) == 0
    assert sparsity(1, final) == final
    assert 0 <= sparsity(progress / 2, final) <= sparsity(progress, final) <= final


def test_half_of_the_ramp_cuts_seven_eighths():
    assert sparsity(0.5, 0.8) == pytest.approx(0.7)


def test_the_mask_follows_the_law_and_is_fixed_after_the_ramp():
    stage = next(GradualMagnitude(ratio=10, every=1, ramp=0.5).stages(small_network(), Recipe()))
    kept = []

    def between(done, total):
        stage.between(done, total)
        kept.append(count(stage.model).prunable.kept)

    train(stage.model, steps=8, between=between)
    weights = 36 + 768 + 36
    assert kept[:4] == [pytest.approx(weights * (1 - sparsity(step / 4, 0.9)), abs=3) for step in (1, 2, 3, 4)]
    assert kept[4:] == kept[3:4] * 4


def test_between_updates_the_mask_rests():
    stage = next(GradualMagnitude(ratio=10, every=3, ramp=1.0).stages(small_network(), Recipe()))
    for done in (1, 2):
        stage.between(done, 100)
    assert count(stage.model).prunable.zeros == 0
    stage.between(3, 100)
    assert count(stage.model).prunable.zeros > 0


def test_what_is_left_is_trained():
    model = small_network()
    before = model[3].weight.detach().clone()
    finished = carry_out(GradualMagnitude(ratio=4), model)
    left = finished[3].weight != 0
    assert not torch.equal(finished[3].weight[left], before[left])
    assert count(finished).prunable.kept == pytest.approx(840 / 4, abs=3)


@pytest.mark.parametrize("settings", [{"scope": "globl"}, {"ratio": 0.5}, {"ramp": 0.0}, {"ramp": 1.5}, {"every": 0}])
def test_settings_that_make_no_sense_are_refused(settings):
    with pytest.raises(ValueError, match=f"{next(iter(settings))} must"):
        GradualMagnitude(**settings)
