"""The model of EIE: entries and fillers by hand, queues, and the times that the paper publishes."""

import json

import pytest
import torch

import secateur
from secateur import networks
from secateur.run.bench.eie import ELEMENTS, LayerCycles, layer_cycles


def test_a_column_takes_an_element_a_cycle_for_each_entry_and_rows_are_dealt_out():
    weight = torch.zeros(128, 3)
    weight[0, 0] = weight[64, 0] = weight[1, 0] = 1.0  # rows 0 and 64 belong to element 0
    weight[5, 2] = 2.0  # a column whose activation is zero is skipped
    found = layer_cycles(weight, torch.tensor([1.0, 1.0, 0.0]))
    assert (found.entries, found.fillers, found.values) == (3, 0, 2)
    assert found.cycles == 1 + 2  # the broadcast, and the two entries of element 0; the second column has none
    assert found.theoretical_cycles == 3 / ELEMENTS
    assert sum(found.energy_nj.values()) == pytest.approx(9.158 * 64 * 3 / 800)


@pytest.mark.parametrize(("zeros", "fillers"), [(15, 0), (16, 1), (31, 1), (32, 2)])
def test_more_than_fifteen_zeros_take_a_filler(zeros, fillers):
    weight = torch.zeros(40, 1)
    weight[zeros] = 1.0
    assert layer_cycles(weight, torch.ones(1), elements=1).fillers == fillers


def test_a_full_queue_stops_the_broadcast():
    weight = torch.zeros(2, 16)
    weight[0, ::2], weight[1, 1::2] = 1.0, 1.0  # each of two elements has work in every other column
    assert layer_cycles(weight, torch.ones(16), elements=2, depth=1).cycles == 1 + 16
    busy = torch.ones(16, 40)  # eight entries of each column for both elements
    assert layer_cycles(busy, torch.ones(40), elements=2).cycles == 1 + 8 * 40


# Inputs, outputs, densities of weights and activations (table III), actual time in µs (table IV).
@pytest.mark.parametrize(
    ("inputs", "outputs", "weights", "activations", "time_us"),
    [
        pytest.param(9216, 4096, 0.09, 0.351, 30.3, id="AlexNet-fc6"),
        pytest.param(4096, 4096, 0.09, 0.353, 12.2, id="AlexNet-fc7"),
        pytest.param(4096, 4096, 0.04, 0.375, 8.7, id="VGG-fc7"),
        pytest.param(4096, 1000, 0.23, 0.411, 8.4, id="VGG-fc8"),
    ],
)
def test_random_places_at_published_densities_take_the_published_time(inputs, outputs, weights, activations, time_us):
    draw = torch.Generator().manual_seed(0)
    active = (torch.rand(inputs, generator=draw) < activations).nonzero().squeeze(1)
    weight = (torch.rand(outputs, len(active), generator=draw) < weights).float()  # what is skipped needs no weights
    found: LayerCycles = layer_cycles(weight, torch.ones(len(active)))
    assert found.time_us == pytest.approx(time_us, rel=0.1)


def test_the_command_shows_every_linear_layer(command, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    secateur.save(networks.build("lenet-300-100", seed=0), "model.cut", codec="raw")
    code, printed, _ = command("bench", "model.cut", "--hardware", "eie", "--json")
    layers = json.loads(printed)["layers"]
    assert (code, [layer["name"] for layer in layers]) == (0, ["fc1", "fc2", "fc3"])
    assert layers[0]["entries"] == 784 * 300
    code, printed, _ = command("bench", "model.cut", "--hardware", "eie")
    assert "More than 15 values in fc1, fc2, fc3" in " ".join(printed.split())
