"""Features are those of the named layer, computed once, and the same bits after an interruption."""

import errno

import numpy as np
import pytest
import torch
from tiny_networks import Tiny, tiny
from torch import nn

from secateur.data import DataError, Scaling
from secateur.data.pictures import read_picture
from secateur.transfer.features import (
    FeatureNetwork,
    extract,
    extract_all,
    extract_by_folder,
    extract_together,
    normalized,
)
from secateur.transfer.shared import sharing
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


def with_same_convolution(*seeds):
    """Return networks that differ after their convolution."""
    networks = [tiny(seed=seed, name=f"seed {seed}") for seed in seeds]
    for each in networks[1:]:
        each.model.conv.load_state_dict(networks[0].model.conv.state_dict())
    return networks


@pytest.fixture
def convolved(monkeypatch):
    """A list that every convolution adds its batch size to."""
    calls, forward = [], nn.Conv2d._conv_forward

    def counting(self, x, *weights):
        calls.append(len(x))
        return forward(self, x, *weights)

    monkeypatch.setattr(nn.Conv2d, "_conv_forward", counting)
    return calls


def test_first_layers_in_common_are_computed_once_with_the_same_bits(pictures, tmp_path, convolved):
    networks = [*with_same_convolution(0, 1, 2), tiny(seed=3)]
    alone = [extract(network, pictures, tmp_path / "alone") for network in networks]
    assert alone[0].tobytes() != alone[1].tobytes()
    convolved.clear()
    together = extract_together(networks, pictures, tmp_path / "together")
    assert [found.tobytes() for found in together] == [found.tobytes() for found in alone]
    assert convolved == [64, 64, 64, 64, 22, 22]  # two different convolutions
    assert not any("forward" in vars(module) for network in networks for module in network.model.modules())


def test_extraction_together_continues_files_of_different_lengths(pictures, tmp_path):
    networks = with_same_convolution(0, 1, 2)
    alone = [extract(network, pictures, tmp_path / "alone") for network in networks]

    def killed(done, total):
        if done == 128:
            raise KeyboardInterrupt

    extract(networks[0], pictures, tmp_path / "cache")
    with pytest.raises(KeyboardInterrupt):
        extract(networks[1], pictures, tmp_path / "cache", progress=killed)
    together = extract_together(networks, pictures, tmp_path / "cache")
    assert [found.tobytes() for found in together] == [found.tobytes() for found in alone]


def test_a_tensor_that_a_network_changes_in_place_is_not_shared():
    class InPlace(Tiny):
        def forward(self, x):
            return self.conv(x).add_(1)

    first, second = InPlace(), InPlace()
    second.conv.load_state_dict(first.conv.state_dict())
    x = torch.ones(1, 3, 8, 8)
    with torch.no_grad(), sharing([first, second]):
        assert torch.equal(first(x), second(x))
        before = second(x)
        x.mul_(2)
        assert not torch.equal(second(x), before)


def test_convolutions_that_differ_in_a_setting_or_the_sign_of_a_zero_are_not_shared(convolved):
    x = torch.ones(1, 1, 2, 2)
    with torch.no_grad():
        plain, padded, negative, biased = (
            nn.Sequential(nn.Conv2d(1, 1, 1, bias=index == 3, padding=int(index == 1))) for index in range(4)
        )
        for model, zero in ((plain, 0.0), (padded, 0.0), (negative, -0.0), (biased, 0.0)):
            model[0].weight.fill_(zero)
        with sharing([plain, padded, negative, biased]):
            for model in (plain, padded, negative, biased):
                model(x)
    assert len(convolved) == 4


def test_networks_with_other_inputs_are_extracted_apart(pictures, tmp_path):
    small = FeatureNetwork("small", tiny().model, (3, 8, 8), Scaling((0.5,) * 3, (2.0,) * 3))
    steps = []
    extract_all([tiny(), small], pictures[:9], tmp_path, progress=lambda *step: steps.append(step))
    assert steps[-1] == (18, 18)
    assert len([*tmp_path.glob("*.features")]) == 2
    assert not np.array_equal(*(extract_by_folder(each, pictures[:9], tmp_path) for each in (tiny(), small)))


def test_normalized_rows_have_length_one_and_zeros_stay():
    np.testing.assert_allclose(normalized(np.array([[3.0, 4.0], [0, 0]])), [[0.6, 0.8], [0, 0]], rtol=1e-6)
