"""The idx format of MNIST and the records of CIFAR-10."""

import json

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tiny_set import CONTENT, idx, random_bytes

from secateur.data import DataError
from secateur.data.cifar import read_records, write_records_of_pngs
from secateur.data.idx import read_idx


@given(shape=st.lists(st.integers(0, 5), max_size=4))
def test_an_idx_file_gives_back_its_array(shape):
    tensor = random_bytes(*shape)
    assert torch.equal(read_idx(idx(tensor), "file"), tensor)


@given(cut=st.integers(0, len(CONTENT["train-images"]) - 1))
def test_an_idx_file_cut_anywhere_is_refused(cut):
    with pytest.raises(DataError, match="train-images"):
        read_idx(CONTENT["train-images"][:cut], "train-images")


def test_an_idx_file_with_bytes_to_spare_is_refused():
    with pytest.raises(DataError, match="needs 96 values, got 97"):
        read_idx(CONTENT["train-images"] + b"\0", "train-images")


def test_an_idx_file_of_floats_is_refused():
    with pytest.raises(DataError, match=r"must be unsigned bytes .* got type 0x0d"):
        read_idx(bytes([0, 0, 0x0D, 0]) + bytes(4), "file")


def test_the_pngs_of_the_package_become_the_official_records(tmp_path, monkeypatch):
    image = pytest.importorskip("PIL.Image")
    monkeypatch.setattr("secateur.data.cifar._BATCH_IMAGES", 2)
    images, labels = random_bytes(12, 3, 32, 32), [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8]
    (tmp_path / "train_lables.json").write_text(json.dumps(labels[:10]))
    (tmp_path / "test_lables.json").write_text(json.dumps(labels[10:]))
    batches = [*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"]
    for name, batch in zip(batches, images.split(2), strict=True):
        rows = batch.permute(0, 2, 3, 1).reshape(2, 1024, 3)
        image.fromarray(rows.numpy()).save(tmp_path / f"{name}.png")
    write_records_of_pngs(tmp_path)
    result = read_records({name: (tmp_path / f"{name}.bin").read_bytes() for name in batches})
    assert torch.equal(result.images, images)
    assert result.labels.tolist() == labels


def test_a_cifar_record_is_a_label_then_red_green_and_blue():
    record = bytes([7]) + bytes([1]) * 1024 + bytes([2]) * 1024 + bytes([3]) * 1024
    result = read_records({"first": record, "second": record})
    assert result.labels.tolist() == [7, 7]
    assert torch.equal(result.images, torch.tensor([1, 2, 3]).view(1, 3, 1, 1).expand(2, 3, 32, 32))
