"""Weights to start from: read from any kind of file, copied whole, and refused if they are of another network."""

import hashlib

import pytest
import safetensors.torch
import torch

import secateur
from secateur import networks
from secateur.data import DataError, Scaling
from secateur.data.files import DataFile
from secateur.networks.preprocessing import Preprocessing
from secateur.pretrained import PRETRAINED, Pretrained, Start, read_start, require_start

LENET = networks.build("lenet-300-100", seed=1)
STATE = LENET.state_dict()


def of(state, **settings):
    return Start("some.safetensors", state, **settings)


def equal(model, state, names):
    return all(torch.equal(model.state_dict()[name], state[name]) for name in names)


def test_a_network_of_the_same_kind_gets_every_tensor():
    model = networks.build("lenet-300-100", seed=2)
    start = of(STATE)
    assert start.left_random(model) == ()
    start.fill(model)
    assert equal(model, STATE, STATE)


def test_a_classifier_of_other_classes_stays_random_and_all_else_is_filled():
    model = networks.build("lenet-300-100", seed=2, classes=7)
    before = model.fc3.weight.detach().clone()
    start = of(STATE)
    assert start.left_random(model) == ("fc3.weight", "fc3.bias")
    start.fill(model)
    assert equal(model, STATE, list(STATE)[:-2])
    assert torch.equal(model.fc3.weight, before)


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        (lambda state: {k: v for k, v in state.items() if k != "fc2.bias"}, r'it lacks "fc2\.bias"$'),
        (lambda state: {k: v for k, v in state.items() if k != "fc3.bias"}, r'it lacks "fc3\.bias"$'),
        (lambda state: state | {"fc4.bias": torch.ones(1)}, r'it has "fc4\.bias", which that network does not have$'),
        (
            lambda state: state | {"fc1.weight": torch.ones(300, 12)},
            r'"fc1\.weight" has shape \(300, 12\), not \(300, 784\)$',
        ),
        (lambda state: {}, r'it lacks "fc1\.weight"$'),
        # The classifier alone does not fit, but neither does all else.
        (lambda state: state | {"fc2.bias": torch.ones(3), "fc3.bias": torch.ones(3)}, r'"fc2\.bias" has shape'),
    ],
)
def test_weights_of_another_network_are_refused_by_the_first_tensor_and_change_nothing(change, complaint):
    model = networks.build("lenet-300-100", seed=2)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    with pytest.raises(
        ValueError, match=r"^some\.safetensors does not hold a LeNet300100 for 10 classes: " + complaint
    ):
        of(change(STATE)).fill(model)
    assert equal(model, before, before)


def test_what_an_entry_leaves_out_may_be_missing_and_nothing_else():
    model = networks.build("lenet-300-100", seed=2)
    partial = {name: tensor for name, tensor in STATE.items() if name.startswith("fc1")}
    assert of(partial, left_out=("fc2.", "fc3.")).left_random(model) == tuple(STATE)[2:]
    with pytest.raises(ValueError, match=r'it lacks "fc2\.weight"'):
        of(partial, left_out=("fc3.",)).fill(model)


def test_files_of_both_formats_give_the_tensors_and_the_scaling(tmp_path):
    scaling = Scaling((0.25,), (0.5,))
    secateur.save(LENET, tmp_path / "a.cut", metadata=scaling.as_text())
    (tmp_path / "a.safetensors").write_bytes(safetensors.torch.save(STATE, metadata=scaling.as_text()))
    for suffix in ("cut", "safetensors"):
        start = read_start(str(tmp_path / f"a.{suffix}"), "lenet-300-100")
        assert start.scaling == scaling
        assert all(torch.equal(start.state[name], STATE[name]) for name in STATE)


def test_a_file_that_does_not_say_how_inputs_are_scaled_leaves_that_to_the_run(tmp_path):
    safetensors.torch.save_file(STATE, tmp_path / "a.safetensors")
    assert read_start(str(tmp_path / "a.safetensors"), "lenet-300-100").scaling is None


def test_nothing_given_means_random_weights():
    assert read_start("", "lenet-300-100") is None


@pytest.mark.parametrize(
    ("start", "complaint"),
    [
        ("pretrained", "there are no pretrained weights of lenet-5, only of resnet-50-v1, .*: give a file instead"),
        ("weights.safetensors", "weights.safetensors does not exist: give a file, or pretrained"),
        ("weights.pth", r'from "pretrained" or from a file \(\.safetensors, \.cut or \.net\), got weights.pth'),
        ("pretraned", r'from "pretrained" or from a file .*, got pretraned'),
    ],
)
def test_what_cannot_be_started_from_is_one_sentence(start, complaint):
    with pytest.raises(ValueError, match=complaint):
        require_start(start, "lenet-5")


@pytest.mark.parametrize("suffix", ["safetensors", "cut", "net"])
def test_a_broken_file_is_named(tmp_path, suffix):
    path = tmp_path / f"broken.{suffix}"
    path.write_bytes(b"nonsense")
    with pytest.raises((ValueError, secateur.FormatError), match=rf"broken\.{suffix}"):
        read_start(str(path), "squeezenet")


def test_pretrained_weights_come_by_name_with_their_scaling(tmp_path, monkeypatch):
    content = safetensors.torch.save(STATE)
    (tmp_path / "pretrained" / "lenet-300-100").mkdir(parents=True)
    (tmp_path / "pretrained" / "lenet-300-100" / "lenet.safetensors").write_bytes(content)
    monkeypatch.setitem(PRETRAINED, "lenet-300-100", entry_of(content))
    start = read_start("pretrained", "lenet-300-100", tmp_path)
    assert start.scaling == Scaling((0.1, 0.2, 0.3), (1, 2, 3))
    assert of(start.state).left_random(LENET) == ()


def test_pretrained_weights_that_changed_on_the_disk_are_refused(tmp_path, monkeypatch):
    content = safetensors.torch.save(STATE)
    path = tmp_path / "pretrained" / "lenet-300-100" / "lenet.safetensors"
    path.parent.mkdir(parents=True)
    path.write_bytes(content[:-1] + b"?")
    monkeypatch.setitem(PRETRAINED, "lenet-300-100", entry_of(content))
    with pytest.raises(DataError, match=r"lenet\.safetensors has md5 .*: remove it and load again"):
        read_start("pretrained", "lenet-300-100", tmp_path)


def test_pretrained_weights_that_no_home_has_come_with_a_remedy(tmp_path, monkeypatch):
    monkeypatch.setitem(PRETRAINED, "lenet-300-100", entry_of(b"x"))
    where = tmp_path / "pretrained" / "lenet-300-100"
    remedy = rf"put lenet\.safetensors into {where}, or give a file with --from PATH"
    with pytest.raises(DataError, match=rf"^the pretrained lenet-300-100 is not in .*: {remedy}$"):
        read_start("pretrained", "lenet-300-100", tmp_path)


def entry_of(content: bytes) -> Pretrained:
    return Pretrained(
        name="lenet-300-100",
        source="a test",
        files=(DataFile("lenet.safetensors", len(content), hashlib.md5(content).hexdigest()),),
        homes=(),
        read=lambda files: safetensors.torch.load(files["lenet.safetensors"]),
        preprocessing=Preprocessing(mean=(0.1, 0.2, 0.3), std=(1, 2, 3), size=28, short_side=32),
    )
