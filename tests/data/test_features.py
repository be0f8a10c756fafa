"""Features on the disk: the same bits as computed, resumable, and never half of a file."""

import errno
import shutil

import numpy as np
import pytest
import torch
from tiny_set import random_bytes

from secateur.data import DataError, ImageSet, Inputs, Scaling
from secateur.data import features as module
from secateur.data.features import Extraction, cached_features, cached_together

SHAPE = (2, 3, 3)
IMAGES = ImageSet(random_bytes(150, 1, 6, 6), torch.arange(150) % 3, ("a", "b", "c"))
INPUTS = Inputs(IMAGES, Scaling())


def halves(x):
    """Two channels of 3×3 numbers."""
    return torch.stack([x[:, 0, ::2, ::2], x[:, 0, 1::2, 1::2]], dim=1)


def test_features_are_computed_once_and_read_as_they_were(tmp_path):
    found = cached_features(halves, SHAPE, INPUTS, tmp_path / "f")
    again = cached_features(lambda x: pytest.fail("computed twice"), SHAPE, INPUTS, tmp_path / "f")
    expected = halves(Scaling()(IMAGES.images)).half().float()
    for features in (found, again):
        assert torch.equal(torch.stack([features[index][0] for index in range(150)]), expected)
        assert [features[index][1] for index in range(4)] == [0, 1, 2, 0]
        assert (len(features), features.classes) == (150, ("a", "b", "c"))
    train, validation = found.split(30)
    assert (len(train), len(validation)) == (120, 30)
    assert torch.equal(validation[0][0], expected[120])


def test_an_interrupted_file_is_continued_and_ends_with_the_same_bytes(tmp_path):
    cached_features(halves, SHAPE, INPUTS, tmp_path / "whole")
    calls = []

    def killed(x):
        calls.append(len(x))
        if len(calls) == 2:
            raise KeyboardInterrupt
        return halves(x)

    with pytest.raises(KeyboardInterrupt):
        cached_features(killed, SHAPE, INPUTS, tmp_path / "f")
    assert not (tmp_path / "f").exists()
    with (tmp_path / ".f.partial").open("ab") as file:
        file.write(b"half of a row")
    seen = []
    cached_features(lambda x: seen.append(len(x)) or halves(x), SHAPE, INPUTS, tmp_path / "f")
    assert sum(seen) == 150 - 64
    assert (tmp_path / "f").read_bytes() == (tmp_path / "whole").read_bytes()
    assert not (tmp_path / ".f.partial").exists()


def test_a_disk_without_room_is_noticed_before_anything_is_computed(tmp_path, monkeypatch):
    monkeypatch.setattr(shutil, "disk_usage", lambda path: shutil._ntuple_diskusage(100, 90, 10))
    with pytest.raises(DataError, match=r" needs 6,000 more bytes for features, and its disk has 10: make room"):
        cached_features(lambda x: pytest.fail("computed"), SHAPE, INPUTS, tmp_path / "f")
    assert not (tmp_path / "f").exists()


def test_files_that_do_not_fit_on_the_disk_together_are_noticed_too(tmp_path, monkeypatch):
    monkeypatch.setattr(shutil, "disk_usage", lambda path: shutil._ntuple_diskusage(20_000, 10_000, 10_000))
    both = [Extraction(lambda x: pytest.fail("computed"), SHAPE, tmp_path / name) for name in "fg"]
    with pytest.raises(DataError, match=r" needs 12,000 more bytes for features, and its disk has 10,000: make room"):
        cached_together(both, INPUTS)


def test_a_disk_that_fills_up_is_one_sentence_and_leaves_nothing_to_be_read(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("secateur.data.features.fsync", full)
    with pytest.raises(DataError, match=r"f cannot be written \(No space left on device\): make room for it"):
        cached_features(halves, SHAPE, INPUTS, tmp_path / "f")
    assert not (tmp_path / "f").exists()
    monkeypatch.undo()
    assert len(cached_features(halves, SHAPE, INPUTS, tmp_path / "f")) == 150


def test_an_error_of_the_network_is_not_blamed_on_the_file(tmp_path):
    def failing(x):
        raise OSError(errno.ENOMEM, "Cannot allocate memory")

    with pytest.raises(OSError, match="Cannot allocate memory"):
        cached_features(failing, SHAPE, INPUTS, tmp_path / "f")


def test_features_that_do_not_fit_into_16_bits_and_files_of_another_size_are_refused(tmp_path):
    with pytest.raises(DataError, match="do not fit into 16 bits"):
        cached_features(lambda x: 1e9 + halves(x), SHAPE, INPUTS, tmp_path / "f")
    (tmp_path / "g").write_bytes(np.zeros(7, np.uint8).tobytes())
    with pytest.raises(DataError, match="g has 7 bytes instead of 150 rows of 40 bytes: delete it"):
        cached_features(halves, SHAPE, INPUTS, tmp_path / "g")


def test_two_processes_do_not_write_one_file(tmp_path):
    fcntl = pytest.importorskip("fcntl")
    with (tmp_path / ".f.partial").open("ab") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        with pytest.raises(DataError, match="is being written by another process"):
            cached_features(halves, SHAPE, INPUTS, tmp_path / "f")


def test_a_file_that_another_process_finishes_meanwhile_is_left_alone(tmp_path, monkeypatch):
    pytest.importorskip("fcntl")
    lock = module._lock

    def wait(file, path):
        monkeypatch.setattr(module, "_lock", lock)
        cached_features(halves, SHAPE, INPUTS, path)
        lock(file, path)

    monkeypatch.setattr(module, "_lock", wait)
    with pytest.raises(DataError, match="f has just been written by another process: run this again"):
        cached_features(lambda x: pytest.fail("computed twice"), SHAPE, INPUTS, tmp_path / "f")
    assert len(cached_features(halves, SHAPE, INPUTS, tmp_path / "f")) == 150
