"""How a finished network answers the validation images: counts by class, and the images that it gets wrong."""

import base64

import pytest
import torch

from secateur.data import ImageSet
from secateur.experiments.answers import describe_answers
from secateur.measure import Answers, answers_of_batches, error_rate
from secateur.results import AnswersResult, Mistake

LABELS = torch.tensor([0, 0, 1, 2, 2, 2])


def images(height=4, width=4, channels=1):
    """Six images, each of one brightness."""
    pixels = torch.arange(6, dtype=torch.uint8).mul(40).reshape(6, 1, 1, 1).expand(6, channels, height, width)
    return ImageSet(pixels, LABELS, ("cat", "dog", "owl"))


def answers(*given):
    return Answers(torch.tensor(given), LABELS)


def brightness(result):
    """The first pixel of every image that is kept."""
    return [base64.b64decode(mistake.pixels)[0] // 40 for mistake in result.mistakes]


def test_wrong_answers_are_counted_by_class():
    result = describe_answers(images(), answers(0, 1, 1, 0, 2, 0))
    assert result.classes == ("cat", "dog", "owl")
    assert (result.images, result.wrong, result.dense_wrong) == ((2, 1, 3), (1, 0, 2), ())


def test_without_a_dense_network_every_mistake_is_shown():
    result = describe_answers(images(), answers(0, 1, 1, 0, 2, 0))
    assert brightness(result) == [1, 3, 5]
    assert [(mistake.label, mistake.answer) for mistake in result.mistakes] == [(0, 1), (2, 0), (2, 0)]


def test_with_a_dense_network_only_mistakes_that_it_does_not_make_are_shown():
    result = describe_answers(images(), answers(0, 1, 1, 0, 2, 0), answers(1, 1, 1, 2, 2, 1))
    assert (brightness(result), result.lost) == ([3], 1)
    assert result.dense_wrong == (2, 0, 1)


def test_a_network_without_mistakes_has_none_to_show():
    result = describe_answers(images(), Answers(LABELS, LABELS))
    assert (sum(result.wrong), result.mistakes) == (0, ())


@pytest.mark.parametrize(("channels", "shape"), [(1, (1, 24, 48)), (3, (3, 24, 48)), (2, (1, 24, 48))])
def test_large_images_become_small_and_keep_their_proportions(channels, shape):
    result = describe_answers(images(60, 120, channels), answers(1, 0, 1, 2, 2, 2))
    assert result.shape == shape
    assert brightness(result) == [0]


def test_the_error_of_answers_is_the_error_rate_and_nan_is_no_answer():
    class Scores(torch.nn.Module):
        def forward(self, inputs):
            return inputs

    scores = torch.eye(3)[LABELS]
    scores[1, 2], scores[4] = torch.nan, torch.tensor([1.0, 0.0, 0.0])
    found = answers_of_batches(Scores(), [(scores[:4], LABELS[:4]), (scores[4:], LABELS[4:])])
    assert found.given.tolist() == [0, -1, 1, 2, 0, 2]
    assert found.error == error_rate(Scores(), scores, LABELS) == pytest.approx(100 / 3)


@pytest.mark.parametrize(
    "damage",
    [
        {"wrong": (1,)},
        {"mistakes": (Mistake(pixels="AA==", label=2, answer=0),)},
        {"mistakes": (Mistake(pixels="AAAA", label=1, answer=0),)},
    ],
)
def test_counts_and_images_that_do_not_fit_are_refused(damage):
    whole = {"classes": ("a", "b"), "images": (1, 1), "wrong": (0, 1), "shape": (1, 1, 1)}
    with pytest.raises(ValueError, match=r"must have|mistake"):
        AnswersResult(**{**whole, **damage})
