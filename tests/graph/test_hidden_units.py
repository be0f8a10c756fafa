"""Hidden units may be sorted and dead ones dropped: the function stays, only the file gets smaller."""

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from secateur import networks
from secateur.encode.container import to_bytes
from secateur.graph.hidden_units import hidden_units, with_sorted_units, without_dead_units


def sparse(model, density=0.1, seed=0):
    draw = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                share = (
                    torch.rand(len(parameter), generator=draw).view(-1, *[1] * (parameter.dim() - 1)) ** 3 * 4 * density
                )
                parameter *= torch.rand(parameter.shape, generator=draw) < share
            else:
                parameter.copy_(torch.randn(parameter.shape, generator=draw))
    return model


def names(model):
    by_module = {module: name for name, module in model.named_modules()}
    return [(by_module[units.maker], by_module[units.reader]) for units in hidden_units(model)]


NETWORKS = {
    "lenet-300-100": (networks.build("lenet-300-100", seed=0), (4, 784)),
    "lenet-5": (networks.build("lenet-5", seed=0), (4, 1, 28, 28)),
    "sequential": (
        nn.Sequential(
            nn.Conv2d(3, 8, 3),
            nn.ReLU(),
            nn.Conv2d(8, 6, 3, bias=False),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Linear(24, 5),
        ),
        (4, 3, 8, 8),
    ),
}


@pytest.mark.parametrize("change", [with_sorted_units, without_dead_units])
@pytest.mark.parametrize("name", NETWORKS)
def test_the_function_stays(change, name):
    model, shape = NETWORKS[name]
    model, x = sparse(model), torch.randn(shape)
    changed = change(model)
    assert_close(changed(x), model(x))
    assert type(changed) is type(model)


def test_units_are_found_through_pooling_and_flattening():
    assert names(networks.build("lenet-300-100")) == [("fc1", "fc2"), ("fc2", "fc3")]
    assert names(networks.build("lenet-5")) == [("conv1", "conv2"), ("conv2", "fc3"), ("fc3", "fc4")]


def test_sorted_units_have_fewer_weights_the_later_they_come():
    model = with_sorted_units(sparse(nn.Sequential(nn.Linear(9, 30), nn.ReLU(), nn.Linear(30, 4)), 0.3))
    into, out_of = hidden_units(model)[0].weights_of_each()
    rank = (2 * into + 1) * (2 * out_of + 1)
    assert (rank[:-1] >= rank[1:]).all()


def test_sorted_units_make_a_smaller_file():
    model = sparse(networks.build("lenet-300-100", seed=0), 0.02)
    for parameter in model.parameters():
        parameter.data.sign_()
    assert len(to_bytes(with_sorted_units(model).state_dict())) < 0.99 * len(to_bytes(model.state_dict()))


def test_a_unit_that_no_layer_reads_is_cleared_and_so_are_those_it_alone_reads():
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 2))
    with torch.no_grad():
        model[4].weight[:, 2] = 0
        model[2].weight[:, 1] = 0
        model[2].weight[2, 1] = 1  # the dead unit is the only reader of unit 1
    plain = without_dead_units(model)
    assert not plain[2].weight[2].any()
    assert plain[2].bias[2] == 0
    assert not plain[0].weight[1].any()
    assert plain[0].bias[1] == 0
    assert plain[0].weight[0].any()
    assert model[2].weight[2].any(), "the model itself stays as it is"


class Forked(nn.Module):
    """One layer that two others read, or one that reads itself."""

    def __init__(self, twice):
        super().__init__()
        self.a, self.b, self.twice = nn.Linear(4, 4), nn.Linear(4, 4), twice

    def forward(self, x):
        if self.twice:
            return self.b(self.a(self.a(x)))
        y = self.a(x)
        return self.b(y) + y


class Untraceable(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x):
        return self.b(self.a(x)) if x.sum() > 0 else x


class Decoder(nn.Module):
    """A layer whose weight is read a second time, by hand."""

    def __init__(self):
        super().__init__()
        self.pre, self.enc, self.post = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x):
        return self.post(nn.functional.linear(self.enc(self.pre(x)), self.enc.weight.t()))


def hooked():
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    model[0].register_forward_hook(lambda module, inputs, output: output.cumsum(-1))
    return model


def tied():
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4))
    model[2].weight = model[0].weight
    return model


@pytest.mark.parametrize(
    "model",
    [
        Forked(twice=True),
        Forked(twice=False),
        Untraceable(),
        tied(),
        nn.Sequential(nn.Linear(4, 4), nn.Softmax(-1), nn.Linear(4, 4)),
        nn.Sequential(nn.Conv2d(2, 4, 1, groups=2), nn.Conv2d(4, 2, 1)),
        nn.Sequential(nn.Conv2d(2, 4, 1), nn.Linear(4, 2)),
        nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Conv2d(8, 4, 1)),
        nn.Sequential(nn.Linear(5, 8), nn.MaxPool2d(3, 1, 1), nn.Linear(8, 4)),
        Decoder(),
        hooked(),
        nn.utils.parametrizations.weight_norm(nn.Linear(4, 4)),
    ],
    ids=[
        *("used twice", "read twice", "untraceable", "tied", "softmax", "groups", "pixels"),
        *("rows of pixels", "pooled units", "read by hand", "hook", "weight norm"),
    ],
)
def test_units_that_may_not_move_are_not_found(model):
    assert hidden_units(model) == []
