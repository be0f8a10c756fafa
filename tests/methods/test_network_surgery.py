"""Dynamic network surgery: hysteresis, a gradient for what is not read, and an exact number in the end."""

import pytest
import torch
from small_training import carry_out, small_network, train
from torch import nn

from secateur.functions.spliced_mask import SplicedMask
from secateur.measure import count
from secateur.methods.network_surgery import NetworkSurgery
from secateur.train.recipe import Recipe


def test_a_weight_between_the_bounds_stays_in_or_out_as_it_was():
    weight = torch.tensor([0.8, 0.95, 1.05, 1.2])
    mask = SplicedMask(weight)
    mask.threshold.fill_(1.0)
    mask.update(weight)
    assert mask.mask.tolist() == [0, 1, 1, 1]
    mask.update(weight.flip(0))  # the first is above b now and comes back, the last is below a
    assert mask.mask.tolist() == [1, 1, 1, 0]


def test_what_is_not_read_is_trained_too():
    weight = torch.tensor([1.0, 2.0, 3.0], requires_grad=True)
    mask = SplicedMask(weight)
    mask.mask.copy_(torch.tensor([1, 0, 1]))
    read = mask(weight)
    read.backward(torch.tensor([0.1, 0.2, 0.3]))
    assert read.tolist() == [1, 0, 3]
    assert weight.grad.tolist() == pytest.approx([0.1, 0.2, 0.3])


def test_the_threshold_is_mean_and_deviation_and_spares_the_largest_weight():
    weight = torch.tensor([1.0, -1.0, 3.0, -3.0])  # of mean size 2 and deviation 1
    mask = SplicedMask(weight)
    mask.set_threshold(torch.tensor(0.5), weight)
    assert mask.threshold == 2.5
    assert mask.deviations(torch.tensor([2.5])) == 0.5
    mask.set_threshold(torch.tensor(5.0), weight)
    mask.update(weight)
    assert mask.mask.tolist() == [0, 0, 1, 1]


def test_masks_follow_a_ramp_and_are_exact_in_the_end():
    stages = NetworkSurgery(ratio=5, dense=0).stages(model := small_network(), Recipe())
    between, kept = next(stages).between, []
    train(model, 40, lambda *steps: (between(*steps), kept.append(count(model).prunable.kept)))
    assert kept[0] > 700 > kept[12] > 84 * 2
    assert kept[-1] == 840 // 5
    assert count(next(stages).model).prunable.kept == 840 // 5


def test_surgery_is_done_by_sgd_and_masks_change_with_a_probability_that_falls():
    model = small_network()
    stage = next(NetworkSurgery(ratio=5, dense=0, gamma=1e9).stages(model, Recipe(optimizer="adam", lr=1e-3)))
    assert (stage.recipe.optimizer, stage.recipe.lr) == ("sgd", 0.05)
    for done in range(1, 40):
        stage.between(done, 40)
    assert count(model).prunable.kept == 840
    by_sgd = next(NetworkSurgery(dense=0).stages(small_network(), Recipe(optimizer="sgd", lr=0.02)))
    assert (by_sgd.recipe.optimizer, by_sgd.recipe.lr) == ("sgd", 0.02)


def test_epochs_are_shared():
    stages = []
    carry_out(NetworkSurgery(), nn.Sequential(nn.Flatten(), nn.Linear(36, 3)), stages.append, Recipe(epochs=10))
    assert [(stage.name, stage.recipe.epochs) for stage in stages] == [("dense", 3), ("surgery", 4), ("fine-tune", 3)]
