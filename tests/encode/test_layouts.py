"""The layouts of our networks are frozen: files written with them stay readable whatever becomes of the code."""

import pytest
import torch
from torch import nn

import secateur
from secateur import networks
from secateur.encode.layouts import layout_of, layouts


@pytest.mark.parametrize("network", layouts())
def test_a_network_still_has_the_tensors_of_its_layout(network):
    with torch.device("meta"):
        state = networks.build(network, seed=0).state_dict()
    assert layout_of(network) == tuple((name, tensor.dtype, tuple(tensor.shape)) for name, tensor in state.items())


class Renamed(nn.Module):
    """LeNet-300-100 after its layers got other names."""

    input_shape, classes = (1, 28, 28), 10

    def __init__(self, classes=10, input_shape=(1, 28, 28)):
        super().__init__()
        self.first, self.second, self.third = nn.Linear(784, 300), nn.Linear(300, 100), nn.Linear(100, 10)


def entry(name):
    return networks.Network(
        name=name,
        title="renamed",
        build=Renamed,
        input_shape=Renamed.input_shape,
        classes=Renamed.classes,
        smallest_size=None,
    )


def test_a_file_keeps_its_tensors_when_its_network_is_renamed(tmp_path, monkeypatch):
    path = tmp_path / "model.cut"
    model = networks.build("lenet-300-100", seed=0)
    secateur.save(model, path)
    monkeypatch.setitem(networks.NETWORKS, "lenet-300-100", entry("lenet-300-100"))
    state = secateur.load_state(path)
    assert all(torch.equal(state[name], tensor) for name, tensor in model.state_dict().items())
    with pytest.raises(ValueError, match=r'does not hold "first.weight", which Renamed has'):
        secateur.load(path)


def test_a_network_without_a_layout_is_stored_with_its_names(tmp_path, monkeypatch):
    path = tmp_path / "model.cut"
    monkeypatch.setitem(networks.NETWORKS, "renamed", entry("renamed"))
    model = Renamed()
    secateur.save(model, path)
    again = secateur.load(path)
    assert type(again) is Renamed
    assert all(torch.equal(again.state_dict()[name], tensor) for name, tensor in model.state_dict().items())
