"""Networks of other packages: what is imported, what they are given, and what is refused in one sentence."""

import re
import sys

import pytest
import torch
from torch import nn
from torch.testing import assert_close

import secateur
from secateur import networks
from secateur.networks import NetworkError, is_import_path, modules_of
from secateur.networks.imported import hints_of, is_trusted, run_once, shape_of

MODULE = '''
import subprocess
import sys
from functools import partial
from pathlib import Path
from subprocess import run

import torch
from torch import nn
from torch.nn import Linear

Path(__file__).with_name("imported").touch()


def linear(inputs, outputs):
    return nn.Sequential(nn.Flatten(), nn.Linear(inputs, outputs))


def cnn(classes=2):
    return nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.LazyLinear(classes))


def sized(num_classes, input_shape):
    channels, height, width = input_shape
    return linear(channels * height * width, num_classes)


class Net(nn.Module):
    input_shape = (1, 4, 4)

    def __init__(self, width=3):
        super().__init__()
        self.body = linear(16, width)

    def forward(self, x):
        return self.body(x)


class Functional(nn.Module):
    """Reads the weight of a layer that it never calls."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(16, 3)

    def forward(self, x):
        return nn.functional.linear(x.flatten(1), self.layer.weight)


class Both(Functional):
    """Calls a layer, and reads its weight elsewhere."""

    def forward(self, x):
        return self.layer(x.flatten(1)) + nn.functional.linear(x.flatten(1), self.layer.weight)


class Branching(nn.Module):
    """Cannot be traced."""

    def __init__(self):
        super().__init__()
        self.body = linear(16, 3)

    def forward(self, x):
        return self.body(x if x.sum() > 0 else -x)


def twice():
    shared = nn.Linear(16, 16)
    return nn.Sequential(nn.Flatten(), shared, nn.ReLU(), shared)


def frozen():
    model = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.Dropout(), nn.Flatten(), nn.LazyLinear(2))
    model[1].eval()
    return model


instance, number, bound = linear(16, 2), 3, partial(run, "false")


def needs_width(width):
    return linear(16, width)


def raises():
    raise KeyError("weights")


def leaves():
    sys.exit(3)


def no_network():
    return [nn.Linear(2, 2)]


def one_class():
    return linear(16, 1)


def pair():
    class Pair(nn.Module):
        def forward(self, x):
            return x, x

    return Pair()
'''


@pytest.fixture(autouse=True)
def mine(tmp_path, monkeypatch):
    """A module that leaves a file when it is imported; a package with another one; one that fails."""
    (tmp_path / "mine.py").write_text(MODULE)
    (tmp_path / "mypackage").mkdir()
    (tmp_path / "mypackage" / "__init__.py").write_text("from mypackage.nets import cnn")
    (tmp_path / "mypackage" / "nets.py").write_text("from mine import Net\n\n\ndef cnn():\n    return Net()\n")
    (tmp_path / "broken.py").write_text("1 / 0")
    (tmp_path / "needy.py").write_text("import a_package_that_is_missing")
    (tmp_path / "leaving.py").write_text("raise SystemExit(3)")
    monkeypatch.syspath_prepend(tmp_path)
    yield tmp_path / "imported"
    for name in ("mine", "mypackage", "mypackage.nets"):
        sys.modules.pop(name, None)


def build(name, **settings):
    return networks.build(name, trust=modules_of(name), **settings)


@pytest.mark.parametrize("name", ["mine:cnn", "package.module:Class", "a.b.c:_d1", "größe:netz"])
def test_an_import_path_is_a_module_and_a_name(name):
    assert is_import_path(name)
    assert modules_of(name) == (name.split(":")[0],)


@pytest.mark.parametrize(
    "name",
    ["lenet-5", "mine", "mine:", ":cnn", "mine:a.b", "mine:a:b", "a..b:c", "a/b:c", "a-b:c", "here:80", "a :b", ""],
)
def test_other_names_are_not(name):
    assert not is_import_path(name)
    assert modules_of(name) == ()


def test_a_package_vouches_for_its_modules_and_for_nothing_else():
    assert is_trusted("mine", ["mine"])
    assert is_trusted("mine.nets.small", ["other", "mine"])
    assert not is_trusted("mine", [])
    assert not is_trusted("mineral", ["mine"])
    assert not is_trusted("mine", ["mine.nets"])


def test_a_text_or_an_import_path_is_no_list_of_modules():
    with pytest.raises(TypeError, match=r'trust takes several names of modules, got a text: write \["mine"\]'):
        is_trusted("mine", "mine")
    with pytest.raises(ValueError, match=r'names of modules such as .* got "mine:cnn"'):
        is_trusted("mine", ["mine:cnn"])


def test_nothing_is_imported_unless_it_is_trusted(mine):
    with pytest.raises(NetworkError, match=r'^mine:cnn is not one of .* nothing was imported: .* trust=\["mine"\]'):
        networks.build("mine:cnn", trust=["mypackage", "torch"])
    assert not mine.exists()
    networks.build("mine:Net", trust=["mine"])
    assert mine.exists()


def test_a_module_of_a_trusted_package_is_imported():
    assert shape_of(networks.build("mypackage.nets:cnn", trust=["mypackage"])) == (1, 4, 4)
    assert shape_of(networks.build("mypackage:cnn", trust=["mypackage"])) == (1, 4, 4)


def test_weights_are_a_function_of_the_seed_and_the_global_generator_is_left_alone():
    before = torch.get_rng_state()
    first, again, other = (build("mine:Net", seed=seed).body[1].weight for seed in (3, 3, 4))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert torch.equal(torch.get_rng_state(), before)


def test_lazy_weights_are_a_function_of_the_seed_too():
    first, again = (build("mine:cnn", seed=3, input_shape=(1, 6, 6)) for _ in range(2))
    assert torch.equal(first[3].weight, again[3].weight)
    assert first[3].weight.shape == (2, 4 * 36)


def test_a_network_is_given_the_sizes_that_it_has_parameters_for():
    assert build("mine:cnn", classes=5, input_shape=(1, 6, 6))[3].out_features == 5
    assert build("mine:sized", classes=5, input_shape=(2, 3, 4))[1].weight.shape == (5, 24)
    assert build("mine:Net", classes=3).body[1].weight.shape == (3, 16)


def test_running_a_network_once_leaves_its_modes_alone():
    model = build("mine:frozen", input_shape=(1, 5, 5))
    assert [module.training for module in model] == [True, False, True, True, True]
    assert run_once(model, (1, 5, 5)).shape == (2, 2)
    assert [module.training for module in model] == [True, False, True, True, True]
    assert not model[1].num_batches_tracked


@pytest.mark.parametrize(
    ("name", "hints"), [("Net", ((1, 4, 4), 3)), ("cnn", (None, 1)), ("twice", (None, 3)), ("sized", (None, 3))]
)
def test_a_network_says_its_input_shape_or_the_channels_of_its_first_convolution(name, hints):
    assert hints_of(f"mine:{name}", ["mine"], classes=2) == hints


@pytest.mark.parametrize(
    ("name", "sizes", "said"),
    [
        ("nowhere:cnn", {}, 'nowhere:cnn: there is no module "nowhere" here: install it'),
        ("mine.nets:cnn", {}, 'mine.nets:cnn: there is no module "mine.nets" here|is not a package'),
        ("broken:cnn", {}, "broken:cnn: its module cannot be imported: ZeroDivisionError: division by zero"),
        ("needy:cnn", {}, "cannot be imported: ModuleNotFoundError: No module named 'a_package_that_is_missing'"),
        ("leaving:cnn", {}, "leaving:cnn: its module cannot be imported: SystemExit: 3"),
        ("mine:cn", {}, 'there is no "cn" in the module mine: did you mean "cnn"?'),
        ("mine:instance", {}, "mine:instance is a network, not a function or class that builds one"),
        ("mine:number", {}, "mine:number is of type int, not a function or class that builds a network"),
        ("mine:run", {}, "mine:run is defined in subprocess, which is not trusted, and was not called"),
        ("mine:bound", {}, "mine:bound is defined in subprocess, which is not trusted, and was not called"),
        ("mine:needs_width", {}, "mine:needs_width cannot be called with no arguments: missing a required argument"),
        ("mine:raises", {}, "mine:raises, called with no arguments, failed: KeyError: 'weights'"),
        ("mine:leaves", {}, "mine:leaves, called with no arguments, failed: SystemExit: 3"),
        ("mine:no_network", {}, "mine:no_network returned an object of type list, not a torch.nn.Module"),
        ("mine:sized", {}, "mine:sized needs num_classes: add --classes"),
        ("mine:sized", {"classes": 2}, "mine:sized needs input_shape: add --input-shape"),
        ("mine:cnn", {}, 'mine:cnn: "3.weight" has no shape before the first input: add --input-shape'),
        (
            "mine:Net",
            {"input_shape": (3, 4, 4)},
            "mine:Net does not run on images of 3×4×4 ",
        ),
        ("mine:Net", {"input_shape": (4, 4)}, "mine:Net: input_shape must be channels, height and width"),
        ("mine:Net", {"classes": 10}, r"shape \(2, 3\) for two images of 1×4×4, and the data has 10 classes"),
        ("mine:one_class", {"classes": 2, "input_shape": (1, 4, 4)}, r"of shape \(2, 1\) .* it must be \(2, 2\)"),
        ("mine:pair", {"classes": 2, "input_shape": (1, 4, 4)}, "mine:pair returns an object of type tuple for images"),
    ],
)
def test_what_cannot_be_built_is_refused_in_one_sentence(name, sizes, said):
    with pytest.raises(ValueError, match=said) as refused:
        build(name, **sizes)
    assert re.fullmatch(r"[^\n]+", str(refused.value))


# Files that name them


def saved(tmp_path, name, **settings):
    """A sparse network of the module in a file that names it."""
    path, model = tmp_path / "model.cut", build(f"mine:{name}", seed=1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.masked_fill_(torch.rand(parameter.shape) > 0.3, 0.0)
    secateur.save(model, path, architecture=(f"mine:{name}", {}), metadata={"input_shape": "1 4 4"}, **settings)
    sys.modules.pop("mine")
    (tmp_path / "imported").unlink()
    return path, model.eval()


def test_reading_a_file_imports_nothing_unless_it_is_trusted(tmp_path, mine):
    path, model = saved(tmp_path, "Net")
    x = torch.rand(2, 1, 4, 4)
    for read in (secateur.load, secateur.load_sparse, lambda path: secateur.compile_sparse(path, x)):
        with pytest.raises(NetworkError, match=r"model.cut names mine:Net, which .* nothing was imported"):
            read(path)
    assert not mine.exists()
    assert torch.equal(secateur.load(path, trust=["mine"])(x), model(x))


@pytest.mark.parametrize("name", ["Net", "Both", "Functional", "Branching", "twice"])
@pytest.mark.parametrize("batch", [1, 8])
def test_a_sparse_network_computes_the_same_whatever_its_forward_does(tmp_path, name, batch):
    path, model = saved(tmp_path, name)
    x = torch.randn(batch, 1, 4, 4)
    network = secateur.load_sparse(path, batch=batch, trust=["mine"])
    assert_close(network(x), model(x), rtol=1e-4, atol=1e-5)
    assert hasattr(network, "plan") or name != "Net"


def test_a_lazy_network_comes_back_from_its_file(tmp_path):
    path, model = tmp_path / "model.cut", build("mine:cnn", seed=1, input_shape=(1, 6, 6))
    secateur.save(model, path, architecture=("mine:cnn", {"classes": 2}), metadata={"input_shape": "1 6 6"})
    x = torch.rand(2, 1, 6, 6)
    assert torch.equal(secateur.load(path, trust=["mine"])(x), model(x))


def test_an_input_shape_in_a_file_is_given_as_a_tuple(tmp_path):
    (tmp_path / "strict.py").write_text(
        "def net(input_shape):\n    assert input_shape == (1, 4, 4)\n    import mine\n    return mine.Net()\n"
    )
    path = tmp_path / "model.cut"
    secateur.save(build("mine:Net"), path, architecture=("strict:net", {"input_shape": [1, 4, 4]}))
    assert isinstance(secateur.load(path, trust=["strict"]), nn.Module)
    sys.modules.pop("strict")


@pytest.mark.parametrize(
    ("path", "arguments", "said"),
    [
        ("mine:run", {"args": ["touch", "ran"]}, "mine:run is defined in subprocess, which is not trusted"),
        ("mine:no_network", {}, "returned an object of type list"),
        ("mine:Net", {"depth": 3}, "mine:Net cannot be called with depth=3"),
        ("mine:Net", {"width": 4}, "it belongs to another network"),
        ("nowhere:Net", {}, 'there is no module "nowhere" here'),
        ("mine:nothing", {}, 'there is no "nothing" in the module mine'),
    ],
)
def test_a_hostile_or_a_mistaken_file_is_refused_in_one_sentence(tmp_path, monkeypatch, path, arguments, said):
    monkeypatch.chdir(tmp_path)
    secateur.save(build("mine:Net"), "model.cut", architecture=(path, arguments))
    with pytest.raises(ValueError, match=said) as refused:
        secateur.load("model.cut", trust=["mine", "nowhere"])
    assert "model.cut" in str(refused.value)
    assert "\n" not in str(refused.value)
    assert not (tmp_path / "ran").exists()


def test_a_file_with_a_name_that_is_no_import_path_is_refused(tmp_path):
    content = secateur.encode.to_bytes({}, architecture=secateur.encode.Architecture("os.system('x')", {}))
    (tmp_path / "model.cut").write_bytes(content)
    with pytest.raises(NetworkError, match=r'called "package.module:callable", .* names "os.system'):
        secateur.load(tmp_path / "model.cut", trust=["os"])
