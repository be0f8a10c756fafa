"""Pruning and quantisation learned together, for a file of given bytes."""

import pytest
import torch
from small_training import small_network
from torch import nn

from secateur.experiments.evaluate import evaluate
from secateur.experiments.runner import run
from secateur.files import load
from secateur.functions.late_step import LateStep
from secateur.functions.learned_step import LearnedStep
from secateur.job import Coding, Job
from secateur.methods import Joint
from secateur.rate import grid_bits, level_bits
from secateur.train.journal import read_log
from secateur.train.recipe import Recipe

RECIPE = Recipe(epochs=6, optimizer="sgd", lr=0.1, schedule="cosine")


@pytest.mark.parametrize(
    ("size", "coding"), [(12_000, Coding()), (4_000, Coding(codec="huffman", sort_units=False))], ids=["large", "small"]
)
def test_the_whole_file_has_the_size_that_was_asked_for(size, coding, tmp_path):
    job = Job(network="lenet-300-100", data="digits", methods=(Joint(bytes=size),), recipe=RECIPE, coding=coding)
    directory = run(job, tmp_path)
    result = directory.read_result()
    assert directory.file.stat().st_size == result.file.bytes
    assert 0.98 * size <= result.file.bytes <= size
    assert result.errors["file"] == result.errors["joint"] < 30
    tested = evaluate(directory)  # restores the network from its checkpoints, without knowing of files
    assert tested.errors["file"] == tested.errors["joint"]
    network = load(directory.file)
    assert all(len(parameter.unique()) <= 31 for parameter in network.parameters())
    assert all(line["target"] == {"bytes": size} for line in read_log(directory.journal("train").log))


def test_bytes_that_not_even_the_header_fits_into_are_refused_before_training(tmp_path):
    job = Job(network="lenet-300-100", data="digits", methods=(Joint(bytes=60),), recipe=RECIPE)
    with pytest.raises(ValueError, match="60 bytes are too few: without a single weight the file takes"):
        run(job, tmp_path)
    assert not list(tmp_path.rglob("*.jsonl"))


@pytest.mark.parametrize(
    ("settings", "complaint"),
    [
        ({"bytes": 0}, "bytes must be a whole number above 0"),
        ({"largest_level": 0}, "largest_level must lie in"),
        ({"bias_values": 2}, "bias_values must lie in"),
    ],
)
def test_impossible_settings_are_refused(settings, complaint):
    with pytest.raises(ValueError, match=complaint):
        Joint(**settings)


def test_a_late_step_does_nothing_before_it_begins_and_is_a_learned_step_then():
    torch.manual_seed(0)
    weight = nn.Parameter(torch.randn(30, 20))
    late, learned = (
        LateStep(torch.zeros(30, 20), 4, keep_survivors=True),
        LearnedStep(weight, 4, 0, keep_survivors=True),
    )
    assert torch.equal(late(weight), weight)
    assert torch.equal(late.settle(weight), weight)
    late(weight).sum().backward()
    assert late.log_step.grad == 0
    before = late.bits(weight)
    late.begin(weight)
    assert torch.equal(late(weight), learned(weight))
    assert torch.equal(late.settle(weight), learned.settle(weight))
    assert before == pytest.approx(late.bits(weight).item(), rel=0.05)


def test_the_rate_of_what_is_kept_has_the_gradient_of_all_bits():
    torch.manual_seed(0)
    weight = torch.randn(40, 25) * (torch.rand(40, 25) < 0.2)
    grids = [LateStep(weight, 5, keep_survivors=True) for _ in range(2)]
    weights = [weight.clone().requires_grad_() for _ in grids]
    for grid in grids:
        grid.begin(weight)
    grids[0].bits(weights[0]).backward()
    grids[1].rate(weights[1], weight.flatten().nonzero().squeeze(1)).backward()
    torch.testing.assert_close(weights[0].grad, weights[1].grad)
    torch.testing.assert_close(grids[0].log_step.grad, grids[1].log_step.grad)
    assert weights[0].grad.abs().sum() > 0


def test_level_bits_and_position_bits_are_all_bits():
    ratio = torch.randn(12, 9) * 3
    levels = ratio.round().clamp(-4, 4)
    kept = levels != 0
    whole = grid_bits(ratio, levels, 4, zeros_are_fixed=True)
    positions = grid_bits(kept.float(), kept.float(), 4, zeros_are_fixed=True)  # one value: its levels cost a constant
    constant = level_bits(torch.ones(int(kept.sum())), torch.ones(int(kept.sum())), 4)
    torch.testing.assert_close(whole, positions - constant + level_bits(ratio[kept], levels[kept], 4))


def test_without_the_rate_only_thresholds_pay():
    for rate in (True, False):
        stage = next(Joint(bytes=2_000, rate=rate).stages(small_network(), Recipe()))
        assert ("rate" in stage.terms) == rate
