import pytest
import torch
from torch import nn

from secateur.models import MODELS, LeNet5, LeNet300100, build

everyone = pytest.mark.parametrize("name", MODELS)


@everyone
def test_a_seed_determines_the_weights(name):
    first, again, other = (build(name, seed).state_dict() for seed in (1, 1, 2))
    assert all(torch.equal(first[key], again[key]) for key in first)
    assert not any(torch.equal(first[key], other[key]) for key in first if key.endswith("weight"))


@everyone
def test_a_seeded_build_leaves_the_global_generator_alone(name):
    before = torch.get_rng_state()
    build(name, seed=1)
    assert torch.equal(torch.get_rng_state(), before)


@everyone
def test_without_a_seed_the_global_generator_decides(name):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        model, other = build(name), build(name)
        torch.manual_seed(3)
        again = build(name)
    key = next(iter(model.state_dict()))
    assert torch.equal(model.state_dict()[key], again.state_dict()[key])
    assert not torch.equal(model.state_dict()[key], other.state_dict()[key])


@everyone
def test_images_become_one_logit_per_class(name):
    model = build(name, seed=0)
    assert model(torch.rand(3, *model.input_shape)).shape == (3, model.classes)


@everyone
def test_weights_fill_glorots_interval_and_biases_are_zero(name):
    for layer in build(name, seed=0).children():
        fan_in, fan_out = layer.weight[0].numel(), layer.weight[:, 0].numel()
        limit = (6 / (fan_in + fan_out)) ** 0.5
        assert 0.95 * limit < layer.weight.abs().max() <= limit
        assert not layer.bias.any()


def layer_weights(model: nn.Module) -> dict[str, int]:
    return {name: layer.get_parameter("weight").numel() for name, layer in model.named_children()}


def test_lenet_300_100_has_the_layers_of_table_2():
    assert layer_weights(LeNet300100()) == {"fc1": 235_200, "fc2": 30_000, "fc3": 1_000}


def test_lenet_5_has_the_layers_of_table_2():
    assert layer_weights(LeNet5()) == {"conv1": 500, "conv2": 25_000, "fc3": 400_000, "fc4": 5_000}


def test_lenet_5_has_nothing_but_pooling_after_its_convolutions():
    model = build("lenet-5", seed=0)
    x = torch.randn(2, 1, 28, 28)
    pool = nn.MaxPool2d(2)
    layers = [model.conv1, pool, model.conv2, pool, nn.Flatten(), model.fc3, nn.ReLU(), model.fc4]
    torch.testing.assert_close(model(x), nn.Sequential(*layers)(x))


def test_an_unknown_name_is_answered_with_the_nearest():
    with pytest.raises(ValueError, match=r'no network "lenet5": did you mean "lenet-5"\?'):
        build("lenet5")
    with pytest.raises(ValueError, match="one of lenet-300-100, lenet-5"):
        build("vgg")
