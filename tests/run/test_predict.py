"""From a file and pictures to answers, in Python and on the command line."""

import io
import json
import os
import re
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from commands import sentence

import secateur
from secateur import data, networks
from secateur.run import predict as predicting
from secateur.run.predict import predict

Image = pytest.importorskip("PIL.Image")
METADATA = {"mean": "0.25", "std": "0.5", "data": "digits"}


@pytest.fixture(autouse=True)
def _in_a_directory_with_a_network(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    secateur.save(brightest_band(), "model.cut", metadata=METADATA)


def brightest_band():
    """LeNet-300-100 that sums the pixels of ten bands, each of 2 rows, through ten units: the brightest wins."""
    model = networks.build("lenet-300-100", seed=0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
        for band in range(10):
            model.fc1.weight[band, 56 * band : 56 * (band + 1)] = 0.125
            model.fc1.bias[band] = 4.0  # black pixels are −0.5: without it their sum is cut off
            model.fc2.weight[band, band] = model.fc3.weight[band, band] = 1.0
    return model


def picture(path, band, level=255, background=0):
    pixels = np.full((28, 28), background, np.uint8)
    pixels[2 * band : 2 * band + 2] = level
    Image.fromarray(pixels).save(path)
    return Path(path)


def labels(answers):
    return [answer.guesses[0].label for answer in answers]


@pytest.mark.parametrize("name", ["lenet-300-100", "lenet-5"])
def test_probabilities_are_the_softmax_of_what_the_network_says(name):
    secateur.save(networks.build(name, seed=0), "model.cut", metadata=METADATA)
    [answer] = predict(Path("model.cut"), [picture("7.png", 7, level=60)], top=10)
    pixels = torch.zeros(1, 1, 28, 28, dtype=torch.uint8)
    pixels[:, :, 14:16] = 60
    wanted = secateur.load("model.cut")(data.Scaling((0.25,), (0.5,))(pixels)).softmax(1)[0]
    assert answer.picture == "7.png"
    assert answer.guesses[0].label == wanted.argmax()
    assert sorted(guess.label for guess in answer.guesses) == list(range(10))
    for guess in answer.guesses:
        assert guess.probability == pytest.approx(wanted[guess.label].item(), rel=1e-5)


def test_a_name_that_is_no_text_is_spelled_out():
    for name, band in ((b"a\xff.png", 3), (b"b.png", 7)):
        picture("plain.png", band).rename(os.fsdecode(name))
    answers = [*predict(Path("model.cut"), [Path()])]
    assert [answer.picture for answer in answers] == ["a\\xff.png", "b.png"]
    assert labels(answers) == [3, 7]


def test_the_likeliest_classes_come_first_and_no_more_than_asked_for():
    [answer] = predict(Path("model.cut"), [picture("7.png", 7)], top=2)
    assert len(answer.guesses) == 2
    assert answer.guesses[0].probability > answer.guesses[1].probability
    [answer] = predict(Path("model.cut"), [Path("7.png")], top=50)
    assert len(answer.guesses) == 10


@pytest.mark.parametrize("batch", [1, 3, 64])
def test_the_batch_changes_no_answer(batch):
    pictures = [picture(f"{band}.png", band) for band in (4, 1, 9, 9, 0, 2, 7)]
    assert labels(predict(Path("model.cut"), pictures, batch=batch)) == [4, 1, 9, 9, 0, 2, 7]


def test_a_folder_is_answered_by_name_and_in_batches(monkeypatch):
    Path("folder").mkdir()
    for name, band in (("b.png", 2), ("a.png", 5), ("c.png", 8)):
        picture(f"folder/{name}", band)
    seen, network = [], predicting.load_sparse(Path("model.cut"))
    network.register_forward_pre_hook(lambda _, args: seen.append(len(args[0])))
    monkeypatch.setattr(predicting, "load_sparse", lambda path, *, batch, trust: network)
    answers = list(predict(Path("model.cut"), [Path("folder")], batch=2))
    assert [answer.picture for answer in answers] == ["folder/a.png", "folder/b.png", "folder/c.png"]
    assert labels(answers) == [5, 2, 8]
    assert seen == [2, 1]


def test_only_one_batch_is_read_ahead(monkeypatch):
    read = []
    monkeypatch.setattr(
        data, "read_picture", lambda file, name, *_, **__: (read.append(name), torch.zeros(1, 28, 28).byte())[1]
    )
    answers = predict(Path("model.cut"), [picture("1.png", 1)] * 10, batch=4)
    next(answers)
    assert len(read) == 4


def test_one_bad_picture_leaves_the_others_answered(command):
    Path("folder").mkdir()
    picture("folder/a.png", 3)
    Path("folder/b.png").write_bytes(b"no picture")
    picture("folder/c.png", 6)
    code, printed, complained = command("predict", "model.cut", "folder", "nowhere.png", "--top", "1")
    assert code == 1
    assert [line.split(" (")[0] for line in printed.splitlines()] == ["folder/a.png: 3", "folder/c.png: 6"]
    first, second = complained.splitlines()
    assert first.startswith("secateur: folder/b.png is not a picture, or only")
    assert second == "secateur: nowhere.png cannot be read: No such file or directory"


def test_an_answer_is_a_line(command):
    picture("7.png", 7)
    code, printed, complained = command("predict", "model.cut", "7.png")
    assert (code, complained) == (0, "")
    assert re.fullmatch(r"7\.png: 7 \(\d+\.\d %\), \d \(\d\.\d %\), \d \(\d\.\d %\)\n", printed)


def test_json_is_one_list_of_all_answers(command):
    picture("7.png", 7)
    code, printed, _ = command("predict", "model.cut", "7.png", "nowhere.png", "--json", "--top", "1")
    first, second = json.loads(printed)
    assert code == 1
    assert (first["picture"], first["failure"], first["guesses"][0]["label"]) == ("7.png", None, 7)
    assert 0 < first["guesses"][0]["probability"] <= 1
    assert (second["picture"], second["guesses"]) == ("nowhere.png", [])
    assert second["failure"].startswith("nowhere.png cannot be read")


def test_ink_on_paper_is_answered_once_inverted(command):
    picture("ink.png", 4, level=0, background=255)
    assert command("predict", "model.cut", "ink.png", "--top", "1", "--invert")[1].startswith("ink.png: 4")
    assert not command("predict", "model.cut", "ink.png", "--top", "1")[1].startswith("ink.png: 4")


def test_a_picture_is_taken_from_standard_input(command, monkeypatch):
    content = picture("7.png", 7).read_bytes()
    monkeypatch.setattr("sys.stdin", SimpleNamespace(buffer=io.BytesIO(content)))
    code, printed, _ = command("predict", "model.cut", "-")
    assert (code, printed[:17]) == (0, "standard input: 7")


def test_standard_input_without_end_is_refused(command, monkeypatch):
    monkeypatch.setattr(predicting, "_MOST_BYTES", 10)
    monkeypatch.setattr("sys.stdin", SimpleNamespace(buffer=io.BytesIO(bytes(11))))
    code, _, complained = command("predict", "model.cut", "-")
    assert code == 1
    assert sentence(complained) == "standard input brings more than the 10 bytes that are read: give a file"


def test_a_folder_without_pictures_is_a_failure(command):
    Path("folder").mkdir()
    Path("folder/notes.txt").touch()
    code, _, complained = command("predict", "model.cut", "folder")
    assert code == 1
    assert sentence(complained).startswith("folder is a folder without pictures (.png, .jpg")


def test_classes_are_called_by_name():
    secateur.save(brightest_band(), "model.cut", metadata=METADATA | {"data": "fashion-mnist"})
    [answer] = predict(Path("model.cut"), [picture("7.png", 7)], top=1)
    assert str(answer).startswith("7.png: sneaker (")


def test_a_network_that_answers_nothing_is_a_failure():
    model = brightest_band()
    with torch.no_grad():
        model.fc3.bias.fill_(float("nan"))
    secateur.save(model, "model.cut", metadata=METADATA)
    [answer] = predict(Path("model.cut"), [picture("7.png", 7)])
    assert answer.failure == "7.png gives NaN: the network's weights are broken"


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (("model.cut",), "no picture was given: secateur predict --help"),
        (("model.cut", "7.png", "--top", "0"), "top must be ≥ 1, got 0"),
        (("model.cut", "7.png", "--batch", "0"), "batch must be ≥ 1, got 0"),
        (("model.cut", "7.png", "--tpo", "1"), 'there is no flag "--tpo": did you mean "--top"?'),
    ],
)
def test_wrong_usage_is_told_apart(command, words, complaint):
    code, printed, complained = command("predict", *words)
    assert (code, printed, sentence(complained)) == (2, "", complaint)


def unscaled():
    secateur.save(brightest_band(), "other.cut")


def unnamed():
    Path("other.cut").write_bytes(secateur.encode.to_bytes(brightest_band().state_dict(), metadata=METADATA))


def strange():
    secateur.save(brightest_band(), "other.cut", architecture=("package.module:Class", {}), metadata=METADATA)


@pytest.mark.parametrize(
    ("make", "complaint"),
    [
        (lambda: None, "other.cut: No such file or directory"),
        (lambda: Path("other.cut").write_bytes(b"text"), "other.cut: byte 0: this is not a .cut file"),
        (unscaled, "other.cut does not say how its inputs are scaled"),
        (unnamed, "other.cut does not say which network it holds: predict runs lenet-300-100, lenet-5, "),
        (strange, "other.cut names package.module:Class, which is not one of our networks, and nothing was imported"),
    ],
)
def test_a_file_that_cannot_answer_is_a_failure(command, make, complaint):
    make()
    code, printed, complained = command("predict", "other.cut", str(picture("7.png", 7)))
    assert (code, printed) == (1, "")
    assert sentence(complained).startswith(complaint)


def test_a_missing_pillow_is_told_once(command, monkeypatch):
    monkeypatch.setitem(sys.modules, "PIL", None)
    code, _, complained = command("predict", "model.cut", "a.png", "b.png")
    assert code == 1
    assert sentence(complained) == "pictures are read by Pillow, which is not installed: pip install 'secateur[vision]'"
