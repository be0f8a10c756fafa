"""What pretrained networks see of a photograph: resized, cut at its centre, scaled by channel."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from secateur.networks.preprocessing import Preprocessing, levels

PLAIN = Preprocessing(mean=(0, 0, 0), std=levels(1, 1, 1), size=4, short_side=6)  # levels as they are


@given(height=st.integers(1, 30), width=st.integers(1, 30))
def test_images_of_any_size_become_inputs_of_one(height, width):
    images = torch.randint(0, 256, (2, 3, height, width), dtype=torch.uint8)
    inputs = PLAIN(images)
    assert inputs.shape == (2, 3, 4, 4)
    assert inputs.min() >= 0
    assert inputs.max() <= 255.001


def test_an_image_of_the_short_side_is_cut_at_its_centre_and_nothing_else():
    images = torch.arange(3 * 6 * 8).view(1, 3, 6, 8).to(torch.uint8)
    torch.testing.assert_close(PLAIN(images), images[..., 1:5, 2:6].float())


def test_channels_have_their_own_mean_and_deviation():
    preprocessing = Preprocessing(mean=(0.5, 0.25, 0), std=(0.5, 0.25, 1), size=1, short_side=1)
    white = torch.full((1, 3, 1, 1), 255, dtype=torch.uint8)
    assert preprocessing(white).flatten().tolist() == pytest.approx([1, 3, 1])


def test_a_flat_image_stays_flat_when_it_is_resized():
    for interpolation in ("bilinear", "bicubic"):
        preprocessing = Preprocessing(
            mean=(0, 0, 0), std=levels(1, 1, 1), size=4, short_side=6, interpolation=interpolation
        )
        inputs = preprocessing(torch.full((1, 3, 11, 17), 93, dtype=torch.uint8))
        torch.testing.assert_close(inputs, torch.full((1, 3, 4, 4), 93.0))


def test_a_cut_larger_than_the_image_is_refused():
    with pytest.raises(ValueError, match=r"size must lie in 1…6, the short side, got 7"):
        Preprocessing(mean=(0, 0, 0), std=(1, 1, 1), size=7, short_side=6)
    with pytest.raises(ValueError, match="std must be above 0"):
        Preprocessing(mean=(0, 0, 0), std=(1, 0, 1), size=6, short_side=6)
