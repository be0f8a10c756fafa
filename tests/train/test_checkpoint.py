"""A checkpoint gives back what was saved, or says in one sentence why it does not."""

import errno
import os
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from toy_networks import convolutional, mlp

import secateur
from secateur.atomic import write_atomically
from secateur.train import checkpoint
from secateur.train.checkpoint import CheckpointError


def saved(path: Path, make=mlp, inputs=None, kind=torch.optim.Adam):
    """A model after two steps, its optimizer, and the checkpoint of both."""
    model = make()
    optimizer = kind(secateur.parameter_groups(model, lr=0.1), **({"momentum": 0.9} if kind is torch.optim.SGD else {}))
    for _ in range(2):
        model(torch.randn(9, 12) if inputs is None else inputs).square().sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    checkpoint.save(path, model, optimizer, {"epoch": 2}, write=True)
    return model, optimizer


@pytest.mark.parametrize("kind", [torch.optim.Adam, torch.optim.SGD])
def test_a_checkpoint_gives_back_model_optimizer_and_facts(tmp_path, kind):
    def make():
        return secateur.build_sibling(convolutional()).to(memory_format=torch.channels_last)

    model, optimizer = saved(tmp_path / "file", make, torch.randn(9, 2, 6, 6), kind)
    other = make()
    fresh = kind(secateur.parameter_groups(other, lr=0.1), **({"momentum": 0.9} if kind is torch.optim.SGD else {}))
    assert checkpoint.load(tmp_path / "file", other, fresh) == ({"epoch": 2}, {})
    assert all(torch.equal(value, other.state_dict()[key]) for key, value in model.state_dict().items())
    for mine, theirs in zip(model.parameters(), other.parameters(), strict=True):
        for name, value in optimizer.state[mine].items():
            assert torch.equal(value, fresh.state[theirs][name])
            assert value.squeeze().stride() == fresh.state[theirs][name].squeeze().stride()


def test_a_checkpoint_of_another_model_is_refused(tmp_path):
    saved(tmp_path / "file")
    other = torch.nn.Sequential(torch.nn.Linear(12, 8), torch.nn.ReLU(), torch.nn.Linear(8, 4))
    with pytest.raises(CheckpointError, match="file was written by another model or optimizer"):
        checkpoint.load(tmp_path / "file", other, torch.optim.Adam(other.parameters()))


@settings(max_examples=30)
@given(share=st.floats(0, 0.999))
def test_a_checkpoint_cut_anywhere_is_refused(tmp_path_factory, share):
    path = tmp_path_factory.mktemp("cut") / "file"
    model, optimizer = saved(path)
    path.write_bytes(path.read_bytes()[: int(share * path.stat().st_size)])
    with pytest.raises(CheckpointError, match="file is not a usable checkpoint"):
        checkpoint.load(path, model, optimizer)


def test_a_safetensors_file_that_is_no_checkpoint_is_refused(tmp_path):
    from safetensors.torch import save_file

    model, optimizer = saved(tmp_path / "file")
    for metadata in (None, {"facts": "{}", "numbers": "{}"}):
        save_file({"weight": torch.zeros(3)}, tmp_path / "file", metadata)
        with pytest.raises(CheckpointError, match="file is not a usable checkpoint"):
            checkpoint.load(tmp_path / "file", model, optimizer)


def test_a_full_disk_leaves_the_old_file_whole_and_is_named(tmp_path, monkeypatch):
    def no_room(_):
        raise OSError(errno.ENOSPC, "No space left on device")

    write_atomically(tmp_path / "file", b"old")
    monkeypatch.setattr(os, "fsync", no_room)
    with pytest.raises(OSError, match=r"No space left on device: '.*/file'"):
        write_atomically(tmp_path / "file", b"new")
    assert [path.read_bytes() for path in tmp_path.iterdir()] == [b"old"]
