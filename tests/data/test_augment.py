import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st

from secateur.data import AugmentConfig, augmented_copies
from secateur.data.augment import warp

NOTHING = AugmentConfig(rotation_degrees=0, scale=0, shear=0, shift_px=0, elastic_rms_px=0)


def noise_images(count: int = 20, channels: int = 1, size: int = 28) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.randint(256, (count, channels, size, size), generator=generator).to(torch.uint8)


def ramps(count: int) -> torch.Tensor:
    """Two channels that tell where a pixel was read: x in steps of 8 levels, and y."""
    level = 8 * torch.arange(28).expand(28, 28)
    return torch.stack([level, level.T]).to(torch.uint8).expand(count, -1, -1, -1)


def displacements(config: AugmentConfig, count: int = 300) -> torch.Tensor:
    """How far (images, 2, height, width) copies were read from their place, away from the black outside."""
    moved = augmented_copies(ramps(count), 1, seed=0, config=config)[0].float() - ramps(count)
    return moved[:, :, 8:-8, 8:-8] / 8


@given(dx=st.integers(-30, 30), dy=st.integers(-30, 30))
def test_a_whole_displacement_moves_the_image_and_brings_in_black(dx, dy):
    images = noise_images(2, channels=3, size=9)
    expected = F.pad(images, (-dx, dx, -dy, dy)) if max(abs(dx), abs(dy)) < 9 else torch.zeros_like(images)
    assert torch.equal(warp(images, torch.tensor([dx, dy]).expand(2, 9, 9, 2)), expected)


def test_half_a_pixel_is_the_mean_of_two():
    images = torch.tensor([[10, 20, 40]], dtype=torch.uint8).view(1, 1, 1, 3)
    halfway = torch.tensor([0.5, 0.0]).expand(1, 1, 3, 2)
    assert warp(images, halfway).flatten().tolist() == [15, 30, 20]


def test_a_config_of_zeros_changes_nothing():
    images = noise_images(channels=3, size=32)
    assert torch.equal(augmented_copies(images, 2, seed=0, config=NOTHING), torch.stack([images, images]))


def test_the_seed_determines_the_copies():
    first, again, other = (augmented_copies(noise_images(), 2, seed) for seed in (5, 5, 6))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def test_more_copies_do_not_change_the_first():
    assert torch.equal(augmented_copies(noise_images(), 3, seed=0)[:2], augmented_copies(noise_images(), 2, seed=0))


def test_every_copy_of_every_image_is_its_own():
    copies = augmented_copies(ramps(600), 2, seed=0).flatten(0, 1).flatten(1)
    assert len(copies.unique(dim=0)) == 1200


def test_the_number_of_threads_does_not_matter():
    threads = torch.get_num_threads()
    copies = []
    try:
        for count in (1, 2):
            torch.set_num_threads(count)
            copies.append(augmented_copies(noise_images(600), 1, seed=0))
    finally:
        torch.set_num_threads(threads)
    assert torch.equal(*copies)


def test_the_global_generator_is_left_alone():
    before = torch.get_rng_state()
    augmented_copies(noise_images(), 1, seed=0)
    assert torch.equal(torch.get_rng_state(), before)


def test_a_shift_moves_all_pixels_alike_within_its_bounds():
    config = AugmentConfig(rotation_degrees=0, scale=0, shear=0, elastic_rms_px=0)
    shift = displacements(config).flatten(2)
    torch.testing.assert_close(shift, shift[..., :1].expand_as(shift), atol=1 / 8, rtol=0)  # one level of rounding
    assert 1.1 < shift.abs().max() < 1.2 + 1 / 16


@pytest.mark.parametrize(
    ("field", "bound"),
    [("rotation_degrees", 0.139), ("scale", 0.08), ("shear", 0.1)],
    ids=lambda value: str(value),
)
def test_an_affine_part_fills_its_bounds(field, bound):
    """At distance r from the centre, ±8° displaces by up to .139·r, ±8 % by .08·r, a shear of ±.1 by .1·r."""
    zeros = {"rotation_degrees": 0, "scale": 0, "shear": 0, "shift_px": 0, "elastic_rms_px": 0}
    del zeros[field]
    moved = displacements(AugmentConfig(**zeros))
    largest = moved[..., 0, :].abs().max()  # the row 5.5 pixels above the centre, x from −5.5 to 5.5
    assert largest == pytest.approx(5.5 * bound, rel=0.15)


def test_the_elastic_part_has_its_rms_in_each_direction():
    config = AugmentConfig(rotation_degrees=0, scale=0, shear=0, shift_px=0)
    rms = displacements(config, 2000).square().mean(dim=(0, 2, 3)).sqrt()
    torch.testing.assert_close(rms, torch.tensor([0.55, 0.55]), rtol=0.03, atol=0)


def test_the_elastic_part_is_as_smooth_as_its_sigma():
    """White noise blurred with σ correlates over a distance d by exp(−d²/4σ²)."""
    config = AugmentConfig(rotation_degrees=0, scale=0, shear=0, shift_px=0)
    moved = displacements(config, 2000)
    correlation = (moved[..., 4:] * moved[..., :-4]).mean() / moved.square().mean()
    assert correlation.item() == pytest.approx(torch.tensor(-0.25).exp().item(), abs=0.03)


def test_floats_and_flat_images_are_refused():
    with pytest.raises(ValueError, match=r"must be uint8 .* got torch.float32"):
        augmented_copies(torch.rand(2, 1, 28, 28), 1, seed=0)
    with pytest.raises(ValueError, match=r"got torch.uint8 of shape \(2, 784\)"):
        augmented_copies(torch.zeros(2, 784, dtype=torch.uint8), 1, seed=0)


def test_an_elastic_part_without_width_is_refused():
    with pytest.raises(ValueError, match="elastic_sigma_px must be > 0, got 0"):
        AugmentConfig(elastic_sigma_px=0)
