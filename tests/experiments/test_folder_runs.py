"""A folder of pictures goes from training to file to answers, with its own number of classes."""

from dataclasses import replace

import numpy as np
import pytest
import torch

import secateur
from secateur.experiments.evaluate import evaluate
from secateur.experiments.presets import preset
from secateur.experiments.runner import run
from secateur.methods import Manessi2018
from secateur.run.predict import predict
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
