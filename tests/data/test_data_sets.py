"""The data sets in the table, and finding them by name."""

import os
import sys
from pathlib import Path

import pytest
import torch

from secateur.data import DATA_SETS, DataError, Scaling, load, names, require_known
from secateur.data.downloads import Download

CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "secateur"


def test_digits_look_like_mnist():
    pytest.importorskip("sklearn")
    train, test = load("digits", "train"), load("digits", "test")
    assert (train.images.shape, test.images.shape) == ((1500, 1, 28, 28), (297, 1, 28, 28))
    assert train.labels.unique().tolist() == test.labels.unique().tolist() == list(range(10))
    assert (train.images.min(), train.images.max()) == (0, 255)


def test_digits_are_scikit_learns_enlarged():
    datasets = pytest.importorskip("sklearn.datasets")
    images = load("digits", "train").images[:, 0]
    small = images[:, 3:-2:3, 3:-2:3]  # the middle of every 3×3
    assert torch.equal((small * (16 / 255)).round().double(), torch.from_numpy(datasets.load_digits().images)[:1500])
    inside = small.repeat_interleave(3, dim=1).repeat_interleave(3, dim=2)
    assert torch.equal(images, torch.nn.functional.pad(inside, (2, 2, 2, 2)))


def test_digits_without_scikit_learn_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "sklearn", None)
    with pytest.raises(DataError, match=r"scikit-learn, which is not installed: pip install 'secateur\[digits\]'"):
        load("digits", "train")


def cached(name):
    if any(file.find([CACHE / name]) is None for file in DATA_SETS[name].train):
        pytest.skip(f"{name} is not in the cache: secateur.data.load('{name}', 'train') downloads it")
    return load(name, "train")


def test_mnist_has_its_published_mean_and_deviation():
    train = cached("mnist")
    scaling = Scaling.fit(train, "standard")
    assert scaling == Scaling((0.13066047627384286,), (0.3081078038564627,))
    assert train.labels.bincount().tolist() == [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]


def test_cifar10_has_its_published_means_and_deviations():
    scaling = Scaling.fit(cached("cifar10"), "standard")
    means, deviations = (255 * torch.tensor(numbers) for numbers in (scaling.mean, scaling.std))
    torch.testing.assert_close(means, torch.tensor([125.3069, 122.9504, 113.8654]), atol=1e-4, rtol=0)
    torch.testing.assert_close(deviations, torch.tensor([62.9932, 62.0887, 66.7049]), atol=1e-3, rtol=0)


def test_every_set_is_named_and_every_digest_is_one():
    photographs = ("imagenet", "imagenette", "tiny-imagenet")
    assert names() == ("mnist", "fashion-mnist", "cifar10", "digits", *photographs)
    downloads = [entry for entry in DATA_SETS.values() if isinstance(entry, Download)]
    files = [file for entry in downloads for file in entry.train + entry.test]
    assert all(len(file.md5) == 32 and int(file.md5, 16) for file in files)
    assert len({file.md5 for file in files}) == len(files) == 14


def test_classes_have_the_names_of_their_set():
    assert DATA_SETS["cifar10"].classes[::9] == ("airplane", "truck")
    assert DATA_SETS["fashion-mnist"].classes[7] == "sneaker"
    assert [DATA_SETS[name].classes[7] for name in ("mnist", "digits")] == ["7", "7"]


# Finding a set


def test_an_unknown_name_is_answered_with_the_nearest(tmp_path):
    with pytest.raises(ValueError, match=r'no data set "fashion": did you mean "fashion-mnist"\?'):
        load("fashion", "train", tmp_path)
    with pytest.raises(ValueError, match="split must be 'train' or 'test', got 'val'"):
        load("mnist", "val", tmp_path)
    with pytest.raises(ValueError, match="it is one of mnist, fashion-mnist, cifar10, digits"):
        load("zebra", "train", tmp_path)


def test_a_path_that_is_no_folder_is_refused(tmp_path):
    with pytest.raises(ValueError, match=f"{tmp_path}/zoo is not a folder: give one with a folder of pictures"):
        load(f"{tmp_path}/zoo", "train", shape=(1, 28, 28))
    (tmp_path / "zoo").write_text("a file")
    with pytest.raises(ValueError, match="is not a folder"):
        require_known(f"{tmp_path}/zoo")


def test_names_and_folders_are_known(tmp_path, monkeypatch):
    for name in (*names(), str(tmp_path), "."):
        require_known(name)
    monkeypatch.chdir(tmp_path)
    Path("zoo").mkdir()
    require_known("zoo")


def test_a_folder_called_like_a_set_is_reached_by_its_path(tmp_path, monkeypatch):
    pytest.importorskip("sklearn")
    monkeypatch.chdir(tmp_path)
    Path("digits").mkdir()
    assert len(load("digits", "test")) == 297
    with pytest.raises(DataError, match="digits is empty"):
        load("./digits", "test", shape=(1, 28, 28))


def test_a_shape_that_is_not_that_of_the_set_is_refused_before_anything_is_read(tmp_path):
    with pytest.raises(ValueError, match=r"mnist has .* \(1, 28, 28\), not \(3, 32, 32\): choose cifar10, or build"):
        load("mnist", "train", tmp_path, shape=(3, 32, 32))
    with pytest.raises(ValueError, match=r"not \(3, 227, 227\): build the network for \(1, 28, 28\)$"):
        load("mnist", "train", tmp_path, shape=(3, 227, 227))
    assert list(tmp_path.iterdir()) == []


def test_the_shape_of_the_set_itself_is_welcome():
    pytest.importorskip("sklearn")
    assert load("digits", "test", shape=(1, 28, 28)).shape == (1, 28, 28)


def test_a_folder_needs_a_shape(tmp_path):
    with pytest.raises(ValueError, match="is a folder of pictures: give the shape they are resized to"):
        load(str(tmp_path), "train")
