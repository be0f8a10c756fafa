"""Data sets of the evaluation of transfer, read from small trees in their official layouts."""

import numpy as np
import pytest

from secateur.data import DataError
from secateur.transfer.sets import TRANSFER_SETS, TransferSet, by_class, find
from secateur.transfer.sets.buildings import CORRUPT
from secateur.transfer.sets.h3d import ATTRIBUTES
from secateur.transfer.sets.voc import CLASSES
from secateur.transfer.task import Attributes, Classification, Retrieval

pytestmark = pytest.mark.filterwarnings("ignore:.* has .* of the .* pictures of:UserWarning")


def write(root, files):
    """Write text files, or empty ones for pictures, which are not decoded here."""
    for name, text in files.items() if isinstance(files, dict) else ((name, "") for name in files):
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def load(root, name):
    return TRANSFER_SETS[name].load(root)


def shown(task, part="train"):
    """Return names of files and labels of one part."""
    pictures, labels = getattr(task, part), getattr(task, f"{part}_labels")
    return {picture.path.name: label for picture, label in zip(pictures, labels.tolist(), strict=True)}


def found(task, query):
    """Return the names of the relevant and the ignored pictures of a query."""
    names = [picture.path.stem for picture in task.pictures]
    return {names[index] for index in query.relevant}, {names[index] for index in query.ignored}


# The table


@pytest.mark.parametrize("name", TRANSFER_SETS)
def test_a_missing_set_is_one_sentence_with_its_folder_and_its_home(tmp_path, name):
    entry = TRANSFER_SETS[name]
    folder = tmp_path / (entry.folder or name)
    for what in ("there is no such folder", "the folder is empty", "(missing|not found|no pictures|no file)"):
        with pytest.raises(DataError, match=f"^{name} was expected in {folder} as .*, but .*{what}") as caught:
            entry.load(tmp_path)
        assert str(caught.value).endswith(f": get it from {entry.home}")
        if folder.is_dir():
            (folder / "unrelated.txt").write_text("")
        folder.mkdir(exist_ok=True)


def test_the_paper_has_eleven_sets_and_names_are_unique():
    titles = [entry.title for entry in TRANSFER_SETS.values()]
    assert len(titles) == len(set(titles)) == 19
    assert [*TRANSFER_SETS][:2] == ["voc2007", "mit67"]
    assert [*TRANSFER_SETS][10] == "ukbench"
    assert all(isinstance(entry, TransferSet) and entry.home.startswith("http") for entry in TRANSFER_SETS.values())


@pytest.mark.filterwarnings("default")
def test_a_set_with_fewer_pictures_than_published_is_read_with_a_warning(tmp_path):
    write(tmp_path / "ukbench" / "full", [f"ukbench{number:05d}.jpg" for number in range(4)])
    with pytest.warns(UserWarning, match="ukbench has 4 of the 10,200 pictures of ukbench"):
        load(tmp_path, "ukbench")


# Objects and attributes


def write_voc(root):
    devkit = root / "voc2007" / "VOCdevkit" / "VOC2007"
    write(devkit / "JPEGImages", [f"00000{number}.jpg" for number in (5, 7, 1, 2)])
    for label, name in enumerate(CLASSES):
        lists = {"trainval": f"000005 {1 if label == 8 else 0:>2}\n000007 {1 if label == 6 else -1:>2}\n"}
        lists["test"] = f"000001 {1 if label == 14 else -1:>2}\n000002  0\n"
        write(devkit / "ImageSets" / "Main", {f"{name}_{part}.txt": text for part, text in lists.items()})
    return devkit


def test_voc_has_twenty_classes_and_leaves_difficult_objects_out(tmp_path):
    write_voc(tmp_path)
    task = load(tmp_path, "voc2007")
    assert isinstance(task, Attributes)
    assert (task.attributes, task.score) == (CLASSES, "ap11")
    assert shown(task) == {
        "000005.jpg": [1 if label == 8 else 0 for label in range(20)],
        "000007.jpg": [1 if label == 6 else -1 for label in range(20)],
    }
    assert shown(task, "test")["000001.jpg"] == [1 if label == 14 else -1 for label in range(20)]
    assert shown(task, "test")["000002.jpg"] == [0] * 20


def test_labels_without_pictures_are_counted(tmp_path):
    devkit = write_voc(tmp_path)
    (devkit / "JPEGImages" / "000007.jpg").unlink()
    with pytest.raises(DataError, match=r"3 of 4 pictures were found, .*/000007.jpg was not: get it from http"):
        load(tmp_path, "voc2007")


def test_lists_of_voc_that_disagree_are_named(tmp_path):
    main = write_voc(tmp_path) / "ImageSets" / "Main"
    (main / "sofa_test.txt").write_text("000001 -1\n")
    with pytest.raises(DataError, match=r"sofa_test.txt lists other pictures than aeroplane_test.txt"):
        load(tmp_path, "voc2007")


def test_a_label_of_voc_that_is_not_a_number_is_named(tmp_path):
    main = write_voc(tmp_path) / "ImageSets" / "Main"
    (main / "sofa_test.txt").write_text("000001 -1\n000002 nan\n")
    with pytest.raises(DataError, match=r"sofa_test.txt has the label nan, which is not one of -1, 0, 1"):
        load(tmp_path, "voc2007")


def write_uiuc(root, attributes=64):
    data = root / "uiuc-attributes"
    write(data / "VOCdevkit" / "VOC2008" / "JPEGImages", ["2008_000008.jpg", "2008_000012.jpg"])
    write(data / "ayahoo_test_images", ["bag_5.jpg"])
    values = " ".join("1" if index == 2 else "0" for index in range(attributes))
    lists = {
        "attribute_names.txt": "2D Boxy\n3D Boxy\n" + "".join(f"Has {index}\n" for index in range(2, 64)),
        "apascal_train.txt": f"2008_000008.jpg horse 53 87 471 420 {values}\n2008_000008.jpg person 1 1 9 8 {values}\n",
        "apascal_test.txt": f"2008_000012.jpg bus 71 84 252 168 {values}\n",
        "ayahoo_test.txt": f"bag_5.jpg bag 28 24 360 332 {values}\n",
    }
    write(data / "attribute_data", lists)


@pytest.mark.parametrize(
    ("name", "box"), [("uiuc-attributes", (70, 83, 252, 168)), ("uiuc-attributes-yahoo", (27, 23, 360, 332))]
)
def test_uiuc_has_64_attributes_of_objects_in_boxes(tmp_path, name, box):
    write_uiuc(tmp_path)
    task = load(tmp_path, name)
    assert isinstance(task, Attributes)
    assert (task.score, len(task.attributes), task.attributes[0]) == ("auc", 64, "2D Boxy")
    assert [picture.box for picture in task.train] == [(52, 86, 471, 420), (0, 0, 9, 8)]
    assert [picture.box for picture in task.test] == [box]
    assert task.test_labels.tolist() == [[-1, -1, 1] + [-1] * 61]
    assert task.train_labels.shape == (2, 64)


def test_a_line_that_ends_early_is_named(tmp_path):
    write_uiuc(tmp_path, attributes=63)
    with pytest.raises(DataError, match=r"line 1 of .*apascal_train.txt has 69 words instead of 70"):
        load(tmp_path, "uiuc-attributes")


def write_h3d(root, values="1 -1 0 NaN -1 1 1 1 -1", box="10.5 -3 20 40"):
    for part in ("train", "test"):
        folder = root / "h3d-attributes" / "attributes_dataset" / part
        write(folder, {"00001.jpg": "", "labels.txt": f"00001.jpg {box} {values}\n"})


def test_h3d_has_nine_attributes_of_people_of_which_some_are_unknown(tmp_path):
    write_h3d(tmp_path)
    task = load(tmp_path, "h3d-attributes")
    assert isinstance(task, Attributes)
    assert (task.score, task.attributes) == ("ap", ATTRIBUTES)
    assert task.train[0].box == (10.5, 0, 30.5, 37)
    assert task.train_labels.tolist() == task.test_labels.tolist() == [[1, -1, 0, 0, -1, 1, 1, 1, -1]]
    assert task.train[0].path.parent.name == "train"


@pytest.mark.parametrize(
    ("wrong", "complaint"),
    [
        ({"values": "1 2 0 0 0 0 0 0 0"}, "the label 2, which is not one of -1, 0, 1"),
        ({"values": "1 x 0 0 0 0 0 0 0"}, "something else instead of a number"),
        ({"box": "5 5 0 9"}, "the empty box 5 5 5 14"),
        ({"box": "nan 5 1 9"}, "the empty box"),
    ],
)
def test_labels_that_cannot_be_are_named(tmp_path, wrong, complaint):
    write_h3d(tmp_path, **wrong)
    with pytest.raises(DataError, match=f"labels.txt has {complaint}"):
        load(tmp_path, "h3d-attributes")


# Classes


def test_mit67_has_lists_of_its_parts(tmp_path):
    root = tmp_path / "mit67"
    write(root / "Images", ["gym/a b.jpg", "gym/c.jpg", "bar/a b.jpg", "bar/d.jpg", "bar/unused.jpg"])
    write(root, {"TrainImages.txt": "gym/a b.jpg\nbar/d.jpg", "TestImages.txt": "gym/c.jpg\nbar/a b.jpg\n"})
    task = load(tmp_path, "mit67")
    assert isinstance(task, Classification)
    assert task.classes == ("bar", "gym")
    assert (shown(task), shown(task, "test")) == ({"a b.jpg": 1, "d.jpg": 0}, {"c.jpg": 1, "a b.jpg": 0})
    (root / "TestImages.txt").write_text("kitchen/c.jpg\n")
    with pytest.raises(DataError, match=r"kitchen, which .*TestImages.txt lists, was not found"):
        load(tmp_path, "mit67")


def write_cub(root):
    folder = root / "cub200" / "CUB_200_2011"
    names = ["001.Albatross/A_1.jpg", "001.Albatross/A_2.jpg", "002.Auk/B_1.jpg", "002.Auk/B_2.jpg"]
    write(folder / "images", names)
    lists = {
        "images.txt": "".join(f"{number} {name}\n" for number, name in enumerate(names, 1)),
        "image_class_labels.txt": "1 1\n2 1\n3 2\n4 2\n",
        "train_test_split.txt": "1 0\n2 1\n3 1\n4 0\n",
        "classes.txt": "1 001.Albatross\n2 002.Auk\n",
    }
    write(folder, lists)
    return folder


def test_cub_has_a_list_of_its_split(tmp_path):
    write_cub(tmp_path)
    task = load(tmp_path, "cub200")
    assert task.classes == ("001.Albatross", "002.Auk")
    assert (shown(task), shown(task, "test")) == ({"A_2.jpg": 0, "B_1.jpg": 1}, {"A_1.jpg": 0, "B_2.jpg": 1})


def test_a_picture_without_a_class_is_named(tmp_path):
    folder = write_cub(tmp_path)
    (folder / "train_test_split.txt").write_text("1 0\n2 1\n")
    with pytest.raises(DataError, match=r"picture 3 has no class in image_class_labels.txt or no part in train_test_"):
        load(tmp_path, "cub200")


def write_flowers(root, labels=(2, 1, 1, 2, 1, 2)):
    scipy_io = pytest.importorskip("scipy.io")
    folder = root / "flowers102"
    write(folder / "jpg", [f"image_{number:05d}.jpg" for number in range(1, 7)])
    scipy_io.savemat(folder / "imagelabels.mat", {"labels": np.array([labels], dtype=np.uint8)})
    parts = {"trnid": [[6, 5]], "valid": [[1]], "tstid": [[2, 3, 4]]}
    scipy_io.savemat(folder / "setid.mat", {name: np.array(ids, dtype=np.uint16) for name, ids in parts.items()})
    return folder


def test_flowers_have_their_split_in_files_of_matlab(tmp_path):
    write_flowers(tmp_path)
    task = load(tmp_path, "flowers102")
    assert task.classes == ("1", "2")
    assert shown(task) == {"image_00006.jpg": 1, "image_00005.jpg": 0, "image_00001.jpg": 1}
    assert shown(task, "test") == {"image_00002.jpg": 0, "image_00003.jpg": 0, "image_00004.jpg": 1}


def test_damaged_files_of_matlab_are_named(tmp_path):
    folder = write_flowers(tmp_path, labels=(1, 2))
    with pytest.raises(DataError, match=r"imagelabels.mat has 2 labels, fewer than setid.mat has pictures"):
        load(tmp_path, "flowers102")
    write_flowers(tmp_path, labels=(1, 2, 0, 1, 2, 1))
    with pytest.raises(DataError, match=r"imagelabels.mat or setid.mat has a number below 1"):
        load(tmp_path, "flowers102")
    (folder / "imagelabels.mat").write_bytes(b"<html>not found</html>" * 20)
    with pytest.raises(DataError, match=r"imagelabels.mat is damaged or has no labels"):
        load(tmp_path, "flowers102")


@pytest.mark.parametrize("name", ["cub200", "flowers102", "scene15"])
def test_copies_with_train_and_test_folders_are_read_and_val_is_for_training(tmp_path, name):
    files = ["train/001/1.webp", "train/002/2.webp", "val/002/3.webp", "test/001/4.webp", "test/002/5.webp"]
    write(tmp_path / name, files)
    task = load(tmp_path, name)
    assert task.classes == ("001", "002")
    assert shown(task) == {"1.webp": 0, "2.webp": 1, "3.webp": 1}
    assert shown(task, "test") == {"4.webp": 0, "5.webp": 1}


def test_scenes_may_be_called_otherwise_in_train_and_test(tmp_path):
    write(tmp_path / "scene15", ["train/Bedroom/1.jpg", "train/Coast/2.jpg", "test/coast/3.jpg", "test/bedroom/4.jpg"])
    task = load(tmp_path, "scene15")
    assert task.classes == ("Bedroom", "Coast")
    assert shown(task, "test") == {"3.jpg": 1, "4.jpg": 0}


@pytest.mark.parametrize(
    ("name", "folder", "each"), [("scene15", "scene_categories", 100), ("caltech101", "101_ObjectCategories", 30)]
)
def test_sets_without_a_split_train_on_so_many_pictures_a_class(tmp_path, name, folder, each):
    some = [f"{kind}/image_{number:04d}.jpg" for kind in ("ant", "yin_yang") for number in range(each + 3)]
    background = ["BACKGROUND_Google/image_0001.jpg"] if name == "caltech101" else []
    write(tmp_path / name / folder, some + background)
    task = load(tmp_path, name)
    assert task.classes == ("ant", "yin_yang")
    assert np.bincount(task.train_labels).tolist() == [each, each]
    assert np.bincount(task.test_labels).tolist() == [3, 3]
    assert {*task.train}.isdisjoint(task.test)
    for number in range(3):
        (tmp_path / name / folder / f"ant/image_{number:04d}.jpg").unlink()
    with pytest.raises(DataError, match=f"{each} pictures of the class ant were found where more than {each} are"):
        load(tmp_path, name)


def test_pacs_is_tested_on_the_domain_that_is_not_trained_on(tmp_path):
    domains = ("photo", "art_painting", "cartoon", "sketch")
    write(tmp_path / "pacs", [f"{domain}/{kind}/{domain}.jpg" for domain in domains for kind in ("dog", "horse")])
    for name, tested in zip(("photo", "art", "cartoon", "sketch"), domains, strict=True):
        task = load(tmp_path, f"pacs-{name}")
        assert task.classes == ("dog", "horse")
        assert {picture.path.stem for picture in task.test} == {tested}
        assert {picture.path.stem for picture in task.train} == {*domains} - {tested}
        for pictures, labels in ((task.train, task.train_labels), (task.test, task.test_labels)):
            assert [task.classes[label] for label in labels] == [picture.path.parent.name for picture in pictures]


@pytest.mark.parametrize("folder", ["imagenette", "imagenette2-320"])
def test_imagenette_has_names_for_its_classes(tmp_path, folder):
    write(tmp_path / folder, [f"{part}/n0{n}/a.JPEG" for part in ("train", "val") for n in (1440764, 2102040)])
    assert load(tmp_path, "imagenette").classes == ("tench", "English springer")


# Retrieval


def write_buildings(root, name, prefix, pictures):
    write(root / name / "jpg", [f"{picture}.jpg" for picture in pictures])
    one, two, three, four, *_ = (picture.rpartition("/")[2] for picture in pictures)
    lists = {"query": f"{prefix}{one} 1.5 2 30.5 40\n", "good": f"{one}\n{two}\n", "ok": f"{three}\n", "junk": four}
    write(root / name / "gt_files", {f"some_place_1_{kind}.txt": text for kind, text in lists.items()})


def test_oxford_has_good_ok_and_junk_pictures(tmp_path):
    names = ["all_souls_000013", "all_souls_000026", "oxford_002985", "all_souls_000051", "oxford_003410"]
    write_buildings(tmp_path, "oxford5k", "oxc1_", names)
    task = load(tmp_path, "oxford5k")
    assert isinstance(task, Retrieval)
    assert (task.score, len(task.pictures), len(task.queries)) == ("ap", 5, 1)
    [query] = task.queries
    assert (query.picture.path.stem, query.picture.box) == (names[0], (1.5, 2, 30.5, 40))
    assert found(task, query) == ({*names[:3]}, {names[3]})
    assert all(picture.box is None for picture in task.pictures)


def test_paris_has_subfolders_and_damaged_pictures_are_left_out(tmp_path):
    damaged = "louvre/paris_louvre_000136"
    names = [f"defense/paris_defense_00000{number}" for number in range(3)] + [damaged]
    write_buildings(tmp_path, "paris6k", "", names)
    task = load(tmp_path, "paris6k")
    assert len(task.pictures) == 3
    assert found(task, task.queries[0]) == ({name.rpartition("/")[2] for name in names[:3]}, set())
    assert len(CORRUPT) == 20


def test_pictures_of_the_ground_truth_that_are_missing_are_counted(tmp_path):
    write_buildings(tmp_path, "oxford5k", "oxc1_", ["a_1", "a_2", "a_3", "a_4"])
    (tmp_path / "oxford5k" / "jpg" / "a_2.jpg").unlink()
    with pytest.raises(DataError, match=r"1 of 2 pictures of .*some_place_1_good.txt were found, a_2 was not"):
        load(tmp_path, "oxford5k")
    (tmp_path / "oxford5k" / "jpg" / "a_1.jpg").unlink()
    with pytest.raises(DataError, match=r"a_1, which .*query.txt lists, was not found"):
        load(tmp_path, "oxford5k")


def test_sculptures_have_four_lines_for_each_query(tmp_path):
    names = ["Moore_0001", "Moore_0002", "Rodin_0001", "Rodin_0002"]
    write(tmp_path / "sculptures6k" / "test", [f"{name}.jpg" for name in names])
    first = "Moore_0001.jpg\n10 20 110 220\nMoore_0001.jpg Moore_0002.jpg\nRodin_0001.jpg\n"
    text = f"2\n{first}Rodin_0002\nwhole\nRodin_0001 Rodin_0002\n\n"
    path = tmp_path / "sculptures6k" / "sculptures6k_evaluation" / "sculptures6k_gt.txt"
    write(path.parent, {path.name: text})
    task = load(tmp_path, "sculptures6k")
    assert [query.picture.box for query in task.queries] == [(10, 20, 110, 220), None]
    assert found(task, task.queries[0]) == ({"Moore_0001", "Moore_0002"}, {"Rodin_0001"})
    assert found(task, task.queries[1]) == ({"Rodin_0001", "Rodin_0002"}, set())
    path.write_text(f"2\n{first}Rodin_0002\n")
    with pytest.raises(DataError, match="has 5 lines after the first, which must be four a query"):
        load(tmp_path, "sculptures6k")


def test_holidays_are_searched_for_the_others_of_a_group(tmp_path):
    numbers = (100000, 100001, 100002, 100100, 100101)
    write(tmp_path / "holidays" / "jpg", [f"{number}.jpg" for number in numbers])
    task = load(tmp_path, "holidays")
    assert (task.score, len(task.pictures)) == ("ap", 5)
    assert [query.picture.path.stem for query in task.queries] == ["100000", "100100"]
    assert found(task, task.queries[0]) == ({"100001", "100002"}, {"100000"})
    assert found(task, task.queries[1]) == ({"100101"}, {"100100"})
    for lost in ("100101", "100000"):
        (tmp_path / "holidays" / "jpg" / f"{lost}.jpg").unlink()
        with pytest.raises(DataError, match=rf"of the pictures {lost[:4]}\*.jpg were found where {lost[:4]}00.jpg"):
            load(tmp_path, "holidays")
        write(tmp_path / "holidays" / "jpg", [f"{lost}.jpg"])


def test_every_picture_of_ukbench_is_a_query_that_should_find_itself_too(tmp_path):
    write(tmp_path / "ukbench" / "full", [f"ukbench{number:05d}.jpg" for number in range(8)])
    task = load(tmp_path, "ukbench")
    assert (task.score, len(task.queries)) == ("recall@4", 8)
    for index, query in enumerate(task.queries):
        start = index // 4 * 4
        assert query == (task.pictures[index], set(range(start, start + 4)), set())
    (tmp_path / "ukbench" / "full" / "ukbench00006.jpg").unlink()
    with pytest.raises(DataError, match=r"7 of 8 pictures were found, ukbench00006.jpg was not"):
        load(tmp_path, "ukbench")


def test_test_pictures_can_be_searched_by_class(tmp_path):
    names = ["train/a/1.jpg", "train/b/1.jpg", "train/c/1.jpg", "test/a/2.jpg", "test/a/3.jpg", "test/a/4.jpg"]
    write(tmp_path, [*names, "test/b/5.jpg", "test/b/6.jpg", "test/c/7.jpg"])
    classes = find(tmp_path).load(tmp_path)
    for score in ("ap", "recall@4"):
        task = by_class(classes, score)
        assert task.score == score
        assert task.pictures == classes.test
        assert found(task, task.queries[1]) == ({"2", "4"}, {"3"})
        assert found(task, task.queries[4]) == ({"5"}, {"6"})
        assert len(task.queries) == 5  # 7.jpg is alone in its class


# Folders


def test_a_folder_of_classes_is_split_in_halves_that_stay(tmp_path):
    write(tmp_path, [f"{kind}/{number}.jpg" for kind in ("ant", "bee") for number in range(9)])
    task, again = find(str(tmp_path)).load(tmp_path), find(tmp_path).load(tmp_path / "elsewhere")
    assert np.bincount(task.train_labels).tolist() == [5, 5]
    assert np.bincount(task.test_labels).tolist() == [4, 4]
    assert (task.train, task.test) == (again.train, again.test)
    assert {*task.train}.isdisjoint(task.test)


def test_a_relative_path_is_a_task_wherever_the_root_is(tmp_path, monkeypatch):
    write(tmp_path / "mine", ["train/a/1.jpg", "train/b/2.jpg", "val/a/3.jpg", "val/b/4.jpg"])
    monkeypatch.chdir(tmp_path)
    entry = find("mine")
    assert (entry.name, entry.title) == ("mine", "mine")
    assert shown(entry.load(tmp_path / "root"), "test") == {"3.jpg": 0, "4.jpg": 1}


@pytest.mark.parametrize(
    ("files", "complaint"),
    [
        ([], "the folder is empty"),
        (["1.jpg"], "it has no classes"),
        (["a/1.jpg", "a/2.jpg"], 'it has one class only, "a"'),
        (["a/1.jpg", "b/1.jpg"], "the training or the test part has no pictures"),
        (["a/1.jpg", "b/notes.txt"], r"b has no pictures \(.*\), its files are .txt"),
        (["train/a/1.jpg", "train/b/1.jpg", "test/c/1.jpg"], 'test has a class "c" that is not in train'),
    ],
)
def test_a_folder_that_is_no_task_is_one_sentence(tmp_path, files, complaint):
    write(tmp_path, files)
    with pytest.raises(
        DataError, match=f"a folder of classes was expected in .*, but .*{complaint}: add what is missi"
    ):
        find(tmp_path).load(tmp_path)


def test_names_are_found_and_mistyped_ones_suggested(tmp_path):
    assert find("cub200") is TRANSFER_SETS["cub200"]
    with pytest.raises(ValueError, match='there is no task "cub20": did you mean "cub200"'):
        find("cub20")
    with pytest.raises(ValueError, match="nothing is not a folder: give one with a folder of pictures for each class"):
        find(tmp_path / "nothing")


@pytest.mark.parametrize(("measure", "score"), [("mAP", "ap"), ("recall@4", "recall@4")])
def test_a_measure_after_the_name_searches_the_test_pictures_by_class(tmp_path, measure, score):
    write(
        tmp_path / "pets", [f"{part}/{name}/{i}.png" for part in ("train", "test") for name in "ab" for i in range(3)]
    )
    entry = find(f"{tmp_path / 'pets'}:{measure}")
    task = entry.load(tmp_path)
    assert entry.name.casefold().endswith(f"pets:{measure}".casefold())
    assert (task.score, len(task.pictures), len(task.queries)) == (score, 6, 6)
    assert (task.queries[0].relevant, task.queries[0].ignored) == ({1, 2}, {0})
    assert find("cub200:MAP").name == "cub200:mAP"


def test_a_set_without_classes_cannot_be_searched_by_class(tmp_path):
    write_voc(tmp_path)
    with pytest.raises(DataError, match="voc2007:mAP cannot be searched by class"):
        find("voc2007:mAP").load(tmp_path)
    with pytest.raises(ValueError, match='there is no task "cub20": did you mean "cub200"'):
        find("cub20:mAP")


def test_archives_that_are_only_unpacked_are_found(tmp_path):
    write(tmp_path / "101_ObjectCategories", [f"{name}/{i:02}.jpg" for name in "ab" for i in range(32)])
    task = load(tmp_path, "caltech101")
    assert (task.classes, len(task.train), len(task.test)) == (("a", "b"), 60, 4)
    write(tmp_path / "PACS", [f"{domain}/dog/1.png" for domain in ("photo", "art_painting", "cartoon", "sketch")])
    write(tmp_path / "PACS", [f"{domain}/cat/1.png" for domain in ("photo", "art_painting", "cartoon", "sketch")])
    assert len(load(tmp_path, "pacs-art").train) == 6
