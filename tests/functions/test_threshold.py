"""A learned threshold reads its weight as it is, and leaves for the penalty only what is still valid."""

import copy

import pytest
import torch
from torch import nn
from torch.testing import assert_close
from toy_networks import mlp

from secateur import build_sibling, native, parameter_groups, penalty, theta


def gradients(sibling, inputs):
    sibling.zero_grad()
    (sibling(inputs).square().mean() + penalty(sibling, 0.1)).backward()
    return {name: parameter.grad for name, parameter in sibling.named_parameters()}


def test_every_forward_reads_the_weights_as_they_are():
    sibling, x = build_sibling(mlp()), torch.randn(2, 12)
    before = sibling(x)
    with torch.no_grad():
        sibling[0].parametrizations.weight.original.data.mul_(2)  # unseen by the version counter
    fresh = copy.deepcopy(sibling)
    assert not torch.equal(sibling(x), before)
    assert torch.equal(sibling(x), fresh(x))


def test_a_layer_that_is_called_by_itself_reads_its_weights_as_they_are():
    sibling, x = build_sibling(mlp()), torch.randn(2, 12)
    sibling(x)
    chain = sibling[0].parametrizations.weight
    chain.original.data.mul_(2)
    assert_close(sibling[0].weight, theta(chain.original, chain[0].threshold, chain[0].alpha))


def test_a_forward_that_fails_leaves_nothing_behind():
    sibling = build_sibling(mlp())
    with pytest.raises(RuntimeError, match="mat1 and mat2"):
        sibling(torch.randn(2, 5))
    chain = sibling[0].parametrizations.weight
    chain.original.data.mul_(2)
    assert_close(sibling[0].weight, theta(chain.original, chain[0].threshold, chain[0].alpha))


def test_a_layer_that_replaces_another_is_read_and_penalised():
    sibling, x = build_sibling(mlp()), torch.randn(2, 12)
    sibling(x)
    new = build_sibling(nn.Sequential(nn.Linear(12, sibling[0].out_features)))[0]
    sibling[0] = new
    (sibling(x).sum() + penalty(sibling)).backward()
    assert new.parametrizations.weight[0].threshold.grad is not None
    expected = sum(layer.weight.abs().sum().item() for layer in (new, sibling[2]))
    sibling(x)
    assert penalty(sibling, 1.0).item() == pytest.approx(expected, rel=1e-5)


def test_the_penalty_of_a_part_is_that_of_the_part():
    sibling = build_sibling(mlp())
    sibling(torch.randn(2, 12))
    assert penalty(sibling[0], 1.0).item() == pytest.approx(sibling[0].weight.abs().sum().item(), rel=1e-5)


def test_the_gradient_of_one_layer_leaves_the_others_without():
    sibling = build_sibling(mlp())
    hidden = sibling[0]
    sibling.register_forward_hook(lambda module, inputs, outputs: hidden(*inputs))
    sibling(torch.randn(2, 12)).sum().backward()
    unused = sibling[2].parametrizations.weight
    assert sibling[0].parametrizations.weight.original.grad is not None
    assert unused.original.grad is None
    assert unused[0].threshold.grad is None


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["native", "torch"])
def test_loss_and_penalty_may_go_backward_one_after_the_other(dtype):
    sibling, x = build_sibling(mlp()).to(dtype), torch.randn(2, 12, dtype=dtype)
    expected = {name: gradient.clone() for name, gradient in gradients(sibling, x).items()}
    sibling.zero_grad()
    loss, norm = sibling(x).square().mean(), penalty(sibling, 0.1)
    norm.backward()
    loss.backward()
    for name, parameter in sibling.named_parameters():
        assert_close(parameter.grad, expected[name])
    sibling.zero_grad()
    sibling(x).square().mean().backward()
    penalty(sibling, 0.1).backward()
    for name, parameter in sibling.named_parameters():
        assert_close(parameter.grad, expected[name])


@pytest.mark.parametrize("compiles", [False, True])
@pytest.mark.parametrize("fused", [False, True])
def test_the_penalty_may_come_before_the_forward(fused, compiles):
    x, seen = torch.randn(8, 12), {}
    for first in (False, True):
        torch.manual_seed(0)
        sibling = build_sibling(mlp())
        network = torch.compile(sibling, backend="aot_eager") if compiles else sibling
        optimizer = torch.optim.Adam(parameter_groups(sibling, lr=1e-2), fused=fused)
        seen[first] = []
        for _ in range(3):
            before = penalty(sibling) if first else None
            loss = network(x).square().mean()
            norm = penalty(sibling) if before is None else before
            (loss + norm).backward()
            optimizer.step()
            optimizer.zero_grad()
            seen[first].append(norm.item())
    assert seen[True] == pytest.approx(seen[False], rel=1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["native", "torch"])
def test_a_weight_changed_between_forward_and_backward_is_refused(dtype):
    sibling = build_sibling(mlp()).to(dtype)
    loss = sibling(torch.randn(2, 12, dtype=dtype)).sum()
    with torch.no_grad():
        sibling[0].parametrizations.weight.original.add_(1)
    with pytest.raises(RuntimeError, match="changed in place"):
        loss.backward()


@pytest.mark.skipif(not native.is_available(), reason="the native library was not built")
def test_weights_whose_memory_was_given_back_are_not_read():
    sibling = build_sibling(mlp())
    sibling(torch.randn(2, 12))
    sibling[0].parametrizations.weight.original.untyped_storage().resize_(0)  # as a sharding wrapper does
    with pytest.raises(RuntimeError, match="add the penalty to the loss"):
        penalty(sibling).backward()
