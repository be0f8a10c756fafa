"""Features are those of the named layer, computed once, and the same bits after an interruption."""

import errno

import numpy as np
import pytest
import torch
from tiny_networks import tiny

from secateur.data import DataError
from secateur.data.pictures import read_picture
from secateur.transfer.features import extract, extract_by_folder, normalized
from secateur.transfer.task import Picture


def read(picture, shape=(3, 8, 8)):
    with picture.path.open("rb") as file:
        return read_picture(file, "it", shape, box=picture.box)


def test_features_are_what_the_last_linear_layer_reads(pictures, tmp_path):
    network = tiny()
    found = extract(network, pictures[:5], tmp_path / "cache")
    inputs = network.scaling(torch.stack([read(picture) for picture in pictures[:5]]))
    model = network.model
    expected = model.hidden(model.conv(inputs).relu().flatten(1)).relu()
    np.testing.assert_allclose(found, expected.detach(), rtol=1e-5, atol=1e-6)
    assert found.dtype == np.float32


def test_a_named_layer_gives_its_output(pictures, tmp_path):
    hidden = extract(tiny(layer="hidden"), pictures[:5], tmp_path)
    np.testing.assert_array_equal(np.maximum(hidden, 0), extract(tiny(), pictures[:5], tmp_path))
    assert extract(tiny(layer="conv"), pictures[:2], tmp_path, dtype="float16").shape == (2, 4 * 3 * 3)


def test_a_layer_that_does_not_exist_is_named_with_the_nearest():
    with pytest.raises(ValueError, match='there is no layer of tiny "hiden": did you mean "hidden"'):
        tiny(layer="hiden")


def test_a_box_shows_that_part_of_a_picture(pictures):
    whole, part = read(pictures[0]), read(Picture(pictures[0].path, (2, 1, 6, 5)), (3, 4, 4))
    assert torch.equal(part, whole[:, 1:5, 2:6])
    with pytest.raises(DataError, match=r"8 × 8 pixels, and its box \(9, 0, 12, 4\) covers none of them"):
        read(Picture(pictures[0].path, (9, 0, 12, 4)))


def test_features_are_computed_once_and_anew_for_other_weights_layers_and_boxes(pictures, tmp_path):
    seen = []
    for network, given in (
        (tiny(), pictures[:3]),
        (tiny(), pictures[:3]),
        (tiny(seed=1), pictures[:3]),
        (tiny(layer="hidden"), pictures[:3]),
        (tiny(), [Picture(pictures[0].path, (0, 0, 4, 4))]),
    ):
        extract(network, given, tmp_path / "cache", progress=lambda done, total: seen.append(total))
    assert seen == [3, 3, 3, 1]
    assert len([*(tmp_path / "cache").iterdir()]) == 4


def test_an_interrupted_extraction_continues_with_the_same_bits(pictures, tmp_path):
    whole = extract(tiny(), pictures, tmp_path / "whole")

    def killed(done, total):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        extract(tiny(), pictures, tmp_path / "cache", progress=killed)
    [partial] = (tmp_path / "cache").iterdir()
    with partial.open("ab") as file:
        file.truncate(partial.stat().st_size - 7)
    steps = []
    found = extract(tiny(), pictures, tmp_path / "cache", progress=lambda done, total: steps.append(done))
    assert steps[-1] == 150
    assert found.tobytes() == whole.tobytes()


def test_features_on_sparse_kernels_are_the_same_up_to_rounding(pictures, tmp_path):
    for layer in (None, "hidden", "conv"):
        dense = extract(tiny(layer=layer), pictures[:4], tmp_path)
        sparse = extract(tiny(layer=layer, is_sparse=True), pictures[:4], tmp_path)
        np.testing.assert_allclose(sparse, dense, rtol=1e-4, atol=1e-5)


def test_a_picture_that_cannot_be_read_is_named(pictures, tmp_path):
    broken = Picture(tmp_path / "broken.png")
    with pytest.raises(DataError, match=r"broken\.png cannot be read: No such file"):
        extract(tiny(), [*pictures[:2], broken], tmp_path)
    broken.path.write_bytes(b"no picture")
    with pytest.raises(DataError, match=r"broken\.png is not a picture"):
        extract(tiny(), [*pictures[:2], broken], tmp_path)


def test_a_full_disk_is_one_sentence(pictures, tmp_path, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("secateur.data.features.fsync", full)
    with pytest.raises(DataError, match=r"cannot be written \(No space left on device\): make room for it"):
        extract(tiny(), pictures[:2], tmp_path / "cache")


def test_a_folder_that_cannot_be_written_is_one_sentence(pictures, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(DataError, match=r"cannot be written \(.*\): choose another folder for data sets"):
        extract(tiny(), pictures[:2], tmp_path / "file" / "cache")


def test_pictures_of_parts_that_tasks_share_are_extracted_once(pictures, tmp_path):
    moved = []
    for index, picture in enumerate(pictures[:9]):
        path = tmp_path / f"domain{index % 3}" / "class" / picture.path.name
        path.parent.mkdir(parents=True, exist_ok=True)
        picture.path.rename(path)
        moved.append(Picture(path))
    whole = extract_by_folder(tiny(), moved, tmp_path / "cache")
    np.testing.assert_allclose(whole, extract(tiny(), moved, tmp_path / "other"), rtol=1e-5, atol=1e-6)
    extract_by_folder(tiny(), [*moved[1::3], *moved[0::3]], tmp_path / "cache")
    assert len([*(tmp_path / "cache").iterdir()]) == 3


def test_normalized_rows_have_length_one_and_zeros_stay():
    np.testing.assert_allclose(normalized(np.array([[3.0, 4.0], [0, 0]])), [[0.6, 0.8], [0, 0]], rtol=1e-6)
