"""The objective: L_t reaches thresholds only, ρ is a learning rate, thresholds stay non-negative."""

import math
import warnings

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.testing import assert_close
from torch.utils.checkpoint import checkpoint
from toy_networks import CASES, Attention, Tied, mlp

from secateur import SiblingConfig, build_sibling, learned_thresholds, parameter_groups, penalty, theta
from secateur.theta import theta_derivatives


def norms(sibling):
    """Σ|θ(W; t)| of every distinct tensor, computed from scratch."""
    chains = [m for m in sibling.modules() if isinstance(m, nn.utils.parametrize.ParametrizationList)]
    distinct = {id(chain.original): chain for chain in chains}.values()
    return sum(theta(c.original, c[0].threshold, c[0].alpha).abs().sum().item() for c in distinct)


@pytest.mark.parametrize("case", CASES)
def test_the_penalty_is_the_norm_of_every_tensor_counted_once(case):
    make, inputs = CASES[case]
    sibling = build_sibling(make())
    sibling(inputs())
    assert penalty(sibling, 0.5).item() == pytest.approx(0.5 * norms(sibling), rel=1e-5)


def test_the_penalty_sends_nothing_to_the_weights_and_the_right_thing_to_the_thresholds():
    sibling = build_sibling(mlp())
    sibling(torch.randn(3, 12))
    penalty(sibling, 0.3).backward()
    for name, function in learned_thresholds(sibling).items():
        chain = sibling.get_submodule(name.removesuffix(".weight")).parametrizations.weight
        assert chain.original.grad is None
        slope = (chain.original.sign() * theta_derivatives(chain.original, function.threshold, 100.0)[1]).sum()
        assert function.threshold.grad.item() == pytest.approx(0.3 * slope.item(), rel=1e-4)


@pytest.mark.parametrize("lambda_t", [0.0, 1e-2, 3.0])
def test_a_part_of_the_penalty_has_its_part_of_the_gradient(lambda_t):
    def gradients(share, factor):
        sibling = build_sibling(mlp(), SiblingConfig(granularity="row"))
        sibling(torch.ones(3, 12))
        (penalty(sibling, factor) * share).backward()
        return torch.cat([function.threshold.grad.flatten() for function in learned_thresholds(sibling).values()])

    torch.manual_seed(0)
    whole = gradients(1.0, 1.0)
    torch.manual_seed(0)
    assert_close(gradients(0.25, lambda_t), whole * 0.25 * lambda_t)


def test_loss_and_penalty_share_one_backward():
    sibling, x = build_sibling(mlp()).double(), torch.randn(6, 12, dtype=torch.float64)
    loss = sibling(x).square().sum() + penalty(sibling, 0.1)
    loss.backward()
    ours = {name: p.grad.clone() for name, p in sibling.named_parameters()}
    sibling.zero_grad()
    weights = {}
    for layer in (sibling[0], sibling[2]):
        chain = layer.parametrizations.weight
        weights[layer] = theta(chain.original, chain[0].threshold, 100.0)
    hidden = functional.relu(functional.linear(x, weights[sibling[0]], sibling[0].bias))
    plain = functional.linear(hidden, weights[sibling[2]], sibling[2].bias).square().sum()
    for layer in weights:
        chain = layer.parametrizations.weight
        plain = plain + 0.1 * theta(chain.original.detach(), chain[0].threshold, 100.0).abs().sum()
    plain.backward()
    for name, parameter in sibling.named_parameters():
        assert_close(ours[name], parameter.grad)


@pytest.mark.parametrize("situation", ["no forward", "forward without gradients", "weights moved since", "reentrant"])
def test_without_a_usable_forward_the_penalty_computes_theta_itself(situation):
    sibling, x = build_sibling(mlp()), torch.randn(3, 12)
    if situation == "forward without gradients":
        with torch.no_grad():
            sibling(x)
    elif situation == "weights moved since":
        sibling(x)
        with torch.no_grad():
            sibling[0].parametrizations.weight.original.mul_(2)
    elif situation == "reentrant":
        checkpoint(sibling, x.requires_grad_(), use_reentrant=True)
    value = penalty(sibling, 1.0)
    assert value.item() == pytest.approx(norms(sibling), rel=1e-5)
    value.backward()
    assert learned_thresholds(sibling)["0.weight"].threshold.grad.item() < 0


def test_gradient_accumulation_over_two_halves_is_one_step_over_the_whole():
    x = torch.randn(8, 12)
    sibling = build_sibling(mlp())
    (sibling(x).square().mean() + penalty(sibling)).backward()
    whole = [p.grad.clone() for p in sibling.parameters()]
    sibling.zero_grad()
    for half in x.chunk(2):
        ((sibling(half).square().mean() + penalty(sibling)) / 2).backward()
    for parameter, expected in zip(sibling.parameters(), whole, strict=True):
        assert_close(parameter.grad, expected, rtol=1e-4, atol=1e-6)


def test_two_forwards_before_one_backward_work():
    sibling, x = build_sibling(mlp()), torch.randn(8, 12)
    for function in learned_thresholds(sibling).values():
        function.threshold.data.fill_(-0.01)
    (sibling(x).sum() + sibling(2 * x).sum() + penalty(sibling)).backward()
    assert all(p.grad is not None for p in sibling.parameters())


def test_thresholds_follow_projected_gradient_descent():
    sibling, x = build_sibling(nn.Linear(6, 4)), torch.randn(20, 6)
    function = learned_thresholds(sibling)["weight"]
    optimizer = torch.optim.SGD(parameter_groups(sibling, lr=0.3, rho=0.5))
    expected = function.threshold.item()
    touched_zero = False
    for step in range(40):
        # Pull the threshold down first, then let it up again: a stored negative value would delay the way back.
        sign = -1.0 if step < 20 else 1.0
        (0.01 * sibling(x).square().mean() + sign * penalty(sibling, 0.05)).backward()
        expected = max(0.0, expected - 0.15 * function.threshold.grad.item())
        touched_zero |= expected == 0
        optimizer.step()
        optimizer.zero_grad()
        assert max(0.0, function.threshold.item()) == pytest.approx(expected, abs=1e-6)
    assert touched_zero
    assert function.threshold.item() > 0


def test_the_groups_hold_each_parameter_once_with_its_rate_and_decay():
    sibling = build_sibling(Attention())
    groups = parameter_groups(sibling, lr=0.1, rho=0.01, lambda_wd=0.25)
    assert [(group["lr"], group["weight_decay"]) for group in groups] == [
        (0.1, 0.5),
        (0.1, 0),
        (pytest.approx(1e-3), 0),
    ]
    listed = [id(p) for group in groups for p in group["params"]]
    assert sorted(listed) == sorted(id(p) for p in sibling.parameters())
    assert {p.dim() for p in groups[1]["params"]} == {1}


def test_weight_decay_is_the_gradient_of_lambda_times_the_squared_norm():
    sibling, lambda_wd = build_sibling(mlp()), 0.05
    raw = sibling[0].parametrizations.weight.original
    before = raw.detach().clone()
    optimizer = torch.optim.SGD(parameter_groups(sibling, lr=0.1, lambda_wd=lambda_wd))
    (sibling(torch.randn(3, 12)).sum() * 0).backward()
    optimizer.step()
    assert_close(raw, before - 0.1 * 2 * lambda_wd * before)


def test_a_dense_model_gets_the_same_groups_without_thresholds():
    groups = parameter_groups(mlp(), lr=0.1, lambda_wd=0.1)
    assert [len(group["params"]) for group in groups] == [2, 2]
    assert len(parameter_groups(mlp(), lr=0.1, decay_biases=True)) == 1


@pytest.mark.parametrize(
    "scheduler",
    [
        lambda optimizer: torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.1, total_steps=10),
        lambda optimizer: torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=4, eta_min=0.01),
    ],
)
@pytest.mark.filterwarnings("ignore:Detected call of")
def test_a_scheduler_that_overwrites_rho_is_pointed_out_once(scheduler):
    sibling = build_sibling(mlp())
    optimizer = torch.optim.SGD(parameter_groups(sibling, lr=0.1, rho=0.01), momentum=0.9)
    schedule = scheduler(optimizer)
    schedule.step()
    sibling(torch.randn(2, 12))
    with pytest.warns(UserWarning, match="overwritten"):
        penalty(sibling)
    penalty(sibling)


def test_relative_schedules_keep_rho_and_are_silent():
    sibling = build_sibling(mlp())
    optimizer = torch.optim.SGD(parameter_groups(sibling, lr=0.1))
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=5)
    for _ in range(5):
        (sibling(torch.randn(2, 12)).sum() + penalty(sibling)).backward()
        optimizer.step()
        schedule.step()


def test_adamw_is_pointed_out():
    sibling = build_sibling(mlp())
    torch.optim.AdamW(parameter_groups(sibling, lr=0.1, lambda_wd=1e-4))
    sibling(torch.randn(2, 12))
    with pytest.warns(UserWarning, match="AdamW decouples"):
        penalty(sibling)


@pytest.mark.parametrize("options", [{"foreach": True}, {"fused": True}, {"foreach": False, "fused": False}])
@pytest.mark.parametrize("kind", [torch.optim.Adam, torch.optim.SGD])
def test_every_implementation_of_an_optimizer_trains_thresholds(kind, options):
    sibling, x = build_sibling(mlp()), torch.randn(6, 12)
    optimizer = kind(parameter_groups(sibling, lr=0.01, rho=0.1), **options)
    before = [f.threshold.item() for f in learned_thresholds(sibling).values()]
    (sibling(x).square().mean() + penalty(sibling)).backward()
    nn.utils.clip_grad_norm_(sibling.parameters(), 1.0)
    optimizer.step()
    after = [f.threshold.item() for f in learned_thresholds(sibling).values()]
    assert all(new > old for new, old in zip(after, before, strict=True))


def test_autocast_trains_thresholds_in_float32():
    sibling, x = build_sibling(mlp()), torch.randn(6, 12)
    with torch.autocast("cpu", torch.bfloat16):
        loss = functional.cross_entropy(sibling(x), torch.arange(6) % 4)
    (loss + penalty(sibling)).backward()
    grad = learned_thresholds(sibling)["0.weight"].threshold.grad
    assert grad.dtype == torch.float32
    assert grad.item() != 0


@pytest.mark.parametrize("name", ["lr", "rho", "lambda_wd"])
@pytest.mark.parametrize("value", [-1.0, math.nan, math.inf])
def test_impossible_rates_are_refused(name, value):
    with pytest.raises(ValueError, match=f"{name} must be"):
        parameter_groups(build_sibling(mlp()), **{"lr": 0.1, name: value})


def test_a_lost_rho_is_noticed_through_a_wrapper_and_said_once():
    sibling = build_sibling(mlp())
    groups = parameter_groups(sibling, lr=0.1)
    groups[-1]["lr"] = 0.1
    with pytest.warns(UserWarning, match="has overwritten it"):
        penalty(nn.Sequential(sibling))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        penalty(sibling)


def test_an_impossible_lambda_t_and_a_model_without_thresholds_are_refused():
    for value in (-1e-3, math.nan, math.inf):
        with pytest.raises(ValueError, match="lambda_t must be"):
            penalty(build_sibling(mlp()), value)
    with pytest.raises(ValueError, match="no thresholds to penalise"):
        penalty(Tied())


def test_the_rate_of_biases_is_no_rho_even_if_it_is_the_same_number():
    sibling = build_sibling(mlp())
    groups = parameter_groups(sibling, lr=0.1, rho=2.0, lambda_wd=1.0, bias_lr=2.0)
    assert [(group["lr"], group["weight_decay"], group.get("rho")) for group in groups] == [
        (0.1, 2.0, None),
        (0.2, 0.0, None),
        (0.2, 0.0, 2.0),
    ]
    names = {id(parameter): name for name, parameter in sibling.named_parameters()}
    assert all(names[id(parameter)].endswith("bias") for parameter in groups[1]["params"])
    assert all(function.optimizer_groups == (groups[0], groups[2]) for function in learned_thresholds(sibling).values())


@pytest.mark.parametrize("alpha", [1.0, 100.0])
def test_a_threshold_at_zero_is_moved_by_the_penalty_as_the_closed_form_says(alpha):
    """∂(λ_t·Σ|θ|)/∂t = −λ_t·Σ(1 − tanh(α|w|/2)) at t = 0: there p = 0 starts, and it is never zero."""
    sibling = build_sibling(mlp(), SiblingConfig(alpha=alpha, init_quantile=0.0))
    optimizer = torch.optim.SGD(parameter_groups(sibling, lr=0.1, rho=1e-3))
    sibling(torch.ones(3, 12))
    penalty(sibling, 0.2).backward()
    optimizer.step()
    for name, function in learned_thresholds(sibling).items():
        weight = sibling.get_submodule(name.removesuffix(".weight")).parametrizations.weight.original
        speed = 0.2 * (1 - torch.tanh(alpha * weight.detach().abs() / 2)).sum()
        assert function.threshold.grad.item() == pytest.approx(-speed.item(), rel=1e-5)
        assert function.threshold.item() == pytest.approx(0.1 * 1e-3 * speed.item(), rel=1e-5)
