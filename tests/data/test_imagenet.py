"""ImageNet, Imagenette and Tiny-ImageNet in their official layouts."""

import gzip
import shutil
import tarfile

import pytest
import torch
from official_trees import (
    PICTURES,
    samples,
    write_flat_val,
    write_folders,
    write_shard,
    write_shards,
    write_tiny,
)

from secateur.data import DATA_SETS, DataError, Inputs, PictureStream, Scaling, in_memory, load, require_crop, shape_of

SHAPE = (3, 8, 8)
TEN = tuple(DATA_SETS["imagenette"].synsets)
pytestmark = pytest.mark.filterwarnings("ignore:.* pictures of (tiny-)?imagenet:UserWarning")


def pixels(images):
    return sorted(map(bytes, in_memory(images).images.flatten(1).numpy()))


def imagenette(root, split="train", **settings):
    return load("imagenette", split, root, SHAPE, **settings)


# The classes


def test_labels_are_in_the_order_of_the_synsets_and_have_names():
    for name, count in (("imagenet", 1000), ("imagenette", 10), ("tiny-imagenet", 200)):
        entry = DATA_SETS[name]
        assert list(entry.synsets) == sorted(entry.synsets)
        assert len(set(entry.classes)) == len(entry.classes) == count
        assert all(synset[0] == "n" and len(synset) == 9 and synset[1:].isdecimal() for synset in entry.synsets)
    known = {0: "tench", 1: "goldfish", 134: "crane (bird)", 207: "golden retriever", 517: "crane (machine)"}
    assert {label: DATA_SETS["imagenet"].classes[label] for label in known} == known
    assert DATA_SETS["imagenet"].classes[999] == "toilet tissue"
    assert DATA_SETS["imagenette"].classes[1:3] == ("English springer", "cassette player")


# Where a set is found


@pytest.mark.parametrize("place", ["", "imagenette", "imagenette2-320", "imagenette2"])
def test_a_set_is_found_in_its_own_folder_or_below(tmp_path, place):
    write_folders(tmp_path / place, TEN, train=3)
    train, test = imagenette(tmp_path), imagenette(tmp_path, "test")
    assert train.labels.bincount().tolist() == [3] * 10
    assert test.labels.bincount().tolist() == [1] * 10
    assert train.classes[0] == "tench"
    assert len(set(train.labels[-10:].tolist())) > 3  # the validation images are mixed


def test_the_published_numbers_are_compared(tmp_path):
    write_folders(tmp_path, TEN, train=3)
    with pytest.warns(UserWarning, match=r"has 30 of the 9,469 train pictures of imagenette$"):
        imagenette(tmp_path)


def test_a_set_that_is_not_there_is_one_sentence_with_its_home(tmp_path):
    with pytest.raises(DataError) as caught:
        load("imagenet", "train", tmp_path)
    assert str(caught.value) == (
        f"imagenet was expected in {tmp_path} as train/n01440764/*.JPEG and val/n01440764/*.JPEG, or as tar shards in "
        "train and val (1,000 classes, 1,281,167 + 50,000 pictures), but nothing of it was found: get it from "
        "https://image-net.org, and give its folder with --data-root; for other classes, give the folder with --data"
    )


def test_an_imagenet_of_three_classes_is_refused(tmp_path):
    write_folders(tmp_path, TEN[:3])
    with pytest.raises(DataError, match="but 3 of 1,000 classes were found, n01443537 was not: get it from"):
        load("imagenet", "train", tmp_path, SHAPE)
    assert load(str(tmp_path), "train", shape=SHAPE).classes == TEN[:3]  # as a folder it is welcome


def test_a_class_missing_from_val_is_named(tmp_path):
    write_folders(tmp_path, TEN)
    shutil.rmtree(tmp_path / "val" / TEN[4])
    assert len(imagenette(tmp_path)) == 20
    with pytest.raises(DataError, match=f"val as .* but 9 of 10 classes were found, {TEN[4]} was not"):
        imagenette(tmp_path, "test")


def test_a_set_is_also_found_inside_a_larger_one(tmp_path):
    write_folders(tmp_path, [*TEN, "n01443537", "n15075141"])
    images = imagenette(tmp_path, "test")
    assert (len(images), len(images.classes)) == (10, 10)


def test_files_can_be_left_out_by_name_whatever_their_format(tmp_path):
    write_folders(tmp_path, TEN, train=3)
    some = [f"{TEN[0]}_1.webp", f"{TEN[3]}_0.JPEG", "elsewhere.png"]
    for crop in ("centre", "alexnet"):
        images = imagenette(tmp_path, leave_out=some, crop=crop)
        assert images.labels.bincount().tolist() == [2, 3, 3, 2, 3, 3, 3, 3, 3, 3]
    with pytest.raises(ValueError, match="digits has no file for each image"):
        load("digits", "train", leave_out=some)


def test_a_set_of_which_all_is_left_out_is_refused(tmp_path):
    write_folders(tmp_path, TEN)
    for crop in ("centre", "alexnet"):
        with pytest.raises(DataError, match="none of 20 pictures is left: `leave_out` names all of them"):
            imagenette(tmp_path, crop=crop, leave_out=[path.name for path in tmp_path.rglob("*.JPEG")])


# Crops


def test_random_crops_are_read_from_the_disk_and_evaluated_at_the_centre(tmp_path):
    write_folders(tmp_path, TEN, train=3)
    images = imagenette(tmp_path, crop="resized")
    assert isinstance(images, PictureStream)
    inputs = Inputs(images, Scaling())
    varied, labels = inputs.batch(torch.arange(30), torch.Generator().manual_seed(0))
    plain = torch.cat([batch for batch, _ in inputs.batches()])
    assert torch.equal(labels, images.labels)
    assert not torch.equal(varied, plain)
    assert torch.equal(plain, images.batch(torch.arange(30))[0] / 255)


def test_photographs_have_the_shape_that_a_network_takes():
    assert shape_of("imagenet", (3, 227, 227)) == (3, 227, 227)
    assert shape_of("/some/folder", (1, 28, 28)) == (1, 28, 28)
    assert shape_of("cifar10", (3, 227, 227)) == (3, 32, 32)


def test_crops_of_whole_pictures_are_refused_where_there_are_none():
    for crop in ("alexnet", "resized"):
        with pytest.raises(ValueError, match=f'crop "{crop}" is for pictures of all sizes, cifar10 has 32×32 pixels'):
            load("cifar10", "train", crop=crop)
        require_crop("tiny-imagenet", crop)
    require_crop("cifar10", "shift-flip")


# Flat validation pictures


def write_devkit(folder, synsets):
    """Write the devkit's two files: numbers from 1 in an order of its own, and what they stand for."""
    numpy, scipy_io = pytest.importorskip("numpy"), pytest.importorskip("scipy.io")
    folder.mkdir(parents=True)
    kinds = [("ILSVRC2012_ID", "O"), ("WNID", "O"), ("words", "O"), ("num_children", "O")]
    backwards = sorted(synsets, reverse=True)  # not in the order of the ids
    rows = [(number + 1, synset, "some words", 0) for number, synset in enumerate(backwards)]
    rows.append((len(rows) + 1, "n00001740", "entity", 2))
    table = numpy.array(rows, dtype=kinds).reshape(-1, 1)
    scipy_io.savemat(folder / "meta.mat", {"synsets": table})
    return {synset: number + 1 for number, synset in enumerate(backwards)}


@pytest.mark.parametrize("place", ["ILSVRC2012_devkit_t12/data", "../ILSVRC2012_devkit_t12/data", "val"])
def test_flat_validation_pictures_have_the_labels_of_the_devkit(tmp_path, place):
    root = tmp_path / "data"
    root.mkdir()
    number_of = write_devkit(root / place, TEN)
    write_flat_val(root, 20)
    labels = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8, 9, 7, 9, 3, 2, 3, 8, 0]
    truth = "".join(f"{number_of[TEN[label]]}\n" for label in labels)
    (root / place / "ILSVRC2012_validation_ground_truth.txt").write_text(truth)
    images = imagenette(root, "test", crop="alexnet")
    found = {place.path[-13:-5]: label for place, label in zip(images.places, images.labels.tolist(), strict=True)}
    assert found == {f"{number:08d}": label for number, label in enumerate(labels, 1)}


def test_flat_validation_pictures_have_the_labels_of_kaggles_list(tmp_path):
    root = tmp_path / "ILSVRC" / "Data" / "CLS-LOC"
    names = write_flat_val(root, 3)
    rows = [f"{name.removesuffix('.JPEG')},{TEN[9 - i]} 85 1 499 272 \n" for i, name in enumerate(names)]
    (tmp_path / "LOC_val_solution.csv").write_text("ImageId,PredictionString\n" + "".join(rows))
    images = load("imagenet", "test", tmp_path, SHAPE)
    assert [images.classes[label] for label in sorted(images.labels)] == ["gas pump", "golf ball", "parachute"]


def test_flat_pictures_without_labels_are_one_sentence(tmp_path):
    write_flat_val(tmp_path, 3)
    with pytest.raises(DataError, match=r"val has 3 pictures but no labels: add ILSVRC2012_devkit_t12/data/"):
        imagenette(tmp_path, "test")
    (tmp_path / "val" / "ILSVRC2012_validation_ground_truth.txt").write_text("1\n2\n")
    (tmp_path / "val" / "meta.mat").write_bytes(b"")
    with pytest.raises(DataError, match=r"ground_truth.txt has 2 labels for 3 pictures: one of them is incomplete"):
        imagenette(tmp_path, "test")


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (b"a,b\n1,2\n", "LOC_val_solution.csv has the columns a, b instead of ImageId and PredictionString: download"),
        (b"", "LOC_val_solution.csv has the columns none instead of ImageId"),
        (b"ImageId,PredictionString\nILSVRC2012_val_00000001,\n", "00000001.JPEG has no label in the list of labels"),
        (b"ImageId,PredictionString\nILSVRC2012_val_00000001\n", "00000001.JPEG has no label in the list of labels"),
        (b"ImageId,PredictionString\n\xff,n01440764 1\n", "00000001.JPEG has no label in the list of labels"),
        (
            b"ImageId,PredictionString\n" + b"x" * 200_000,
            r"solution.csv is not a list of labels \(field larger than .*\)",
        ),
    ],
)
def test_a_list_of_labels_that_is_none_is_named(tmp_path, content, complaint):
    write_flat_val(tmp_path, 3)
    (tmp_path / "LOC_val_solution.csv").write_bytes(content)
    with pytest.raises(DataError, match=complaint):
        imagenette(tmp_path, "test")


@pytest.mark.parametrize("content", [b"", b"x" * 200, "other tables"])
def test_a_devkit_that_is_none_is_named(tmp_path, content):
    write_flat_val(tmp_path, 2)
    scipy_io = pytest.importorskip("scipy.io")
    (tmp_path / "ILSVRC2012_validation_ground_truth.txt").write_text("1\n2\n")
    if content == "other tables":
        scipy_io.savemat(tmp_path / "meta.mat", {"numbers": [1, 2]})
    else:
        (tmp_path / "meta.mat").write_bytes(content)
    with pytest.raises(DataError, match=r"meta.mat is not that of the devkit \(.*\): unpack the devkit again"):
        imagenette(tmp_path, "test")


def test_hidden_files_among_flat_pictures_are_ignored(tmp_path):
    rows = [f"{name}\t{TEN[3]}\n" for name in write_flat_val(tmp_path, 3)]
    (tmp_path / "val" / "val_annotations.txt").write_text("".join(rows))
    (tmp_path / "val" / "._ILSVRC2012_val_00000001.JPEG").write_bytes(b"of a file system without attributes")
    assert imagenette(tmp_path, "test").labels.tolist() == [3, 3, 3]


def test_tiny_imagenet_has_a_list_of_labels_in_val(tmp_path):
    entry = DATA_SETS["tiny-imagenet"]
    write_tiny(tmp_path / "tiny-imagenet-200", entry)
    images = load("tiny-imagenet", "test", tmp_path, SHAPE, crop="alexnet")
    for place, label in zip(images.places, images.labels.tolist(), strict=True):
        assert place.path.endswith(f"val_{label}.JPEG")
    assert len(load("tiny-imagenet", "train", tmp_path, SHAPE, crop="alexnet")) == 200
    rows = (tmp_path / "tiny-imagenet-200" / "val" / "val_annotations.txt").read_text()
    (tmp_path / "tiny-imagenet-200" / "val" / "val_annotations.txt").write_text(rows.replace("n01443537", "n00000000"))
    with pytest.raises(DataError, match=r'val_0.JPEG has the unknown class "n00000000" in the list of labels'):
        load("tiny-imagenet", "test", tmp_path, SHAPE)


# Shards


@pytest.mark.parametrize("layout", ["folders", "flat"])
def test_shards_give_the_pictures_that_folders_give(tmp_path, layout):
    root = write_shards(tmp_path / "shards", 10)
    for split, part in (("train", "train"), ("test", "val")):
        for shard in sorted((root / part).iterdir()) if layout == "flat" else []:
            shard.rename(root / f"imagenet1k-{part}-{shard.name}")
        images = imagenette(root, split)
        labels = [*range(10)] * (4 if split == "train" else 1)
        for number, label in enumerate(labels):
            path = tmp_path / split / TEN[label] / f"{number:06d}.jpg"
            path.parent.mkdir(parents=True, exist_ok=True)
            half = len(labels) // 2 if split == "train" else len(labels)
            path.write_bytes(PICTURES[number % half % len(PICTURES)])
        assert sorted(images.labels.tolist()) == sorted(labels)
        expected = load(str(tmp_path / split), "train", shape=SHAPE), load(str(tmp_path / split), "test", shape=SHAPE)
        assert pixels(images) == sorted(pixels(expected[0]) + pixels(expected[1]))


def test_shards_are_mixed_and_read_at_any_place(tmp_path):
    images = imagenette(write_shards(tmp_path, 10), crop="resized")
    assert len(set(images.labels[-10:].tolist())) > 3
    backwards = torch.arange(39, -1, -1)
    assert torch.equal(images.batch(backwards)[0], images.batch(torch.arange(40))[0].flip(0))


@pytest.mark.parametrize("kept", [0.5, 0.93, "no end"])
def test_a_shard_that_ends_early_is_named(tmp_path, kept):
    root = write_shards(tmp_path, 10)
    shard = root / "train" / "shard-000001.tar"
    content = shard.read_bytes()
    end = len(content.rstrip(b"\0")) // 512 * 512 + 512
    shard.write_bytes(content[:end] if kept == "no end" else content[: int(kept * end)])
    with pytest.raises(DataError, match=r"shard-000001.tar ends early, after \d+ samples: copy it again"):
        imagenette(root)


@pytest.mark.parametrize("damage", ["one bit of a header", "a header of zeros", "two archives"])
def test_a_shard_damaged_in_its_middle_is_named(tmp_path, damage):
    root = write_shards(tmp_path, 10)
    shard = root / "train" / "shard-000001.tar"
    content = bytearray(shard.read_bytes())
    with tarfile.open(shard) as archive:
        header = archive.getmembers()[20].offset
    if damage == "one bit of a header":
        content[header + 3] ^= 1
    elif damage == "a header of zeros":
        content[header : header + 512] = bytes(512)
    else:
        header = len(content.rstrip(b"\0")) // 512 * 512 + 512
        content *= 2
    shard.write_bytes(content)
    with pytest.raises(DataError, match=f"shard-000001.tar is damaged at byte {header:,}, or several archives in one"):
        imagenette(root)


@pytest.mark.parametrize(
    ("files", "complaint"),
    [
        ({"jpg": PICTURES[0]}, r"000000 has a picture but no label: a shard needs a file 000000.cls"),
        ({"jpg": PICTURES[0], "cls": b"ten"}, r"000000.cls must be a number from 0 to 9, got 'ten'"),
        ({"jpg": PICTURES[0], "cls": b"1" * 5000}, r"must be a number from 0 to 9, got '1{40}'"),
        ({"jpg": PICTURES[0], "cls": b"10"}, r"must be a number from 0 to 9, got '10'"),
    ],
)
def test_a_sample_without_a_label_is_named(tmp_path, files, complaint):
    write_shard(tmp_path / "train" / "a.tar", [("000000", files)])
    with pytest.raises(DataError, match=complaint):
        imagenette(tmp_path)


@pytest.mark.parametrize("layout", ["folders", "flat"])
def test_published_archives_next_to_what_was_unpacked_from_them_are_ignored(tmp_path, layout):
    root = write_folders(tmp_path, TEN)
    if layout == "flat":
        shutil.rmtree(root / "val")
        rows = [f"{name}\t{TEN[3]}\n" for name in write_flat_val(root, 10)]
        (root / "val" / "val_annotations.txt").write_text("".join(rows))
    for folder in (root, root / "train", root / "val"):
        write_shard(folder / "ILSVRC2012_img_train.tar", [(TEN[0], {"tar": bytes(1024)})])
        write_shard(folder / "ILSVRC2012_img_val.tar", [("ILSVRC2012_val_00000001", {"JPEG": PICTURES[0]})])
    assert [len(imagenette(root, split)) for split in ("train", "test")] == [20, 10]


def test_an_archive_without_pictures_and_labels_is_named(tmp_path):
    write_shard(tmp_path / "ILSVRC2012_img_train.tar", [(TEN[0], {"tar": bytes(1024)})])
    with pytest.raises(DataError, match=r"img_train.tar has no picture KEY.jpg with a label KEY.cls: unpack it if it"):
        imagenette(tmp_path)


def test_a_shard_that_is_compressed_or_no_archive_is_named(tmp_path):
    shard = write_shard(tmp_path / "train" / "a.tar", samples([1, 2]))
    shard.write_bytes(gzip.compress(shard.read_bytes()))
    with pytest.raises(DataError, match=r"a.tar is not a tar archive, or a compressed one: unpack it"):
        imagenette(tmp_path)


def test_a_shard_may_hold_more_files_and_folders(tmp_path):
    extra = [(f"part/{key}.{'x' * 120}", {}) for key in "ab"]
    rich = [(f"{'long/' * 30}{key}", files | {"json": b"{}"}) for key, files in samples([3, 4])]
    write_shard(tmp_path / "train" / "a.tar", [*extra, *rich, ("notes", {"txt": b"text"})])
    assert sorted(imagenette(tmp_path).labels.tolist()) == [3, 4]


def test_a_picture_of_a_shard_that_cannot_be_read_is_replaced(tmp_path):
    broken = [("bad", {"jpg": PICTURES[0][:100], "cls": b"3"})]
    write_shard(tmp_path / "train" / "a.tar", [*samples([1, 2] * 10), *broken])
    images = imagenette(tmp_path, crop="alexnet")
    with pytest.warns(UserWarning, match=r"replaced by the next one: .*a.tar \(byte [\d,]+\) is "):
        images.batch(torch.arange(21))
    assert len(images.unreadable) == 1
