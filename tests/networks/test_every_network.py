"""What every network in the table has to do; a new one is covered by being listed."""

import copy

import pytest
import torch
from torch import nn

import secateur
from secateur import networks
from secateur.networks import NETWORKS, LeNet5, Network, build, name_of
from secateur.table import Table

every_network = pytest.mark.parametrize("name", NETWORKS)
# Networks that take no time to fill; the others are built without memory.
# More of the blocks of resnet-20, and more filters in the layers of vgg-16-cifar-quarter.
LARGER_TWINS = ("resnet-32", "resnet-56", "vgg-16-cifar", "vgg-16-cifar-half")
small = pytest.mark.parametrize(
    "name",
    [name for name, entry in NETWORKS.items() if entry.input_shape[1] <= 32 and name not in LARGER_TWINS],
)
resizable = pytest.mark.parametrize(
    "name", [name for name, entry in NETWORKS.items() if entry.smallest_size is not None]
)


def on_meta(name: str, **arguments: object) -> nn.Module:
    """Build a network without memory: VGG-16 would take half a gigabyte."""
    with torch.device("meta"):
        return build(name, **arguments)


def uncommon_shape(name: str) -> tuple[int, int, int]:
    """Return a small input shape with another number of channels than any data set has."""
    least = max(NETWORKS[name].smallest_size or 0, 20)
    return (2, least, least + 4)


def answers(model: nn.Module, images: int = 3) -> torch.Tensor:
    return model.eval()(torch.empty(images, *model.input_shape, device="meta"))


@every_network
def test_an_entry_has_its_name_and_a_line_of_help(name):
    entry = NETWORKS[name]
    assert entry.name == name
    assert entry.title
    assert "\n" not in entry.title
    assert entry.takes(entry.input_shape)


@every_network
def test_images_become_one_logit_per_class(name):
    model = on_meta(name)
    assert (model.input_shape, model.classes) == (NETWORKS[name].input_shape, NETWORKS[name].classes)
    assert answers(model).shape == (3, model.classes)


@every_network
def test_a_class_called_without_arguments_builds_the_usual_network(name):
    with torch.device("meta"):
        usual, built = NETWORKS[name].build(), build(name)
    assert name_of(usual) == (name, {})
    assert {key: value.shape for key, value in usual.state_dict().items()} == {
        key: value.shape for key, value in built.state_dict().items()
    }


@every_network
def test_another_number_of_classes_changes_the_last_layer_only(name):
    usual, other = on_meta(name).state_dict(), on_meta(name, classes=7)
    assert answers(other).shape == (3, 7)
    assert name_of(other) == (name, {"classes": 7})
    changed = [key for key, value in other.state_dict().items() if value.shape != usual[key].shape]
    assert changed == list(usual)[-2:]


@resizable
@pytest.mark.parametrize(("channels", "more"), [(1, (0, 0)), (2, (1, 0)), (3, (5, 20))])
def test_images_of_other_shapes_are_taken(name, channels, more):
    least = NETWORKS[name].smallest_size
    shape = (channels, least + more[0], least + more[1])
    model = on_meta(name, input_shape=shape, classes=4)
    assert answers(model).shape == (3, 4)
    assert name_of(model) == (name, {"classes": 4, "input_shape": shape})


@every_network
def test_the_arguments_of_a_network_build_it_again(name):
    entry = NETWORKS[name]
    shape = (
        list(entry.input_shape)
        if entry.smallest_size is None
        else [2, entry.smallest_size, max(entry.smallest_size, 40)]
    )
    model = on_meta(name, classes=3, input_shape=shape)
    found, arguments = name_of(model)
    again = on_meta(found, **arguments)
    assert name_of(again) == (found, arguments)
    assert [value.shape for value in again.state_dict().values()] == [
        value.shape for value in model.state_dict().values()
    ]


@every_network
@pytest.mark.parametrize("shape", [(0, 64, 64), (3, 0, 64), (3, 64), (3, 64, 64, 1), (3, -64, 64)])
def test_a_shape_that_is_none_of_an_image_is_refused(name, shape):
    with pytest.raises(ValueError, match=rf"^{name} takes images .*, got \({shape[0]}, "):
        on_meta(name, input_shape=shape)


@every_network
def test_images_that_are_too_small_are_refused(name):
    least = NETWORKS[name].smallest_size
    size = 100 if least is None else least - 1
    expected = r"of shape \(3, 227, 227\) only" if least is None else f"of at least {least}×{least} pixels"
    with pytest.raises(ValueError, match=rf"^{name} takes images .*{expected}, got \(3, {size}, 300\)"):
        on_meta(name, input_shape=(3, size, 300))


@every_network
def test_less_than_one_class_is_refused(name):
    with pytest.raises(ValueError, match=f"{name}: classes must be ≥ 1, got 0"):
        on_meta(name, classes=0)


@small
@pytest.mark.parametrize("arguments", [{}, {"classes": 3, "input_shape": (3, 32, 32)}])
def test_a_seed_determines_the_weights(name, arguments):
    first, again, other = (build(name, seed, **arguments).state_dict() for seed in (1, 1, 2))
    assert all(torch.equal(first[key], again[key]) for key in first)
    weights = [key for key in first if key.endswith("weight") and first[key].dim() > 1]
    assert not any(torch.equal(first[key], other[key]) for key in weights)


@small
def test_a_seeded_build_leaves_the_global_generator_alone(name):
    before = torch.get_rng_state()
    build(name, seed=1)
    assert torch.equal(torch.get_rng_state(), before)


@small
def test_without_a_seed_the_global_generator_decides(name):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        model, other = build(name), build(name)
        torch.manual_seed(3)
        again = build(name)
    key = next(iter(model.state_dict()))
    assert torch.equal(model.state_dict()[key], again.state_dict()[key])
    assert not torch.equal(model.state_dict()[key], other.state_dict()[key])


@small
def test_copies_know_their_classes_and_shape(name):
    model = copy.deepcopy(build(name, seed=0, classes=3, input_shape=uncommon_shape(name)))
    assert (model.classes, model.input_shape) == (3, uncommon_shape(name))


@small
def test_a_file_of_a_network_with_other_arguments_fills_another_of_its_kind(name, tmp_path):
    arguments = {"classes": 3, "input_shape": uncommon_shape(name)}
    model, other = (build(name, seed=seed, **arguments) for seed in (0, 1))
    secateur.save(model, tmp_path / "model.cut")
    secateur.load(tmp_path / "model.cut", other)
    assert all(torch.equal(value, other.state_dict()[key]) for key, value in model.state_dict().items())


PLUGIN = """
from torch import nn
from secateur.networks import Network

class Perceptron(nn.Sequential):
    def __init__(self, classes, input_shape):
        super().__init__(nn.Flatten(), nn.Linear(input_shape[1] * input_shape[2], classes))
        self.classes, self.input_shape = classes, input_shape

ENTRY = Network(
    name="perceptron", title="one layer", build=Perceptron, input_shape=(1, 4, 4), classes=2, smallest_size=1
)
"""


def test_another_package_registers_a_network(tmp_path, monkeypatch):
    (tmp_path / "plugged.py").write_text(PLUGIN)
    (tmp_path / "plugged-1.0.dist-info").mkdir()
    (tmp_path / "plugged-1.0.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: plugged\nVersion: 1.0\n")
    points = "[secateur.networks]\nperceptron = plugged:ENTRY\nbroken = plugged:NOTHING\n"
    (tmp_path / "plugged-1.0.dist-info" / "entry_points.txt").write_text(points)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(networks, "NETWORKS", Table("network", "secateur.networks", Network, NETWORKS.values()))
    with pytest.warns(UserWarning, match="^the network broken that plugged registers as plugged:NOTHING is skipped"):
        assert networks.names()[-1] == "perceptron"
    assert name_of(build("perceptron", seed=0, classes=5)) == ("perceptron", {"classes": 5})


def test_names_are_those_of_the_table():
    assert networks.names()[:5] == ("lenet-300-100", "lenet-5", "alexnet", "vgg-16", "resnet-50")
    assert networks.names() == tuple(networks.NETWORKS)


def test_a_subclass_and_a_stranger_have_no_name():
    class Mine(LeNet5):
        pass

    assert name_of(Mine()) is None
    assert name_of(nn.Linear(2, 3)) is None


def test_an_unknown_name_is_answered_with_the_nearest():
    with pytest.raises(ValueError, match=r'no network "lenet5": did you mean "lenet-5"\?'):
        build("lenet5")
    with pytest.raises(ValueError, match="one of lenet-300-100, lenet-5, alexnet, vgg-16, resnet-50"):
        build("mlp")
