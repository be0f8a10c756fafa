"""Pruning to a budget through the runner."""

from dataclasses import replace

import pytest
from small_training import small_network, train
from torch import nn

from secateur.budget import Budget
from secateur.experiments.runner import run
from secateur.job import Job
from secateur.measure import count
from secateur.methods import Aids, Budgeted
from secateur.train.journal import read_log
from secateur.train.recipe import Recipe

JOB = Job(network="lenet-300-100", data="digits", recipe=Recipe(epochs=6, optimizer="sgd", lr=0.1, schedule="cosine"))


def test_the_target_is_logged_with_every_epoch_and_met(tmp_path):
    job = replace(JOB, methods=(Budgeted(budget=Budget(ratio=25), fine_tune_epochs=1),))
    directory = run(job, tmp_path)
    log = list(read_log(directory.journal("train").log))
    assert [line["target"] for line in log] == [{"ratio": 25}] * 6
    assert directory.read_result().kept == 266_200 // 25
    assert directory.read_result().error < 25


def test_an_increase_of_the_error_is_kept_in_one_run(tmp_path):
    job = replace(JOB, methods=(Budgeted(budget=Budget(error_increase=4)),))
    result = run(job, tmp_path).read_result()
    assert [stage.name for stage in result.stages] == ["dense", "train"]
    assert result.errors["pruned"] <= result.errors["dense"] + 4
    assert result.weights / result.kept > 3


def test_an_error_that_cannot_be_kept_ends_with_what_was_reached():
    errors, said, model = iter([5.0, 5.5, *[9.0] * 20]), [], small_network()
    aids = Aids(error=lambda network: next(errors), note=said.append)
    stages = Budgeted(budget=Budget(error_increase=1)).aided_stages(model, Recipe(), aids)
    pruned = None
    while pruned is None:
        try:
            stage = next(stages)
        except StopIteration as end:
            pruned = end.value
            break
        for epoch in range(4 if stage.after_epoch else 0):
            train(model, 4, lambda done, total, first=4 * epoch, go=stage.between: go(first + done, 16))
            stage.after_epoch()
    assert said == [
        "the error is 4.00 points above that of the dense network, more than the 1 that were asked for: train for more "
        "epochs, or allow more"
    ]
    assert 5.5 < count(pruned).prunable.ratio < 6.5  # of the 6.8 after the first epoch, the last allowed


def test_a_budget_that_the_layers_cannot_hold_is_refused_by_their_shapes():
    network = nn.Sequential(nn.Linear(10, 10, device="meta"), nn.Linear(10, 2, device="meta"))
    Budgeted(budget=Budget(ratio=10)).check(network)
    with pytest.raises(ValueError, match="8 in all, so 15× is the most"):
        Budgeted(budget=Budget(ratio=16)).check(network)


def test_a_budget_of_bytes_is_for_another_method():
    with pytest.raises(ValueError, match='choose method "joint"'):
        Budgeted(budget=Budget(bytes=1000))
