"""What every data set has to do; a new one that needs no download is covered by being listed."""

import numpy as np
import pytest
import torch

from secateur import networks
from secateur.data import DATA_SETS, DataSet, Images, Inputs, Scaling, in_memory, load, load_folder, split_validation
from secateur.data.downloads import Download
from secateur.data.imagenet import SynsetPictures
from secateur.measure import error_of_batches

SETS = [name for name, entry in DATA_SETS.items() if not isinstance(entry, (Download, SynsetPictures))]
PICTURES = [name for name, entry in DATA_SETS.items() if isinstance(entry, SynsetPictures)]
FOLDERS = ("a folder in memory", "a folder as a stream")


@pytest.fixture(scope="module")
def photographs(tmp_path_factory):
    image = pytest.importorskip("PIL.Image")
    root, draw = tmp_path_factory.mktemp("photographs"), np.random.default_rng(0)
    for name in ("cat", "dog", "tree"):
        (root / name).mkdir()
        for number in range(15):
            pixels = draw.integers(0, 256, (int(draw.integers(8, 30)), int(draw.integers(8, 30)), 3), dtype=np.uint8)
            image.fromarray(pixels).save(root / name / f"{number}.png")
    return root


@pytest.fixture(scope="module")
def trees(tmp_path_factory):
    """Small trees in the layouts in which the sets of pictures are published."""
    trees = pytest.importorskip("official_trees")
    root = tmp_path_factory.mktemp("trees")
    trees.write_shards(root / "imagenet", 1000, train=2)
    trees.write_folders(root / "imagenette2-320", DATA_SETS["imagenette"].synsets, train=5)
    trees.write_tiny(root / "tiny-imagenet-200", DATA_SETS["tiny-imagenet"])
    return root


@pytest.fixture(scope="module", params=[*SETS, *PICTURES, *FOLDERS])
def parts(request, photographs, trees):
    """The training and the test part of a set."""
    if request.param in PICTURES:
        with pytest.warns(UserWarning, match=r"has [\d,]+ of the [\d,]+ (train|test) pictures of"):
            return [load(request.param, split, trees, shape=(3, 12, 10)) for split in ("train", "test")]
    if request.param in FOLDERS:
        limit = 1 << 20 if "memory" in request.param else 0
        return [load_folder(photographs, split, (3, 12, 10), memory_bytes=limit) for split in ("train", "test")]
    pytest.importorskip("sklearn")
    return [load(request.param, split) for split in ("train", "test")]


@pytest.mark.parametrize("name", DATA_SETS)
def test_an_entry_has_its_name_shape_classes_and_a_note(name):
    entry = DATA_SETS[name]
    assert isinstance(entry, DataSet)
    assert entry.name == name
    assert len(entry.shape) == 3
    assert len(set(entry.classes)) == len(entry.classes) > 1
    assert entry.note
    assert "\n" not in entry.note


@pytest.mark.parametrize("name", SETS)
def test_the_images_are_what_the_entry_says(name):
    pytest.importorskip("sklearn")
    entry, images = DATA_SETS[name], load(name, "test", shape=DATA_SETS[name].shape)
    assert (images.shape, images.classes) == (entry.shape, entry.classes)


def test_both_parts_are_images_of_the_same_shape_and_classes(parts):
    train, test = parts
    assert isinstance(train, Images)
    assert (train.shape, train.classes) == (test.shape, test.classes)
    assert len(train) > len(test) > 0


def test_labels_are_positions_among_the_classes(parts):
    for part in parts:
        assert part.labels.dtype == torch.int64
        assert part.labels.shape == (len(part),)
        assert part.labels.min() >= 0
        assert part.labels.max() < len(part.classes)


def test_a_batch_is_bytes_of_the_shape_and_the_labels(parts):
    for part in parts:
        indices = torch.tensor([len(part) - 1, 0, 0])
        pixels, labels = part.batch(indices, torch.Generator().manual_seed(0))
        assert (pixels.dtype, pixels.shape) == (torch.uint8, (3, *part.shape))
        assert torch.equal(labels, part.labels[indices])
        assert torch.equal(pixels[1], pixels[2])
        assert torch.equal(pixels, part.batch(indices)[0])


def test_loading_again_gives_the_same(parts):
    for part in parts:
        whole = in_memory(part)
        assert torch.equal(whole.images, in_memory(part).images)
        assert torch.equal(whole.labels, part.labels)


def test_training_and_validation_images_become_inputs(parts):
    train, validation = split_validation(parts[0], len(parts[0]) // 5)
    scaling = Scaling.fit(train, "standard")
    inputs = Inputs.for_training(train, scaling, 0.5)
    batch, labels = inputs.batch(torch.arange(10), torch.Generator().manual_seed(0))
    assert (batch.dtype, batch.shape, labels.shape) == (torch.float32, (10, *parts[0].shape), (10,))
    whole = torch.cat([batch for batch, _ in Inputs(train, scaling).batches(7)]).transpose(0, 1).flatten(1)
    torch.testing.assert_close(whole.mean(1), torch.zeros(len(whole)), atol=1e-3, rtol=0)
    torch.testing.assert_close(whole.std(1), torch.ones(len(whole)), atol=1e-2, rtol=0)
    assert sum(len(labels) for _, labels in Inputs(validation, scaling).batches(4)) == len(validation)


def test_a_network_built_for_the_images_reads_them(parts):
    train, test = parts
    scaling = Scaling.fit(train, "standard")
    model = networks.build("lenet-300-100", seed=0, classes=len(train.classes), input_shape=train.shape)
    assert 0 < error_of_batches(model, Inputs(test, scaling).batches(8)) <= 100
    batch, labels = Inputs(train, scaling).batch(torch.arange(4), torch.Generator())
    torch.nn.functional.cross_entropy(model(batch), labels).backward()
