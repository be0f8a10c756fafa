"""Images in memory and views of them."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tiny_set import random_bytes

from secateur.data import Images, ImageSet, Subset, in_memory, split_validation
from secateur.data import images as module


def noise(count: int, channels: int = 1) -> ImageSet:
    return ImageSet(random_bytes(count, channels, 2, 2), torch.arange(count))


def test_an_image_set_is_bytes_with_one_label_each():
    with pytest.raises(ValueError, match="images must be uint8"):
        ImageSet(torch.rand(3, 1, 2, 2), torch.arange(3))
    with pytest.raises(ValueError, match=r"one for each of 3 images, got torch.int64 of shape \(2,\)"):
        ImageSet(random_bytes(3, 1, 2, 2), torch.arange(2))


@pytest.mark.parametrize(("labels", "got"), [([0, 1, 3], "0…3"), ([-1, 0, 1], "-1…1")])
def test_a_label_outside_the_classes_is_refused(labels, got):
    with pytest.raises(ValueError, match=f"labels must lie in 0…2, got {got}"):
        ImageSet(random_bytes(3, 1, 2, 2), torch.tensor(labels), ("a", "b", "c"))


def test_classes_without_names_are_numbered():
    assert ImageSet(random_bytes(2, 1, 2, 2), torch.tensor([3, 0])).classes == ("0", "1", "2", "3")
    assert ImageSet(random_bytes(0, 1, 2, 2), torch.arange(0)).classes == ()


def test_a_batch_is_what_the_indices_say():
    images = noise(5, channels=3)
    pixels, labels = images.batch(torch.tensor([4, 0, 4]))
    assert torch.equal(pixels, images.images[[4, 0, 4]])
    assert labels.tolist() == [4, 0, 4]
    assert (images.shape, len(images)) == ((3, 2, 2), 5)


def test_sets_and_subsets_are_images():
    assert isinstance(noise(3), Images)
    assert isinstance(Subset(noise(3), torch.arange(2)), Images)


def test_a_subset_of_a_subset_is_one_of_the_whole():
    whole = ImageSet(random_bytes(9, 1, 2, 2), torch.arange(9), tuple("abcdefghi"))
    part = Subset(Subset(whole, torch.tensor([8, 6, 4, 2])), torch.tensor([3, 1]))
    pixels, labels = part.batch(torch.tensor([1, 0, 0]))
    assert labels.tolist() == [6, 2, 2]
    assert torch.equal(pixels, whole.images[[6, 2, 2]])
    assert (len(part), part.labels.tolist(), part.shape, part.classes) == (2, [2, 6], (1, 2, 2), whole.classes)


def test_the_generator_reaches_the_whole_set():
    class Drawing(ImageSet):
        def batch(self, indices, generator=None):
            return torch.rand(len(indices), generator=generator), self.labels[indices]

    part = Subset(Drawing(random_bytes(3, 1, 2, 2), torch.arange(3)), torch.tensor([2]))
    drawn, _ = part.batch(torch.tensor([0]), torch.Generator().manual_seed(3))
    assert torch.equal(drawn, torch.rand(1, generator=torch.Generator().manual_seed(3)))


@given(count=st.integers(2, 20), data=st.data())
def test_the_validation_set_is_the_end_of_the_training_set(count, data):
    size = data.draw(st.integers(1, count - 1))
    train = noise(count)
    kept, validation = map(in_memory, split_validation(train, size))
    assert (len(kept), len(validation)) == (count - size, size)
    assert torch.equal(torch.cat([kept.images, validation.images]), train.images)
    assert torch.equal(torch.cat([kept.labels, validation.labels]), train.labels)


@pytest.mark.parametrize("size", [-1, 0, 3, 4])
def test_a_validation_set_leaves_something_on_both_sides(size):
    with pytest.raises(ValueError, match=f"from 1 to 2 images, got {size}"):
        split_validation(noise(3), size)


def test_a_set_in_memory_is_not_copied_again():
    images = noise(3)
    assert in_memory(images) is images


@pytest.mark.parametrize("chunk_bytes", [1, 4, 12, 1000])
def test_chunks_are_the_whole_set_in_order(monkeypatch, chunk_bytes):
    monkeypatch.setattr(module, "_CHUNK_BYTES", chunk_bytes)
    images = noise(7)
    found = list(module.chunks(images))
    assert torch.equal(torch.cat([pixels for pixels, _ in found]), images.images)
    assert torch.cat([labels for _, labels in found]).tolist() == list(range(7))
    assert max(len(labels) for _, labels in found) == max(1, min(7, chunk_bytes // 4))
