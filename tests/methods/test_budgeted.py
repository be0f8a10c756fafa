"""Pruning to a budget through the runner."""

import math
from dataclasses import replace

import pytest
from small_training import carry_out, small_network, train
from torch import nn

from secateur.budget import Budget
from secateur.experiments.runner import run
from secateur.functions.solved_threshold import solved_thresholds
from secateur.job import Job
from secateur.measure import count
from secateur.methods import Aids, Budgeted
from secateur.train.journal import read_log
from secateur.train.recipe import Recipe

JOB = Job(network="lenet-300-100", data="digits", recipe=Recipe(epochs=6, optimizer="sgd", lr=0.1, schedule="cosine"))


def test_the_target_is_logged_with_every_epoch_and_met(tmp_path):
    job = replace(JOB, methods=(Budgeted(budget=Budget(ratio=25)),))
    directory = run(job, tmp_path)
    log = list(read_log(directory.journal("train").log))
    assert [line["target"] for line in log] == [{"ratio": 25}] * 4
    assert directory.read_result().kept == 266_200 // 25
    assert directory.read_result().error < 25


def test_an_increase_of_the_error_is_kept_in_one_run(tmp_path):
    job = replace(JOB, methods=(Budgeted(budget=Budget(error_increase=4)),))
    result = run(job, tmp_path).read_result()
    assert [stage.name for stage in result.stages] == ["dense", *(f"round-{number}" for number in range(1, 7))]
    assert result.errors["pruned"] <= result.errors["dense"] + 4
    assert result.weights / result.kept > 10


def test_a_budget_may_have_epochs_and_a_rate_of_its_own():
    method, trained = Budgeted(budget=Budget(ratio=2), prune_epochs=4, prune_lr=0.02, fine_tune=0.25), []
    for stage in method.stages(small_network(), JOB.recipe):
        trained.append((stage.recipe.epochs, stage.recipe.lr))
        train(stage.model, 16, stage.between or (lambda step, total: None))
    assert trained == [(3, 0.02), (1, 0.02)]
    assert method.epochs(JOB.recipe) == 4


@pytest.mark.parametrize("fine_tune", [0.0, 0.5])
def test_without_a_fine_tune_the_choice_is_final_before_the_end(fine_tune):
    model = small_network()
    stage = next(Budgeted(budget=Budget(ratio=2), fine_tune=fine_tune).stages(model, Recipe(epochs=2)))
    train(stage.model, 20, lambda step, total: stage.between(4 * step, 100))  # to four fifths of the training
    found = [threshold.is_fixed for threshold in solved_thresholds(model).values()]
    assert found == [not fine_tune] * len(found)
    assert found


def test_a_rate_that_is_not_a_number_is_refused():
    with pytest.raises(ValueError, match=r"prune_lr must be ≥ 0 and finite, got nan"):
        Budgeted(budget=Budget(ratio=2), prune_lr=math.nan)


def test_a_budget_without_epochs_is_refused():
    with pytest.raises(ValueError, match=r"prune_epochs must be a whole number ≥ 1, got 0"):
        Budgeted(budget=Budget(ratio=2), prune_epochs=0)


def rounds(errors, epochs=8):
    """Go through the stages of a budget of one point with these errors; return the ratios tried, and what is left."""
    said, model, tried, left = [], small_network(), [], iter(errors)
    aids = Aids(error=lambda network: next(left), note=said.append)
    stages = Budgeted(budget=Budget(error_increase=1)).aided_stages(model, Recipe(epochs=epochs), aids)
    try:
        while True:
            stage = next(stages)
            if stage.between is not None:
                tried.append(stage.target["ratio"])
                train(model, 16, stage.between)
    except StopIteration as end:
        return tried, count(end.value).prunable.ratio, said


def test_a_round_that_is_not_allowed_is_undone_and_the_next_one_goes_less_far():
    tried, ratio, said = rounds([5.0, 6.0, 6.1, 5.0, 7.0], epochs=4)
    assert tried == pytest.approx([4, 16, 8, 16])
    assert ratio == pytest.approx(8, rel=0.02)
    assert said == []


def test_an_error_that_no_round_keeps_leaves_the_dense_network_and_says_so():
    tried, ratio, said = rounds([5.0, *[9.0] * 8])
    assert tried[:3] == pytest.approx([4, 2, math.sqrt(2)])
    assert ratio == 1
    [sentence] = said
    assert sentence.startswith("no network with a weight less is within 1 points of the dense network's error")


def test_a_budget_that_the_layers_cannot_hold_is_refused_by_their_shapes():
    network = nn.Sequential(nn.Linear(10, 10, device="meta"), nn.Linear(10, 2, device="meta"))
    Budgeted(budget=Budget(ratio=10)).check(network)
    with pytest.raises(ValueError, match="8 in all, so 15× is the most"):
        Budgeted(budget=Budget(ratio=16)).check(network)


def test_a_budget_of_bytes_is_for_another_method():
    with pytest.raises(ValueError, match='choose method "joint"'):
        Budgeted(budget=Budget(bytes=1000))


def test_dropout_shrinks_with_the_connections_before_it_once_the_network_is_cut():
    seen = {}
    finished = carry_out(
        Budgeted(budget=Budget(ratio=4)), small_network(), lambda s: seen.update({s.name: s.model[4].p})
    )
    left = int(finished[3].weight.count_nonzero())
    assert seen["train"] == 0.5
    assert seen["fine-tune"] == pytest.approx(0.5 * math.sqrt(left / finished[3].weight.numel()))
