"""What a network is trained and evaluated on."""

import pytest
import torch
from tiny_set import random_bytes

from secateur.data import ImageSet, Inputs, Scaling, Subset, augmented_copies
from secateur.data import inputs as module

SCALING = Scaling((0.25,), (0.5,))


def noise(count: int = 12, channels: int = 1, size: int = 8) -> ImageSet:
    return ImageSet(random_bytes(count, channels, size, size), torch.arange(count))


def generator(seed: int = 5) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def test_a_batch_is_scaled_images_and_labels():
    inputs = Inputs(noise(), SCALING)
    found, labels = inputs.batch(torch.tensor([7, 2]), generator())
    assert torch.equal(found, SCALING(noise().images[[7, 2]]))
    assert (labels.tolist(), len(inputs), inputs.labels.tolist()) == ([7, 2], 12, list(range(12)))


def test_without_augmentation_nothing_is_drawn():
    source = generator()
    Inputs(noise(), SCALING).batch(torch.arange(4), source)
    assert torch.equal(source.get_state(), generator().get_state())


def test_distorted_images_are_copies_drawn_in_this_order():
    """Published runs depend on these draws: who is replaced, then by which copy."""
    images = noise()
    inputs = Inputs.for_training(images, SCALING, 0.5, seed=3)
    copies, indices, draws = augmented_copies(images.images, 6, seed=3), torch.randperm(12)[:9], generator()
    expected = SCALING(images.images)[indices]
    replaced = (torch.rand(9, generator=draws) < 0.5).nonzero().squeeze(1)
    which = torch.randint(6, (len(replaced),), generator=draws)
    expected[replaced] = SCALING(copies[which, indices[replaced]])
    found, labels = inputs.batch(indices, source := generator())
    assert torch.equal(found, expected)
    assert torch.equal(labels, indices)
    assert 0 < len(replaced) < 9
    assert torch.equal(source.get_state(), draws.get_state())


def test_copies_of_a_subset_belong_to_its_own_images():
    part = Subset(noise(), torch.tensor([5, 9, 1]))
    inputs = Inputs.for_training(part, SCALING, 1.0, seed=0)
    copies = augmented_copies(noise().images[[5, 9, 1]], 6, seed=0)
    found, labels = inputs.batch(torch.tensor([2]), generator())
    assert labels.tolist() == [1]
    assert any(torch.equal(found[0], SCALING(copy[2])) for copy in copies)


def test_images_whose_copies_fill_the_memory_are_distorted_when_drawn(monkeypatch):
    monkeypatch.setattr(module, "_COPIES_BYTES", 6 * 12 * 64 - 1)
    inputs = Inputs.for_training(noise(), SCALING, 0.5)
    assert inputs.copies is None
    plain = SCALING(noise().images)
    first, again, other = (inputs.batch(torch.arange(12), generator(seed))[0] for seed in (1, 1, 2))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    changed = [not torch.equal(one, image) for one, image in zip(first, plain, strict=True)]
    assert 0 < sum(changed) < 12


def test_a_batch_of_which_no_image_is_chosen_is_plain():
    inputs = Inputs(noise(), SCALING, augment=1e-9)
    assert torch.equal(inputs.batch(torch.arange(12), generator())[0], SCALING(noise().images))


def test_colours_are_distorted_too():
    inputs = Inputs.for_training(noise(channels=3), Scaling((0.1, 0.2, 0.3), (1.0, 2.0, 3.0)), 1.0)
    assert inputs.batch(torch.arange(5), generator())[0].shape == (5, 3, 8, 8)


@pytest.mark.parametrize("size", [None, 1, 5, 12, 100])
def test_evaluation_sees_every_image_once_in_order_and_undistorted(size):
    inputs = Inputs.for_training(noise(), SCALING, 1.0)
    found = list(inputs.batches(size))
    assert torch.equal(torch.cat([batch for batch, _ in found]), SCALING(noise().images))
    assert torch.cat([labels for _, labels in found]).tolist() == list(range(12))
    assert {len(labels) for _, labels in found[:-1]} <= {size}


def test_batches_of_large_images_are_smaller(monkeypatch):
    sizes = {}
    for size in (2, 64, 256, 4096):
        images = ImageSet(torch.zeros(1, dtype=torch.uint8).expand(1200, 1, size, size), torch.zeros(1200).long())
        monkeypatch.setattr(ImageSet, "batch", lambda self, indices, generator=None: (indices, indices))
        sizes[size] = len(next(Inputs(images, lambda pixels: pixels).batches())[1])
    assert sizes == {2: 1000, 64: 1000, 256: 64, 4096: 1}


def test_settings_out_of_range_are_refused():
    with pytest.raises(ValueError, match=r"augment must lie in \[0, 1\], got 1.5"):
        Inputs(noise(), SCALING, augment=1.5)
    with pytest.raises(ValueError, match="size must be ≥ 1, got 0"):
        next(Inputs(noise(), SCALING).batches(0))
