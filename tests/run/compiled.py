"""What tests of compiled networks have in common; the fixtures are in conftest.py."""

import pytest
import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from secateur.run import SparseChain, timing


def sparsened(model: nn.Module, density: float = 0.3) -> nn.Module:
    """Set most weights to zero, and give batch norms something to do."""
    for module in model.modules():
        for parameter in module.parameters(recurse=False):
            if parameter.dim() > 1:
                parameter.data *= torch.rand(parameter.shape) < density
            elif "Norm" in type(module).__name__:
                parameter.data = torch.randn(parameter.shape).to(parameter.dtype)
        if isinstance(getattr(module, "running_mean", None), Tensor):
            module.running_mean.copy_(torch.randn(module.num_features))
            module.running_var.copy_(torch.rand(module.num_features) + 0.5)
    return model


def decide(monkeypatch: pytest.MonkeyPatch, sparse: float, *, prefer_last: bool = False) -> None:
    """Let the first of all calls, the dense one, take 1 ms, and the others about `sparse`."""

    def race(calls, **_):
        rest = [sparse * (1 + 0.01 * (-k if prefer_last else k)) for k in range(len(calls) - 1)]
        for call in calls:
            call()
        return [1.0, *rest]

    monkeypatch.setattr(timing, "race", race)


def assert_same(found: object, wanted: object) -> None:
    """Outputs of the same structure, to 1e-4 of the largest."""
    own, other = pytree.tree_flatten(found), pytree.tree_flatten(wanted)
    assert own[1] == other[1]
    for one, two in zip(own[0], other[0], strict=True):
        if isinstance(two, Tensor) and two.is_floating_point():
            assert one.shape == two.shape
            finite = two[two.isfinite()]
            most = float(finite.abs().max()) if finite.numel() else 0.0
            torch.testing.assert_close(one, two, rtol=0, atol=1e-4 * most, equal_nan=True)
        elif isinstance(two, Tensor):
            assert torch.equal(one, two)
        else:
            assert one == two


def chains(model: nn.Module) -> list[SparseChain]:
    return [module for module in model.modules() if isinstance(module, SparseChain)]
