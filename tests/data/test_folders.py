"""Data sets that are folders of pictures."""

import os
import unicodedata
from pathlib import Path

import numpy as np
import pytest
import torch

from secateur.data import (
    DataError,
    Images,
    ImageSet,
    PictureStream,
    Scaling,
    classes_of,
    common_size,
    in_memory,
    load,
    load_folder,
)
from secateur.data import folders as module

Image = pytest.importorskip("PIL.Image")
SHAPE = (1, 6, 6)


def picture(path: Path, level: int = 100, size: tuple[int, int] = (6, 6)) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.full(size, level, np.uint8)).save(path)
    return path


def fill(folder: Path, count: int = 30, classes: str = "abc") -> Path:
    """Make a folder for each class; the grey level of a picture is 60 · class + number."""
    for label, name in enumerate(classes):
        for number in range(count):
            picture(folder / name / f"{number}.png", 60 * label + number)
    return folder


def levels(images: Images) -> list[int]:
    return in_memory(images).images[:, 0, 0, 0].tolist()


# Which pictures


def test_folders_of_classes_are_divided_by_name_into_parts_that_share_nothing(tmp_path):
    train, test = (load_folder(fill(tmp_path), split, SHAPE) for split in ("train", "test"))
    assert train.classes == test.classes == ("a", "b", "c")
    assert sorted(levels(train) + levels(test)) == [60 * label + number for label in range(3) for number in range(30)]
    assert 8 <= len(test) <= 22  # a sixth of 90 is 15
    for images in (train, test):
        assert [level // 60 for level in levels(images)] == images.labels.tolist()


def test_a_picture_stays_in_its_part_when_others_come_and_go(tmp_path):
    before = set(levels(load_folder(fill(tmp_path, 20), "test", SHAPE)))
    after = set(levels(load_folder(fill(tmp_path, 40), "test", SHAPE)))
    assert before <= after


def test_the_parts_do_not_depend_on_where_the_folder_is(tmp_path):
    first, second = (load_folder(fill(tmp_path / name), "test", SHAPE) for name in ("here", "there/deeper"))
    assert levels(first) == levels(second)


def test_the_order_mixes_the_classes(tmp_path):
    """The validation images are the last ones of the training set, and must not be of one class."""
    labels = load_folder(fill(tmp_path), "train", SHAPE).labels
    assert set(labels[-15:].tolist()) == {0, 1, 2}


@pytest.mark.parametrize("name", ["test", "val"])
def test_folders_of_parts_are_taken_as_they_are(tmp_path, name):
    fill(tmp_path / "train", 5)
    fill(tmp_path / name, 2)
    train, test = (load_folder(tmp_path, split, SHAPE) for split in ("train", "test"))
    assert sorted(levels(train)) == sorted(60 * label + number for label in range(3) for number in range(5))
    assert test.classes == ("a", "b", "c")
    assert sorted(test.labels.tolist()) == [0, 0, 1, 1, 2, 2]


def test_test_is_preferred_to_val(tmp_path):
    for name, count in (("train", 5), ("val", 3), ("test", 2)):
        fill(tmp_path / name, count)
    assert len(load_folder(tmp_path, "test", SHAPE)) == 6


@pytest.mark.parametrize("place", ["0.png", "images/0.png"])
def test_val_is_taken_if_test_has_no_labels(tmp_path, place):
    for name, count in (("train", 5), ("val", 3)):
        fill(tmp_path / name, count)
    picture(tmp_path / "test" / place)
    assert len(load_folder(tmp_path, "test", SHAPE)) == 9


def test_a_class_may_be_called_train(tmp_path):
    for name in ("bus", "train", "tram"):
        for number in range(12):
            picture(tmp_path / name / f"{number}.png")
    assert load_folder(tmp_path, "train", SHAPE).classes == ("bus", "train", "tram")


def test_loading_the_training_part_opens_no_test_picture(tmp_path):
    fill(tmp_path / "train", 3)
    (tmp_path / "test" / "a").mkdir(parents=True)
    (tmp_path / "test" / "a" / "broken.png").write_bytes(b"")
    assert len(load_folder(tmp_path, "train", SHAPE)) == 9


def test_subfolders_and_links_of_a_class_belong_to_it(tmp_path):
    for name in "ab":
        picture(tmp_path / "elsewhere" / name / "images" / "1.png")
        picture(tmp_path / "elsewhere" / name / "0.png")
        (tmp_path / "train").mkdir(exist_ok=True)
        (tmp_path / "train" / name).symlink_to(tmp_path / "elsewhere" / name)
    fill(tmp_path / "test", 1, classes="ab")
    assert load_folder(tmp_path, "train", SHAPE).labels.bincount().tolist() == [2, 2]


def test_hidden_names_and_other_files_are_ignored(tmp_path):
    fill(tmp_path / "train", 2)
    picture(tmp_path / "train" / ".checkpoints" / "x.png")
    picture(tmp_path / "train" / "a" / ".x.png")
    picture(tmp_path / "train" / "a" / ".hidden" / "x.png")
    for name in ("a/labels.txt", "readme.md", "a/none"):
        (tmp_path / "train" / name).write_text("text")
    assert load_folder(tmp_path, "train", SHAPE).classes == ("a", "b", "c")
    assert len(load_folder(tmp_path, "train", SHAPE)) == 6


def test_suffixes_may_be_mixed_and_in_capitals(tmp_path):
    for name in ("0.png", "1.PNG", "2.jpg", "3.JPEG", "4.bmp", "5.webp", "6.gif", "7.pgm"):
        picture(tmp_path / "train" / "a" / name)
        picture(tmp_path / "train" / "b" / name)
    assert len(load_folder(tmp_path, "train", SHAPE)) == 16


def test_names_in_any_script_and_bytes_that_are_no_text(tmp_path):
    strange = Path(os.fsdecode(b"\xff\xfe"))
    for name in ("猫 и собаки", "ça va?", strange):
        for number in range(2):
            picture(tmp_path / "train" / name / f"été {number} 🐈.png", 50)
    images = load_folder(tmp_path, "train", SHAPE)
    assert images.classes == ("\\xff\\xfe", "ça va?", "猫 и собаки")
    assert len(images) == 6
    for name in images.classes:
        name.encode("utf-8")


def test_both_forms_of_unicode_are_one_name(tmp_path):
    hashes = {module.name_hash("é", unicodedata.normalize(form, "ü.png")) for form in ("NFC", "NFD")}
    assert len(hashes) == 1


# What is wrong with a folder


def broken(tmp_path: Path, name: str) -> Path:
    """Make a folder that is no data set, in the way that is called `name`."""
    root = tmp_path / name
    root.mkdir()
    if name == "flat":
        picture(root / "0.png")
    elif name == "files":
        (root / "notes.txt").write_text("text")
    elif name == "single":
        picture(root / "cats" / "0.png")
    elif name == "hollow":
        fill(root, 2)
        (root / "d").mkdir()
    elif name == "tiffs":
        fill(root, 2)
        (root / "d").mkdir()
        for file in ("0.tif", "1.tif", "list"):
            (root / "d" / file).write_bytes(b"")
    elif name == "loop":
        fill(root, 2)
        (root / "a" / "again").symlink_to(root / "a")
    elif name == "wide loop":
        fill(root, 2)
        (root / "b" / "up").symlink_to(root)
        (root / "c" / "self").symlink_to(root / "c" / "self")
    elif name == "no test":
        fill(root / "train", 2)
    elif name == "stranger":
        fill(root / "train", 2)
        fill(root / "test", 2, classes="abd")
    elif name == "lacking":
        fill(root / "train", 2)
        fill(root / "val", 2, classes="ac")
    elif name == "no labels":
        fill(root / "train", 2)
        picture(root / "test" / "images" / "0.png")
        picture(root / "val" / "images" / "0.png")
    elif name == "no training":
        (root / "train").mkdir()
        fill(root / "test", 2)
    return root


@pytest.mark.parametrize(
    ("name", "split", "complaint"),
    [
        ("empty", "train", "empty is empty: put the pictures of each class into a folder of its name"),
        ("flat", "train", "flat has pictures but no classes: put those of each class into a folder of its name"),
        ("files", "train", "files holds no folders: put the pictures of each class"),
        ("single", "train", 'single has one class only, "cats": a classifier needs two or more'),
        ("hollow", "test", r"hollow/d has no pictures \(.png, .jpg, .*\): add some"),
        ("tiffs", "test", r"tiffs/d has no pictures \(.png, .jpg, .*\), its files are .tif, without suffix: add some"),
        ("loop", "train", "loop/a/again is a link to a folder that contains it: remove the link"),
        ("wide loop", "train", "wide loop/b/up is a link to a folder that contains it"),
        ("no test", "test", "no test has a folder train but neither test nor val: add one"),
        ("stranger", "test", 'stranger/test has a class "d", which .*/train does not have: add it there'),
        ("lacking", "test", 'lacking/val has no class "b", which .*/train has: add it there'),
        (
            "no labels",
            "test",
            'no labels/test has none of the classes of .*/train, such as "a": put the pictures of each',
        ),
        ("no training", "train", "no training/train is empty"),
    ],
)
def test_a_folder_that_is_no_data_set_is_one_sentence(tmp_path, name, split, complaint):
    with pytest.raises(DataError, match=complaint) as caught:
        load_folder(broken(tmp_path, name), split, SHAPE)
    assert "\n" not in str(caught.value)


def test_a_part_without_pictures_is_refused(tmp_path):
    for name in "ab":
        picture(tmp_path / name / "0.png")
    assert len(load_folder(tmp_path, "train", SHAPE)) == 2
    with pytest.raises(DataError, match=r"has too few pictures for a test set: add some$"):
        load_folder(tmp_path, "test", SHAPE)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_folder_that_may_not_be_read_is_one_sentence(tmp_path):
    fill(tmp_path, 2)
    (tmp_path / "b").chmod(0)
    with pytest.raises(DataError, match="b cannot be read: Permission denied"):
        load_folder(tmp_path, "train", SHAPE)


def test_pictures_in_formats_that_are_not_read_are_counted(tmp_path):
    fill(tmp_path / "train", 2)
    for name in ("0.tif", "1.TIF", "2.heic"):
        (tmp_path / "train" / "a" / name).write_bytes(b"")
    with pytest.warns(UserWarning, match=r"train/a has pictures in formats that are not read \(2 .tif, 1 .heic\)"):
        assert len(load_folder(tmp_path, "train", SHAPE)) == 6


# Pictures that cannot be read


def damaged(folder: Path, names: list[str]) -> Path:
    fill(folder, 20)
    for name in names:
        (folder / name).write_bytes(b"not a picture")
    return folder


@pytest.mark.parametrize("kind", ["text", "nothing", "dangling", "endless", "cut", "pipe", "huge"])
def test_one_unreadable_picture_is_left_out_with_its_name(tmp_path, kind):
    fill(tmp_path / "train", 4)
    bad = tmp_path / "train" / "b" / "bad.png"
    content = (tmp_path / "train" / "a" / "0.png").read_bytes()
    if kind == "dangling":
        bad.symlink_to(tmp_path / "nowhere.png")
    elif kind == "endless":
        bad.symlink_to(bad)
    elif kind == "pipe":
        os.mkfifo(bad)
    elif kind == "huge":
        bad.touch()
        os.truncate(bad, 1 << 42)
    else:
        bad.write_bytes({"text": b"text", "nothing": b"", "cut": content[:-30]}[kind])
    with pytest.warns(UserWarning, match=r"^a picture is left out: .*b/bad.png (is|has|cannot be read: )"):
        images = load_folder(tmp_path, "train", SHAPE)
    assert images.labels.bincount().tolist() == [4, 4, 4]
    assert [level // 60 for level in levels(images)] == images.labels.tolist()


def test_more_unreadable_pictures_are_refused_with_the_first(tmp_path):
    folder = damaged(tmp_path / "train", ["a/3.png", "c/7.png"])
    with pytest.raises(DataError, match=r"^more than 1 of 60 pictures cannot be read; the first: .*[37].png is not"):
        load_folder(folder.parent, "train", SHAPE)
    stream = load_folder(folder.parent, "train", SHAPE, memory_bytes=0)
    with pytest.warns(UserWarning, match="replaced"), pytest.raises(DataError, match="more than 1 of 60"):
        stream.batch(torch.arange(60))


def test_the_share_that_may_be_unreadable_can_be_chosen(tmp_path):
    folder = damaged(tmp_path / "train", ["a/3.png", "c/7.png", "c/8.png"])
    with pytest.warns(UserWarning, match="left out") as warned:
        assert len(load_folder(folder.parent, "train", SHAPE, most_unreadable=0.05)) == 57
    assert len(warned) == 3


def test_a_set_of_nothing_readable_is_refused(tmp_path):
    for name in "ab":
        (tmp_path / "train" / name).mkdir(parents=True)
        (tmp_path / "train" / name / "0.png").write_bytes(b"")
    with pytest.raises(DataError, match="more than 1 of 2 pictures cannot be read"):
        load_folder(tmp_path, "train", SHAPE)


def test_in_a_stream_the_next_picture_stands_in(tmp_path):
    folder = damaged(tmp_path / "train", ["b/3.png"])
    stream = load_folder(folder.parent, "train", SHAPE, memory_bytes=0)
    bad = [place.path[-7:] for place in stream.places].index("b/3.png")
    following = (bad + 1) % 60
    with pytest.warns(UserWarning, match=r"^a picture is replaced by the next one: .*b/3.png is not a picture"):
        pixels, labels = stream.batch(torch.tensor([bad, following]))
    assert torch.equal(pixels[0], pixels[1])
    assert labels.tolist() == [int(stream.labels[following])] * 2
    again, _ = stream.batch(torch.tensor([bad]))  # without a second warning
    assert torch.equal(again, pixels[:1])


# Memory and streams


def test_a_set_is_in_memory_if_it_fits(tmp_path):
    fill(tmp_path / "train", 10)
    inside, outside = (load_folder(tmp_path, "train", SHAPE, memory_bytes=size) for size in (30 * 36, 30 * 36 - 1))
    assert isinstance(inside, ImageSet)
    assert isinstance(outside, PictureStream)
    assert isinstance(outside, Images)
    assert (outside.classes, outside.shape, len(outside)) == (inside.classes, inside.shape, len(inside))
    assert torch.equal(outside.labels, inside.labels)
    indices = torch.tensor([4, 4, 29, 0])
    for mine, other in zip(outside.batch(indices), inside.batch(indices), strict=True):
        assert torch.equal(mine, other)
    assert Scaling.fit(outside, "standard") == Scaling.fit(inside, "standard")


def test_a_stream_opens_a_picture_when_it_is_asked_for(tmp_path):
    fill(tmp_path / "train", 10)
    stream = load_folder(tmp_path, "train", SHAPE, memory_bytes=0)
    for index, place in enumerate(stream.places):
        if index != 5:
            Path(place.path).unlink()
    assert stream.batch(torch.tensor([5]))[1].tolist() == [int(stream.labels[5])]


def test_an_empty_batch_is_empty(tmp_path):
    fill(tmp_path / "train", 2)
    pixels, labels = load_folder(tmp_path, "train", SHAPE, memory_bytes=0).batch(torch.arange(0))
    assert (pixels.shape, labels.shape, labels.dtype) == ((0, *SHAPE), (0,), torch.int64)


@pytest.mark.parametrize("shape", [(1, 6, 6), (3, 6, 6), (3, 9, 4)])
def test_pictures_of_all_sizes_become_the_wanted_shape(tmp_path, shape):
    for number, size in enumerate([(6, 6), (20, 10), (3, 50), (100, 90)]):
        for name in "ab":
            picture(tmp_path / "train" / name / f"{number}.png", 10 * number, size)
    images = load(str(tmp_path), "train", shape=shape)
    assert images.shape == shape
    assert sorted(levels(images)) == [0, 0, 10, 10, 20, 20, 30, 30]


def test_without_pillow_the_remedy_is_named(tmp_path, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "PIL", None)
    with pytest.raises(DataError, match=r"pip install 'secateur\[vision\]'"):
        load_folder(tmp_path, "train", SHAPE)


# What is known before pictures are decoded


def test_pictures_of_one_size_have_a_common_size(tmp_path):
    for name in ("a", "b"):
        for number in range(6):
            picture(tmp_path / "train" / name / f"{number}.png", size=(5, 7))
    (tmp_path / "train" / "a" / "broken.png").write_bytes(b"no picture")
    os.mkfifo(tmp_path / "train" / "a" / "pipe.png")
    assert classes_of(tmp_path) == ("a", "b")
    assert common_size(tmp_path) == (5, 7)
    turned = Image.Exif()
    turned[0x0112] = 6  # to be turned by 90 degrees
    Image.new("L", (5, 7)).save(tmp_path / "train" / "a" / "turned.jpg", exif=turned)
    assert common_size(tmp_path) == (5, 7)
    picture(tmp_path / "train" / "b" / "other.png", size=(7, 5))
    assert common_size(tmp_path) is None
