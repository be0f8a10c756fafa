"""What the benchmarks measure with; the benchmarks themselves are run on demand."""

import sys
from pathlib import Path

import pytest
import torch
from torch import nn

BENCHMARKS = Path(__file__).parent.parent / "benchmarks"
sys.path.append(str(BENCHMARKS))

from random_sparsity import random_zeros_  # noqa: E402


def network():
    layers = [nn.Conv2d(8, 40, 3), nn.BatchNorm2d(40), nn.Flatten(), nn.Linear(1000, 100)]
    return nn.Sequential(*layers)


@pytest.mark.parametrize("density", [0.0, 0.1, 0.5, 1.0])
def test_random_zeros_leave_the_density_that_was_asked_for(density):
    model = random_zeros_(network(), density)
    for layer in (model[0], model[3]):
        deviation = (density * (1 - density) / layer.weight.numel()) ** 0.5
        found = torch.count_nonzero(layer.weight).item() / layer.weight.numel()
        assert found == pytest.approx(density, abs=4 * deviation + 1e-12)
        assert not (layer.weight == 0).logical_and(layer.weight.signbit()).any()


def test_random_zeros_leave_other_layers_and_biases_alone():
    model = network()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    random_zeros_(model, 0.0, kinds=(nn.Conv2d,))
    changed = [name for name, tensor in model.state_dict().items() if not torch.equal(tensor, before[name])]
    assert changed == ["0.weight"]


def test_random_zeros_are_a_function_of_the_seed_and_nested_by_density():
    def kept(density, seed):
        return random_zeros_(nn.Linear(30, 20), density, seed=seed).weight != 0

    assert torch.equal(kept(0.3, seed=1), kept(0.3, seed=1))
    assert not torch.equal(kept(0.3, seed=1), kept(0.3, seed=2))
    assert not (kept(0.1, seed=1) & ~kept(0.3, seed=1)).any()


def test_random_zeros_take_a_share_only():
    with pytest.raises(ValueError, match="density must lie between 0 and 1, got 10"):
        random_zeros_(network(), 10)
