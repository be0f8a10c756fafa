"""A network that reads its weights through functions is copied, averaged, saved and loaded like any other."""

import copy
import io

import pytest
import torch
from siblings import saved_bytes, sibling_at
from torch import nn
from torch.optim.swa_utils import AveragedModel
from torch.testing import assert_close
from toy_networks import CASES, mlp, train

from secateur import build_sibling, learned_thresholds, penalty, prune
from secateur.networks import LeNet300100
from secateur.weights.reading import copied


@pytest.mark.parametrize("case", CASES)
def test_a_deep_copy_after_a_forward_computes_the_same(case):
    make, inputs = CASES[case]
    sibling, x = build_sibling(make()), inputs()
    outputs = sibling(x)
    assert outputs.requires_grad
    assert torch.equal(copy.deepcopy(sibling)(x), outputs)


def test_copies_train_independently():
    sibling, x = build_sibling(mlp()), torch.randn(9, 12)
    twin, started = copy.deepcopy(sibling), copy.deepcopy(sibling.state_dict())
    train(twin, x)
    assert_close(sibling.state_dict(), started, rtol=0, atol=0)
    train(sibling, x)
    assert_close(sibling.state_dict(), twin.state_dict(), rtol=0, atol=0)


@pytest.mark.parametrize("case", CASES)
def test_an_averaged_model_averages_weights_and_thresholds(case):
    make, inputs = CASES[case]
    sibling, x = build_sibling(make()), inputs()
    sibling(x)
    averaged, first = AveragedModel(sibling), copy.deepcopy(sibling)
    averaged.update_parameters(sibling)
    train(sibling, x)
    averaged.update_parameters(sibling)
    for name, mean in averaged.module.named_parameters():
        assert_close(mean, (first.get_parameter(name) + sibling.get_parameter(name)) / 2)
    assert averaged(x).requires_grad


@pytest.mark.parametrize("case", ["mlp", "lstm", "tied"])
def test_two_siblings_of_one_class_do_not_interfere(case):
    make, inputs = CASES[case]
    first, second, x = sibling_at(0.1, make()), sibling_at(0.3, make()), inputs()
    outputs, norm = second(x), penalty(second).item()
    train(first, x)
    first.load_state_dict(prune(first).state_dict())
    assert torch.equal(second(x), outputs)
    assert penalty(second).item() == norm


@pytest.mark.parametrize(
    "make",
    [LeNet300100, lambda: nn.Conv2d(4, 512, 3), lambda: nn.ConvTranspose2d(16, 256, 2), lambda: nn.LSTM(60, 60)],
)
def test_thresholds_add_at_most_five_percent_to_a_checkpoint(make):
    model = make()
    dense = saved_bytes(model)
    assert dense < saved_bytes(build_sibling(model)) <= 1.05 * dense


@pytest.mark.parametrize("case", CASES)
def test_a_plain_checkpoint_loads_into_a_sibling_and_leaves_its_thresholds(case):
    make, inputs = CASES[case]
    plain, sibling = make().eval(), sibling_at(0.2, make()).eval()
    sibling.load_state_dict(plain.state_dict(), strict=True)
    assert {f.threshold.unique().item() for f in learned_thresholds(sibling).values()} == {torch.tensor(0.2).item()}
    x = inputs()
    assert torch.equal(sibling(x), sibling_at(0.2, plain)(x))


def test_a_plain_checkpoint_that_lacks_a_weight_is_refused():
    state = mlp().state_dict()
    del state["2.weight"]
    with pytest.raises(RuntimeError, match="Missing key"):
        build_sibling(mlp()).load_state_dict(state)


@pytest.mark.parametrize("case", CASES)
def test_a_pruned_checkpoint_loads_into_the_plain_class(case):
    make, inputs = CASES[case]
    plain, pruned, x = make().eval(), prune(sibling_at(0.1, make())).eval(), inputs()
    plain.load_state_dict(pruned.state_dict(), strict=True)
    assert torch.equal(plain(x), pruned(x))


@pytest.mark.parametrize("case", CASES)
def test_a_siblings_state_dict_round_trips(case):
    make, inputs = CASES[case]
    sibling, fresh, x = build_sibling(make()), build_sibling(make()), inputs()
    train(sibling, x)
    fresh.load_state_dict(sibling.state_dict(), strict=True)
    assert torch.equal(fresh.eval()(x), sibling.eval()(x))
    assert penalty(fresh).item() == penalty(sibling).item()


def test_torch_refuses_to_pickle_a_sibling_and_says_what_works():
    with pytest.raises(RuntimeError, match="only supported through state_dict"):
        torch.save(build_sibling(mlp()), io.BytesIO())


class Shard(torch.Tensor):
    """Looks like what FSDP2 leaves of a parameter on one rank."""

    def full_tensor(self):
        return self


def test_a_sharded_network_is_refused_with_the_way_to_gather_it():
    model = nn.Linear(2, 2)
    model.weight = nn.Parameter(torch.zeros(2, 2).as_subclass(Shard))
    with pytest.raises(ValueError, match=r'"weight" is a shard of FSDP2: load get_model_state_dict'):
        copied(model)
