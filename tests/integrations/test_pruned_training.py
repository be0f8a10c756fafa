"""What the callbacks of all frameworks share, in a loop by hand."""

import pytest
import torch
from torch import nn
from torch.nn import functional

import secateur
from secateur import Budget, Pruner, prune
from secateur.integrations.pruned_training import PrunedTraining

STEPS = 40


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(12, 24), nn.ReLU(), nn.Linear(24, 3))


def loss(model, step):
    x = torch.randn(16, 12, generator=torch.Generator().manual_seed(step))
    return functional.cross_entropy(model(x), x[:, :3].argmax(1))


def training(budget=None, lambda_t=None, layers=None):
    return PrunedTraining(budget, layers=layers, lambda_t=lambda_t, cutoff=1e-3)


def run(pruning, model, optimizer, *, steps=STEPS):
    pruning.attach(model)
    pruning.begin(model, steps=STEPS, groups=optimizer.param_groups, clip_norm=None)
    for step in range(steps):
        optimizer.zero_grad()
        loss(model, step).backward()
        pruning.before_step()
        optimizer.step()
        pruning.after_step()


def test_a_budget_is_met_as_by_a_pruner_and_the_network_is_plain():
    model, other, pruning = network(), network(), training(Budget(ratio=4))
    run(pruning, model, torch.optim.Adam(model.parameters(), lr=1e-2))
    pruning.cut(model)
    pruner, optimizer = Pruner(other, Budget(ratio=4), steps=STEPS), torch.optim.Adam(other.parameters(), lr=1e-2)
    for step in range(STEPS):
        optimizer.zero_grad()
        loss(other, step).backward()
        optimizer.step()
        pruner.step()
    expected = prune(other).state_dict()
    assert list(model.state_dict()) == list(expected)
    assert all(torch.equal(value, expected[name]) for name, value in model.state_dict().items())


def test_the_penalty_that_is_added_at_the_step_is_that_of_the_loss():
    model, other = (secateur.build_sibling(network()) for _ in range(2))
    optimizer = torch.optim.Adam(secateur.parameter_groups(model, lr=1e-2, rho=0.1))
    run(training(lambda_t=1e-2), model, optimizer, steps=5)
    optimizer = torch.optim.Adam(secateur.parameter_groups(other, lr=1e-2, rho=0.1))
    for step in range(5):
        optimizer.zero_grad()
        (loss(other, step) + secateur.penalty(other, 1e-2)).backward()
        optimizer.step()
    for value, expected in zip(model.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(value, expected, rtol=1e-5, atol=1e-7)


def test_thresholds_that_are_taken_out_and_loaded_again_continue_with_the_same_bits():
    model, pruning = network(), training(Budget(ratio=4))
    run(pruning, model, torch.optim.SGD(model.parameters(), lr=0.1), steps=STEPS // 2)
    whole = {name: value.clone() for name, value in model.state_dict().items()}
    plain = dict(whole)
    taken = pruning.take_thresholds(model, plain)
    assert plain.keys() == network().state_dict().keys()
    assert all(torch.equal(plain[name], value) for name, value in prune(model).state_dict().items())
    other = network()
    pruning.attach(other)
    other.load_state_dict(plain)
    other.load_state_dict(taken, strict=False)
    assert all(torch.equal(value, whole[name]) for name, value in other.state_dict().items())


def test_the_numbers_are_the_ratio_the_weights_kept_and_the_multiplier():
    model, pruning = secateur.build_sibling(network()), training(lambda_t=0.5)
    optimizer = torch.optim.Adam(secateur.parameter_groups(model, lr=1e-2, rho=0.1))
    run(pruning, model, optimizer, steps=2)
    kept = sum(int(value.count_nonzero()) for name, value in prune(model).state_dict().items() if "weight" in name)
    assert pruning.numbers() == {
        "pruning/ratio": 360 / kept,
        "pruning/kept": kept,
        "pruning/multiplier": 0.5,
    }


def test_a_training_that_ends_early_is_cut_as_it_is_with_a_warning():
    model, pruning = network(), training(Budget(ratio=4))
    run(pruning, model, torch.optim.SGD(model.parameters(), lr=0.1), steps=5)
    with pytest.warns(UserWarning, match=r"that of step 5 of 40: \d+ weights are kept, and 4× asks for 90"):
        pruning.cut(model)
    assert not hasattr(model[0], "parametrizations")


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({}, "or lambda_t for the paper's form: one of the two, got neither"),
        ({"budget": Budget(ratio=4), "lambda_t": 1e-2}, "one of the two, got both"),
        ({"budget": Budget(error_increase=1.0)}, "a callback does not have"),
        ({"lambda_t": -1.0}, "lambda_t must be ≥ 0"),
        ({"lambda_t": 1e-2, "layers": {nn.Linear: None}}, "layers are chosen by build_sibling"),
    ],
)
def test_settings_that_cannot_be_are_refused(settings, said):
    with pytest.raises(ValueError, match=said):
        training(**settings)


def test_what_the_papers_form_leaves_to_the_user_is_asked_for():
    with pytest.raises(ValueError, match=r"is not a sibling: call secateur\.build_sibling"):
        training(lambda_t=1e-2).attach(network())
    model = secateur.build_sibling(network())
    groups = torch.optim.Adam(model.parameters()).param_groups
    with pytest.raises(ValueError, match=r'threshold of "0\.weight" like a weight'):
        training(lambda_t=1e-2).begin(model, steps=9, groups=groups, clip_norm=None)
    groups = secateur.parameter_groups(model, lr=1e-3)
    with pytest.raises(ValueError, match="clipped at 1, those of thresholds too"):
        training(lambda_t=1e-2).begin(model, steps=9, groups=groups, clip_norm=1.0)
