"""Which part of a picture is shown."""

import io

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from tiny_set import random_bytes

from secateur.data import CROPS, read_picture
from secateur.data.crops import _COMPONENTS, _VARIANCES, shifted_and_mirrored, view

sides = st.integers(1, 900)
sizes = st.tuples(sides, sides)


def views(kind, size, wanted=(227, 227), count=2000):
    return [view(kind, size, wanted, seed) for seed in range(count)]


# The part of a picture


@given(kind=st.sampled_from(CROPS), size=sizes, wanted=sizes, seed=st.none() | st.integers(0, 2**64))
def test_what_is_shown_is_a_part_of_the_picture_and_the_seed_determines_it(kind, size, wanted, seed):
    shown = view(kind, size, wanted, seed)
    left, top, right, bottom = shown.box
    assert 0 <= left < right <= size[0]
    assert 0 <= top < bottom <= size[1]
    assert shown == view(kind, size, wanted, seed)


@given(kind=st.sampled_from(("centre", "shift-flip", "alexnet")), size=sizes, wanted=sizes)
def test_pictures_are_not_stretched(kind, size, wanted):
    left, top, right, bottom = view(kind, size, wanted, 3).box
    assert (right - left) * wanted[1] == pytest.approx((bottom - top) * wanted[0])


@pytest.mark.parametrize(("kind", "side"), [("alexnet", 227), ("resized", 224)])
def test_networks_are_evaluated_on_the_centre_of_a_picture_at_256_pixels(kind, side):
    margin = (256 - side) / 2
    assert view(kind, (256, 256), (side, side)).box == pytest.approx((margin, margin, 256 - margin, 256 - margin))
    wide = view(kind, (1024, 512), (side, side)).box
    assert wide == pytest.approx((512 - side, 256 - side, 512 + side, 256 + side))


@pytest.mark.parametrize("kind", ["centre", "shift-flip"])
def test_without_a_margin_the_centre_is_as_large_as_it_can_be(kind):
    assert view(kind, (300, 200), (10, 10)) == ((50, 0, 250, 200), False, None)
    assert view(kind, (300, 200), (10, 10), seed=7) == view(kind, (300, 200), (10, 10))


def test_every_place_of_an_alexnet_crop_is_drawn_as_often():
    found = [shown.box[:2] for shown in views("alexnet", (256, 256), count=6000)]
    for places in zip(*found, strict=True):
        counts = torch.bincount(torch.tensor(places).round().long(), minlength=30)
        assert len(counts) == 30  # 256 − 227 + 1
        assert (counts - 200).abs().max() < 70  # five deviations


def test_an_alexnet_crop_is_a_crop_of_the_resized_picture():
    image = pytest.importorskip("PIL.Image")
    draw = np.random.default_rng(0)
    picture = image.fromarray(draw.integers(0, 256, (40, 60, 3), dtype=np.uint8)).resize((768, 512))
    out = io.BytesIO()
    picture.save(out, "PNG")
    resized = picture.resize((384, 256), image.Resampling.BILINEAR)
    for seed in range(5):
        shown = view("alexnet", (768, 512), (227, 227), seed)
        left, top = round(shown.box[0] / 2), round(shown.box[1] / 2)
        expected = np.array(resized.crop((left, top, left + 227, top + 227))).astype(int)
        expected = (expected[:, ::-1] if shown.is_mirrored else expected) + np.round(shown.light).astype(int)
        found = read_picture(out, "a.png", (3, 227, 227), crop="alexnet", seed=seed).permute(1, 2, 0).numpy()
        assert np.abs(found.astype(int) - expected.clip(0, 255))[1:-1, 1:-1].max() <= 1  # its edges lack neighbours


def test_a_resized_crop_has_any_area_from_8_percent_and_any_shape_from_3_to_4():
    boxes = torch.tensor([shown.box for shown in views("resized", (1000, 1000))])
    width, height = boxes[:, 2] - boxes[:, 0], boxes[:, 3] - boxes[:, 1]
    area, stretch = width * height / 1e6, width / height
    assert 0.079 < area.min() < 0.1
    assert 0.95 < area.max() <= 1
    assert area.mean().item() == pytest.approx(
        0.478, abs=0.02
    )  # of a uniform area a that fits: 1, or −ln a ÷ ln 4/3 of those above 3/4
    assert 0.745 < stretch.min() < 0.77
    assert 1.3 < stretch.max() < 1.34
    assert stretch.log().mean().abs() < 0.02


def test_a_picture_into_which_no_resized_crop_fits_is_cut_at_its_centre():
    assert view("resized", (1000, 1), (8, 8), 0).box == (499.5, 0, 500.5, 1)


@pytest.mark.parametrize("kind", ["alexnet", "resized"])
def test_half_of_the_crops_are_mirrored(kind):
    assert sum(shown.is_mirrored for shown in views(kind, (300, 300))) == pytest.approx(1000, abs=110)


def test_the_light_of_an_alexnet_crop_has_the_published_covariance():
    """Light is P·(α λ) with α of deviation 0.1, so its covariance is P diag(0.1 λ)² Pᵀ."""
    light = torch.tensor([shown.light for shown in views("alexnet", (256, 256), count=8000)]) / 255
    components, variances = torch.tensor(_COMPONENTS), torch.tensor(_VARIANCES)
    torch.testing.assert_close(components.T @ components, torch.eye(3), atol=2e-4, rtol=0)
    expected = components @ torch.diag((0.1 * variances) ** 2) @ components.T
    torch.testing.assert_close(light.T @ light / len(light), expected, rtol=0.06, atol=2e-6)
    assert light.mean(dim=0).abs().max() < 5e-4
    assert view("resized", (256, 256), (224, 224), 0).light is None


def test_light_stays_within_the_levels():
    image = pytest.importorskip("PIL.Image")
    out = io.BytesIO()
    image.fromarray(np.array([[[0, 255, 128]]], np.uint8)).save(out, "PNG")
    for seed in range(20):
        light = [round(amount) for amount in view("alexnet", (1, 1), (8, 8), seed).light]
        found = read_picture(out, "a.png", (3, 8, 8), crop="alexnet", seed=seed)[:, 0, 0].tolist()
        assert found == [max(0, light[0]), min(255, 255 + light[1]), 128 + light[2]]


def test_grey_pictures_have_no_coloured_light():
    image = pytest.importorskip("PIL.Image")
    out = io.BytesIO()
    image.fromarray(np.full((30, 30), 90, np.uint8)).save(out, "PNG")
    assert read_picture(out, "a.png", (1, 8, 8), crop="alexnet", seed=1).unique().tolist() == [90]


# Images of the network's size


def test_images_are_moved_by_up_to_four_pixels_and_mirrored_as_drawn():
    """Published runs depend on these draws: tops, lefts, then which are mirrored."""
    images, draws = random_bytes(50, 3, 9, 7), torch.Generator().manual_seed(1)
    found = shifted_and_mirrored(images, torch.Generator().manual_seed(1))
    top, left = torch.randint(9, (2, 50), generator=draws)
    is_mirrored = torch.rand(50, generator=draws) < 0.5
    padded = F.pad(images, (4, 4, 4, 4))
    for number in range(50):
        window = padded[number, :, top[number] : top[number] + 9, left[number] : left[number] + 7]
        assert torch.equal(found[number], window.flip(-1) if is_mirrored[number] else window)
    assert set(top.tolist()) == set(left.tolist()) == set(range(9))
    assert 10 < is_mirrored.sum() < 40


def test_moving_images_leaves_the_originals_alone():
    images = random_bytes(5, 3, 8, 8)
    before = images.clone()
    shifted_and_mirrored(images, torch.Generator().manual_seed(0)).zero_()
    assert torch.equal(images, before)
    assert shifted_and_mirrored(images[:0], None).shape == (0, 3, 8, 8)
