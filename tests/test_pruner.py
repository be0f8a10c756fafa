"""Pruning to a budget: the number of weights kept, in any loop, and what the thresholds follow."""

import copy
import math
from itertools import pairwise

import pytest
import torch
from torch import nn
from torch.nn import functional
from toy_networks import Tied

from secateur import Budget, Pruner, keep_zeros, parameter_groups, prune
from secateur.functions.solved_threshold import SHARPNESS, SolvedThreshold, solved_thresholds
from secateur.measure import count
from secateur.theta import hard_theta, theta_derivatives
from secateur.theta_autograd import hard_theta_with_slopes
from secateur.weights.tensors import tensors

OPTIMIZERS = {
    "sgd": lambda parameters: torch.optim.SGD(parameters, lr=0.05, momentum=0.9),
    "adam": lambda parameters: torch.optim.Adam(parameters, lr=1e-3),
    "adamw": lambda parameters: torch.optim.AdamW(parameters, lr=1e-3),
}
STEPS = 120


def network():
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 8, 3),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(8 * 16, 30),
        nn.ReLU(),
        nn.Linear(30, 3),
    )


def images():
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(192, 1, 6, 6, generator=generator)
    return x, (x[:, 0, :3].sum((1, 2)) > 0).long() + (x[:, 0, 3:].sum((1, 2)) > 0).long()


def train(model, pruner, optimizer, steps=STEPS):
    x, y = images()
    for step in range(steps):
        rows = torch.arange(64) + 64 * (step % 3)
        optimizer.zero_grad()
        functional.cross_entropy(model(x[rows]), y[rows]).backward()
        optimizer.step()
        pruner.step()


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("granularity", ["layer", "filter", "element"])
def test_exactly_as_many_weights_are_kept_as_the_budget_allows(optimizer, granularity):
    model = network()
    pruner = Pruner(model, Budget(ratio=10), steps=STEPS, granularity=granularity)
    train(model, pruner, OPTIMIZERS[optimizer](model.parameters()))
    totals = count(prune(model)).prunable
    assert totals.kept == pruner.kept == totals.weights // 10
    assert all(tensor.kept >= math.ceil(tensor.weights ** (1 / 3)) for tensor in totals.tensors)


@pytest.mark.parametrize("ratio", [3, 7, 10.5, 20])
def test_a_ratio_is_reached_and_never_fallen_short_of(ratio):
    model = nn.Linear(40, 25)
    pruner = Pruner(model, Budget(ratio=ratio))
    pruner.advance(1, 1)
    assert pruner.kept == math.floor(1000 / ratio)


def test_of_equal_weights_at_the_threshold_some_are_kept():
    model = nn.Linear(10, 100)
    with torch.no_grad():
        model.weight.fill_(0.5)
        model.weight[:30] = torch.linspace(1, 2, 300).view(30, 10)
    pruner = Pruner(model, Budget(ratio=2))
    pruner.advance(1, 1)
    assert pruner.kept == 500
    assert prune(model).weight[:30].all()


def test_an_optimizer_may_be_built_before_the_pruner():
    found = []
    for is_first in (True, False):
        model = network()
        optimizer = OPTIMIZERS["sgd"](model.parameters()) if is_first else None
        pruner = Pruner(model, Budget(ratio=10), steps=STEPS)
        train(model, pruner, optimizer or OPTIMIZERS["sgd"](model.parameters()))
        found.append(model.state_dict())
    assert all(torch.equal(value, found[1][name]) for name, value in found[0].items())


def test_a_share_of_zeros_is_met_as_a_ratio_is():
    model = network()
    train(model, Pruner(model, Budget(sparsity=0.75), steps=STEPS), OPTIMIZERS["adam"](model.parameters()))
    totals = count(prune(model)).prunable
    assert totals.kept == totals.weights // 4


def test_the_schedule_falls_by_equal_shares_until_half_of_the_training_and_is_followed():
    model = network()
    pruner = Pruner(model, Budget(ratio=16), steps=STEPS)
    optimizer = OPTIMIZERS["sgd"](model.parameters())
    assert [pruner.wanted(p) / pruner.weights for p in (0, 0.125, 0.25, 0.5, 1)] == pytest.approx(
        [1, 1 / 2, 1 / 4, 1 / 16, 1 / 16]
    )
    for quarter in (1, 2, 3, 4):
        train(model, pruner, optimizer, STEPS // 4)
        assert pruner.kept == pytest.approx(pruner.wanted(quarter / 4), rel=0.1)


@pytest.mark.parametrize("side", [3, 5])
def test_a_sample_of_the_weights_meets_all_places_of_a_filter(side):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(64, 2048 // side, side, bias=False))
    with torch.no_grad():
        model[0].weight[..., 0] *= 0.1  # of each row of a filter, so that a stride of its side sees nothing else
    weights = model[0].weight.numel()
    for wanted in (3 << 13, 5 << 13, 15 << 13):  # at the end of the ramp: strides of 3, 5 and 15 at most
        pruner = Pruner(model, Budget(ratio=weights / wanted), steps=100, fixed=1.0)
        pruner.advance(60, 100)
        assert pruner.kept == pytest.approx(wanted, rel=0.05)


def test_the_cut_changes_nothing():
    model = network()
    train(model, Pruner(model, Budget(ratio=10), steps=STEPS), OPTIMIZERS["adam"](model.parameters()))
    x, _ = images()
    assert torch.equal(model.eval()(x), prune(model).eval()(x))


@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e3])
def test_the_slopes_are_those_of_theta_at_a_sharpness_in_units_of_the_threshold(scale):
    weight = (torch.linspace(-2, 2, 41) * scale).requires_grad_()
    threshold = torch.tensor(0.75 * scale, requires_grad=True)
    upstream = torch.linspace(1, 2, 41)
    out = hard_theta_with_slopes(weight, threshold, 8.0)
    out.backward(upstream)
    assert torch.equal(out, hard_theta(weight, threshold))
    by_weight, by_threshold = theta_derivatives(weight.detach(), threshold.detach(), 8.0 / (0.75 * scale))
    torch.testing.assert_close(weight.grad, upstream * by_weight, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(threshold.grad, (upstream * by_threshold).sum(), rtol=1e-5, atol=1e-5)


def test_at_a_threshold_of_zero_the_weights_are_read_as_they_are():
    weight = torch.randn(50, requires_grad=True)
    out = hard_theta_with_slopes(weight, torch.zeros(1, requires_grad=True), SHARPNESS)
    out.sum().backward()
    assert torch.equal(out, weight)
    assert torch.equal(weight.grad, torch.ones(50))


def test_the_relative_thresholds_do_not_depend_on_the_scale_of_loss_or_weights():
    found = []
    for factor in (1.0, 1024.0):
        model, (x, y) = network(), images()
        pruner = Pruner(model, Budget(ratio=4), steps=STEPS)
        optimizer = OPTIMIZERS["adam"](model.parameters())
        optimizer.param_groups[0]["eps"] = 1e-30
        for step in range(STEPS):
            rows = torch.arange(64) + 64 * (step % 3)
            optimizer.zero_grad()
            (factor * functional.cross_entropy(model(x[rows]), y[rows])).backward()
            optimizer.step()
            pruner.step()
        found.append(torch.stack([each.relative.squeeze() for each in solved_thresholds(model).values()]))
    assert found[0].abs().max() > 0.05
    torch.testing.assert_close(found[0], found[1], rtol=1e-3, atol=1e-3)


def test_a_layer_that_the_loss_needs_less_gives_its_weights_to_the_others():
    torch.manual_seed(0)
    model = nn.ModuleDict({"used": nn.Linear(20, 20, bias=False), "idle": nn.Linear(20, 20, bias=False)})
    target, x = torch.randn(20, 20), torch.randn(STEPS, 64, 20)
    pruner = Pruner(model, Budget(ratio=4), steps=STEPS)
    optimizer = torch.optim.Adam(parameter_groups(model, lr=1e-2))
    for batch in x:
        optimizer.zero_grad()
        loss = (model["used"](batch) - batch @ target).square().mean() + 1e-6 * model["idle"](batch).square().mean()
        loss.backward()
        optimizer.step()
        pruner.step()
    kept = {tensor.name: tensor.kept for tensor in count(prune(model)).prunable.tensors}
    assert kept["used.weight"] > 3 * kept["idle.weight"]


def test_a_state_dict_holds_all_that_a_pruner_knows():
    whole, first = network(), network()
    pruners = [Pruner(model, Budget(ratio=10), steps=STEPS) for model in (whole, first)]
    optimizers = [OPTIMIZERS["adam"](parameter_groups(model, lr=1e-3)) for model in (whole, first)]
    train(whole, pruners[0], optimizers[0])
    train(first, pruners[1], optimizers[1], STEPS // 2)
    second = network()
    pruner = Pruner(second, Budget(ratio=10), steps=STEPS)
    second.load_state_dict(copy.deepcopy(first.state_dict()))
    optimizer = OPTIMIZERS["adam"](parameter_groups(second, lr=1e-3))
    optimizer.load_state_dict(copy.deepcopy(optimizers[1].state_dict()))
    train(second, pruner, optimizer, STEPS // 2)
    torch.testing.assert_close(second.state_dict(), whole.state_dict(), rtol=0, atol=0)


def test_a_copied_network_goes_on_with_a_pruner_of_its_own():
    model = network()
    train(model, Pruner(model, Budget(ratio=10), steps=STEPS), OPTIMIZERS["adam"](model.parameters()), STEPS // 2)
    other = copy.deepcopy(model)
    pruner = Pruner(other, Budget(ratio=10), steps=STEPS)
    train(other, pruner, OPTIMIZERS["adam"](other.parameters()), STEPS // 2)
    assert pruner.kept == pruner.weights // 10


def test_what_is_left_is_fine_tuned_with_its_zeros_kept():
    model = network()
    train(model, Pruner(model, Budget(ratio=10), steps=STEPS), OPTIMIZERS["adam"](model.parameters()))
    pruned = keep_zeros(prune(model))
    before = count(pruned).prunable.kept
    x, y = images()
    optimizer = OPTIMIZERS["adam"](pruned.parameters())
    functional.cross_entropy(pruned(x), y).backward()
    optimizer.step()
    assert count(prune(pruned)).prunable.kept == before


def test_steps_after_the_last_one_hold_the_budget():
    model = network()
    pruner = Pruner(model, Budget(ratio=10), steps=STEPS)
    train(model, pruner, OPTIMIZERS["sgd"](model.parameters()), STEPS + 20)
    assert pruner.kept == pruner.weights // 10


def thresholds(model):
    """Return stored weights with their thresholds."""
    found = [(tensor.stored, tensor.function(SolvedThreshold)) for tensor in tensors(model)]
    return [(weight, function) for weight, function in found if function is not None]


def test_weights_change_places_until_they_are_fixed_and_then_take_any_value():
    model = network()
    pruner = Pruner(model, Budget(ratio=10), steps=STEPS)
    optimizer = OPTIMIZERS["sgd"](parameter_groups(model, lr=0.05))
    places = []
    for _ in range(10):
        train(model, pruner, optimizer, STEPS // 10)
        places.append([function.kept(weight) for weight, function in thresholds(model)])
    changes = [any(not torch.equal(a, b) for a, b in zip(*both, strict=True)) for both in pairwise(places)]
    assert changes[:5] == [True] * 5
    assert not any(changes[5:])  # after 0.6 of the training
    assert any(
        (function.kept(weight) & (weight.abs() < function.threshold)).any() for weight, function in thresholds(model)
    )
    assert count(prune(model)).prunable.kept == pruner.weights // 10


def test_a_fixed_choice_survives_optimizers_that_move_what_was_cut():
    model = nn.Linear(20, 10)
    pruner = Pruner(model, Budget(ratio=4))
    pruner.advance(1, 1)
    before = prune(model).weight != 0
    with torch.no_grad():
        model.parametrizations.weight.original.add_(1.0)
    assert torch.equal(prune(model).weight != 0, before)
    assert torch.equal(model.weight != 0, before)


def test_gradients_whose_squares_vanish_move_no_threshold_to_infinity():
    model = network()
    pruner = Pruner(model, Budget(ratio=10), steps=10)
    x, y = images()
    for _ in range(3):
        model.zero_grad()
        (functional.cross_entropy(model(x), y) * 1e-24).backward()
        pruner.step()
    assert all(function.relative.abs().max() < 1 for _, function in thresholds(model))


def test_a_second_ramp_begins_where_the_first_one_ended():
    model = network()
    pruner = Pruner(model, Budget(ratio=4), steps=STEPS)
    optimizer = OPTIMIZERS["adam"](parameter_groups(model, lr=1e-3))
    train(model, pruner, optimizer)
    first = prune(model)
    pruner.restart(Budget(ratio=16))
    torch.testing.assert_close(prune(model).state_dict(), first.state_dict(), rtol=0, atol=0)
    kept = [pruner.wanted(progress) for progress in (0.0, 0.25, 0.5, 1.0)]
    assert kept == pytest.approx(
        [pruner.weights // 4, pruner.weights / 8, pruner.weights / 16, pruner.weights / 16], rel=0.01
    )
    train(model, pruner, optimizer)
    assert pruner.kept == pruner.weights // 16


def sparse_layer():
    torch.manual_seed(0)
    layer = nn.Linear(40, 25)
    with torch.no_grad():
        layer.weight.mul_(layer.weight.abs() >= layer.weight.abs().flatten().kthvalue(801).values)
    return layer  # 200 of 1,000 weights are not zero


def test_the_ramp_of_a_sparse_network_begins_with_what_it_has():
    layer = sparse_layer()
    before = layer.weight.detach().clone()
    pruner = Pruner(layer, Budget(ratio=20))
    assert pruner.kept == 200
    assert torch.equal(layer.weight, before)
    assert [round(pruner.wanted(progress)) for progress in (0, 0.25, 0.5)] == [200, 100, 50]
    pruner.advance(1, 1)
    assert pruner.kept == 50


def test_a_budget_that_a_sparse_network_meets_already_adds_no_weight():
    layer = sparse_layer()
    pruner = Pruner(layer, Budget(ratio=2))
    pruner.advance(1, 1)
    assert count(prune(layer)).prunable.kept == pruner.kept == 200


def test_tied_weights_are_pruned_once():
    model = Tied()
    pruner = Pruner(model, Budget(ratio=3), steps=2)
    names = [name for name, _ in model.named_parameters()]
    assert pruner.weights == count(model).prunable.weights
    assert len(names) == len(set(names))


def test_a_layer_of_three_weights_keeps_two():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 1), nn.Linear(1, 200))
    x = torch.randn(STEPS, 32, 3)
    pruner = Pruner(model, Budget(ratio=20), steps=STEPS)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    for batch in x:
        optimizer.zero_grad()
        model(batch).square().mean().backward()
        optimizer.step()
        pruner.step()
    assert [tensor.kept for tensor in count(prune(model)).prunable.tensors] == [2, 8]


@pytest.mark.parametrize(
    ("make", "complaint"),
    [
        (lambda: Pruner(network(), Budget(ratio=1000), steps=9), "1000× would keep 4 of 4,002 weights: .*cube root"),
        (lambda: Pruner(nn.Sequential(nn.ReLU()), Budget(ratio=2), steps=9), "has nothing to prune"),
        (lambda: Pruner(network(), Budget(ratio=2), steps=0), "steps must be the number of all steps"),
        (lambda: Pruner(network(), Budget(ratio=2)).step(), "needs the number of all steps"),
        (lambda: Pruner(network(), Budget(ratio=2), fixed=0.2), "fixed must lie between 0.5, where the ramp ends, and"),
        (lambda: Pruner(network(), Budget(error_increase=1), steps=9), "takes several rounds of training"),
        (lambda: Pruner(network(), Budget(ratio=2), steps=9).step(), "no gradient: call Pruner.step"),
    ],
)
def test_what_cannot_work_is_one_sentence(make, complaint):
    with pytest.raises(ValueError, match=complaint):
        make()


def test_weights_that_became_nan_are_named_as_the_reason():
    model = network()
    pruner = Pruner(model, Budget(ratio=10), steps=STEPS)
    with torch.no_grad():
        model[6].parametrizations.weight.original[0, 0] = math.nan
    with pytest.raises(FloatingPointError, match=r'"6\.weight" became NaN'):
        pruner.advance(STEPS, STEPS)


def test_a_layer_that_starts_at_zero_is_pruned_like_the_others():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(20, 30), nn.ReLU(), nn.Linear(30, 10))
    nn.init.zeros_(model[2].weight)  # as the last layer of a residual branch often is
    with pytest.warns(UserWarning, match="all zeros"):
        pruner = Pruner(model, Budget(ratio=5), steps=STEPS)
    assert pruner.wanted(0) == pruner.weights  # zeros that were never trained are not those of a sparse network
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    inputs, labels = torch.randn(64, 20), torch.randint(10, (64,))
    for _ in range(STEPS):
        optimizer.zero_grad()
        functional.cross_entropy(model(inputs), labels).backward()
        optimizer.step()
        pruner.step()
    plain = prune(model)
    assert count(plain).prunable.kept == 900 // 5
    assert 0 < int(plain[2].weight.count_nonzero()) < 300
