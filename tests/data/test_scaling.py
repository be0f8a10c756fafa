"""From bytes to inputs, and the scaling in the header of a file."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tiny_set import random_bytes

from secateur.data import ImageSet, Scaling, split_validation
from secateur.data import images as module


def of(pixels: torch.Tensor) -> ImageSet:
    return ImageSet(pixels, torch.zeros(len(pixels), dtype=torch.int64))


def grey(levels: list[int]) -> ImageSet:
    return of(torch.tensor(levels, dtype=torch.uint8).view(-1, 1, 1, 1))


def test_unit_scaling_divides_by_255():
    levels = torch.arange(256).to(torch.uint8)
    assert torch.equal(Scaling.fit(grey(levels.tolist()), "unit")(levels), torch.arange(256) / 255)


@given(levels=st.lists(st.integers(0, 255), min_size=2).filter(lambda values: len(set(values)) > 1))
def test_standard_scaling_gives_mean_0_and_variance_1(levels):
    images = grey(levels)
    inputs = Scaling.fit(images, "standard")(images.images)
    assert inputs.dtype == torch.float32
    torch.testing.assert_close(inputs.mean(), torch.tensor(0.0), atol=1e-3, rtol=0)
    torch.testing.assert_close(inputs.std(correction=0), torch.tensor(1.0), atol=1e-3, rtol=0)


def test_levels_are_pixels_less_the_mean_of_their_channel():
    images = of(torch.tensor([[[[10]], [[0]]], [[[30]], [[255]]]], dtype=torch.uint8))
    inputs = Scaling.fit(images, "levels")(images.images)
    torch.testing.assert_close(inputs.flatten(1), torch.tensor([[-10.0, -127.5], [10.0, 127.5]]))


@given(seed=st.integers(0, 99), channels=st.integers(1, 4))
def test_every_channel_has_its_own_standard_scaling(seed, channels):
    generator = torch.Generator().manual_seed(seed)
    pixels = torch.randint(256, (20, channels, 5, 4), generator=generator) // torch.arange(1, 2 * channels, 2).view(
        -1, 1, 1
    )
    images = of(pixels.to(torch.uint8))
    scaling = Scaling.fit(images, "standard")
    assert len(scaling.mean) == len(scaling.std) == channels
    inputs = scaling(images.images).transpose(0, 1).flatten(1)
    torch.testing.assert_close(inputs.mean(1), torch.zeros(channels), atol=1e-4, rtol=0)
    torch.testing.assert_close(inputs.std(1, correction=0), torch.ones(channels), atol=1e-4, rtol=0)


def test_one_channel_is_scaled_by_plain_numbers_to_the_last_bit():
    pixels, mean, std = random_bytes(40, 1, 28, 28), 0.1306604762738429, 0.30810780385646264
    inputs = Scaling((mean,), (std,))(pixels)
    assert torch.equal(inputs, pixels.to(torch.float32).div_(255).sub_(mean).div_(std))


@pytest.mark.parametrize("chunk_bytes", [1, 50, 1 << 24])
def test_statistics_come_from_exact_sums_however_images_are_read(monkeypatch, chunk_bytes):
    images = of(random_bytes(60, 3, 5, 5))
    monkeypatch.setattr(module, "_CHUNK_BYTES", chunk_bytes)
    scaling = Scaling.fit(split_validation(images, 10)[0], "standard")
    for channel in range(3):
        share = torch.bincount(images.images[:50, channel].flatten(), minlength=256).double() / (50 * 25)
        level = torch.arange(256, dtype=torch.float64) / 255
        mean = torch.dot(share, level)
        assert scaling.mean[channel] == mean.item()
        assert scaling.std[channel] == torch.dot(share, (level - mean).square()).sqrt().item()


def test_a_single_pair_serves_all_channels():
    pixels = random_bytes(2, 3, 4, 4)
    assert torch.equal(Scaling((0.5,), (0.25,))(pixels), Scaling((0.5,) * 3, (0.25,) * 3)(pixels))


def test_scaling_leaves_the_images_as_they_were():
    images = of(random_bytes(3, 2, 2, 2))
    before = images.images.clone()
    Scaling.fit(images, "standard")(images.images)
    assert torch.equal(images.images, before)


@pytest.mark.parametrize("shape", [(2, 1, 4, 4), (3,), (2, 3, 4), (2, 4, 4, 3)])
def test_images_of_other_channels_are_refused(shape):
    with pytest.raises(ValueError, match="a scaling of 3 channels takes images of as many, got shape"):
        Scaling((0.1, 0.2, 0.3), (1.0, 1.0, 1.0))(torch.zeros(shape, dtype=torch.uint8))


@pytest.mark.parametrize(
    "images", [of(random_bytes(0, 1, 2, 2)), grey([9] * 5), of(torch.tensor([[[[1]], [[9]]], [[[2]], [[9]]]]).byte())]
)
def test_images_of_one_level_have_no_standard_scaling(images):
    with pytest.raises(ValueError, match="use 'unit'"):
        Scaling.fit(images, "standard")


def test_an_unknown_kind_is_refused():
    with pytest.raises(ValueError, match="kind must be one of 'unit', 'standard', 'levels', got 'imagenet'"):
        Scaling.fit(grey([1, 2]), "imagenet")


@pytest.mark.parametrize(
    ("mean", "std"),
    [((), ()), ((0.1, 0.2), (1.0,)), ((math.nan,), (1.0,)), ((0.0,), (0.0,)), ((0.0,), (-1.0,)), ((0.0,), (math.inf,))],
)
def test_numbers_that_scale_nothing_are_refused(mean, std):
    with pytest.raises(ValueError, match=r"mean (and std must have as many|must be finite and std above 0)"):
        Scaling(mean, std)


# The header of a file


def test_one_channel_is_written_as_its_number():
    assert Scaling((0.1306604762738429,), (0.5,)).as_text() == {"mean": "0.1306604762738429", "std": "0.5"}
    assert Scaling().as_text() == {"mean": "0.0", "std": "1.0"}


def test_several_channels_are_separated_by_spaces():
    assert Scaling((0.1, 0.2), (1.0, 0.25)).as_text() == {"mean": "0.1 0.2", "std": "1.0 0.25"}


positive = st.floats(1e-300, 1e300)


@given(numbers=st.lists(st.tuples(st.floats(allow_nan=False, allow_infinity=False), positive), min_size=1, max_size=4))
def test_a_scaling_comes_back_from_its_text(numbers):
    scaling = Scaling(tuple(mean for mean, _ in numbers), tuple(std for _, std in numbers))
    assert Scaling.from_text(scaling.as_text() | {"data": "mnist"}) == scaling


@pytest.mark.parametrize(
    ("header", "complaint"),
    [
        ({}, '"mean" of the scaling is missing'),
        ({"mean": "0.1"}, '"std" of the scaling is missing'),
        ({"mean": "a lot", "std": "1.0"}, "\"mean\" of the scaling must be numbers, got 'a lot'"),
        ({"mean": "0.1", "std": "1.0 1.0"}, "mean and std must have as many numbers"),
        ({"mean": "", "std": ""}, "mean and std must have as many numbers, at least one"),
        ({"mean": "nan", "std": "1.0"}, "mean must be finite"),
        ({"mean": "0", "std": "0"}, "std above 0"),
        ({"mean": "0,1", "std": "1"}, "must be numbers, got '0,1'"),
    ],
)
def test_bad_text_is_refused_in_a_sentence(header, complaint):
    with pytest.raises(ValueError, match=complaint) as caught:
        Scaling.from_text(header)
    assert "\n" not in str(caught.value)
