"""A folder of pictures goes from training to file to answers, with its own number of classes."""

import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

import secateur
from secateur.data import Scaling, load_folder, read_picture
from secateur.experiments.evaluate import evaluate
from secateur.experiments.images import load_images
from secateur.experiments.presets import preset
from secateur.experiments.runner import run
from secateur.files import describe_inputs, read_inputs
from secateur.job import InputConfig
from secateur.methods import Manessi2018
from secateur.run.predict import predict
from secateur.train.journal import read_log
from secateur.train.recipe import Recipe

Image = pytest.importorskip("PIL.Image", reason="Pillow is not installed")


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    """Sixty pictures of three classes: bright on the left, in the middle, or on the right."""
    folder, noise = tmp_path_factory.mktemp("photos"), np.random.default_rng(0)
    for number, name in enumerate(("left", "middle", "right")):
        (folder / name).mkdir()
        for index in range(40):
            pixels = noise.integers(0, 60, (40, 42, 3), dtype=np.uint8)
            pixels[:, 14 * number : 14 * (number + 1)] += 180
            Image.fromarray(pixels).save(folder / name / f"{index}.png")
    return folder


@pytest.fixture(scope="module")
def finished(photos, tmp_path_factory):
    torch.set_num_threads(1)
    job = preset("paper", "lenet-5", data=str(photos))
    job = replace(job, methods=(Manessi2018(rho=0.2),), recipe=Recipe(epochs=8, batch_size=16))
    return run(job, tmp_path_factory.mktemp("runs"))


def test_a_network_is_built_for_the_classes_of_the_folder(finished):
    result = finished.read_result()
    network = secateur.load(finished.file)
    assert (network.classes, network.input_shape) == (3, (1, 28, 28))
    assert result.error < 20
    assert evaluate(finished).error < 20


def test_answers_have_the_names_of_the_folders(finished, photos):
    answers = predict(finished.file, [photos / name / "0.png" for name in ("left", "right")], top=1)
    assert [answer.guesses[0].name for answer in answers] == ["left", "right"]


def test_a_run_of_a_folder_is_named_after_it(finished, photos):
    assert finished.path.name.startswith(f"lenet-5-{photos.name}-paper-manessi2018-")


@pytest.fixture(scope="module")
def cropped(photos, tmp_path_factory):
    """A run with AlexNet's crops, of pictures one of which cannot be read."""
    torch.set_num_threads(1)
    folder = tmp_path_factory.mktemp("damaged") / "photos"
    shutil.copytree(photos, folder)
    files = load_folder(folder, "train", (1, 28, 28), crop="alexnet").places
    Path(files[5].path).write_bytes(b"\xff\xd8\xff")
    inputs = InputConfig(crop="alexnet", scaling="standard")
    job = replace(preset("paper", "lenet-5", data=str(folder)), methods=(Manessi2018(rho=0.2),), inputs=inputs)
    with pytest.warns(UserWarning, match="a picture is replaced by the next one"):
        return run(replace(job, recipe=Recipe(epochs=3, batch_size=16, lr=3e-3)), tmp_path_factory.mktemp("runs"))


def test_the_log_names_pictures_that_could_not_be_read(cropped):
    [log] = cropped.logs()
    lines = list(read_log(log))
    assert [len(line["unreadable"]) for line in lines] == [1, 1, 1]
    assert lines[0]["unreadable"][0].startswith(str(cropped.read_job().data))


def test_pictures_that_are_left_out_of_memory_are_named_too(photos, tmp_path):
    shutil.copytree(photos, tmp_path / "photos")
    bad = load_folder(tmp_path / "photos", "train", (1, 28, 28), memory_bytes=0).places[5].path
    Path(bad).write_bytes(b"text")
    with pytest.warns(UserWarning, match="a picture is left out"):
        images = load_images(preset("paper", "lenet-5", data=str(tmp_path / "photos")), None)
    [reason] = images.faults["unreadable"]
    assert reason.startswith(f"{bad} is not a picture")


def test_a_file_says_how_its_pictures_are_cut(cropped, finished):
    assert read_inputs(cropped.file).crop == "alexnet"
    assert read_inputs(finished.file).crop == "centre"
    assert "crop" not in describe_inputs(Scaling(), "photos", ("a", "b"), crop="shift-flip")
    assert describe_inputs(Scaling(), "cifar10", ("a", "b"), crop="shift-flip") == {
        "data": "cifar10",
        **Scaling().as_text(),
    }


def test_pictures_are_classified_by_their_centre_as_in_the_evaluation(cropped, photos):
    [answer] = predict(cropped.file, [photos / "left" / "0.png"], top=3)
    with (photos / "left" / "0.png").open("rb") as file:
        pixels = read_picture(file, "0.png", (1, 28, 28), crop="alexnet")
    expected = secateur.load(cropped.file).eval()(read_inputs(cropped.file).scaling(pixels[None])).softmax(1)[0]
    found = {guess.label: guess.probability for guess in answer.guesses}
    assert [found[label] for label in range(3)] == pytest.approx(expected.tolist(), abs=1e-4)
