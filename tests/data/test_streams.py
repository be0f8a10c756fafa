"""Pictures that are read while a network trains."""

import io
import os
import signal
from multiprocessing import active_children

import numpy as np
import pytest
import torch
from official_trees import PICTURES, Image, jpeg

from secateur.data import DataError, Inputs, PictureStream, Scaling, Subset, in_memory, split_validation
from secateur.data import scaling as scaling_module
from secateur.data import streams as module
from secateur.data.images import Stream, read_batches
from secateur.data.streams import Place

SHAPE = (3, 12, 10)


@pytest.fixture
def files(tmp_path):
    """Thirty pictures of five sizes."""
    for number in range(30):
        (tmp_path / f"{number:02d}.jpg").write_bytes(jpeg(number, (12 + number % 5, 20 - number % 7)))
    return sorted(tmp_path.iterdir())


def stream(files, **settings) -> PictureStream:
    settings = {"crop": "alexnet", **settings}
    places = [Place(str(path)) for path in files]
    return PictureStream(places, torch.arange(len(files)), tuple(map(str, range(len(files)))), SHAPE, **settings)


def read(images, batches, seed=7):
    pixels, labels = zip(*read_batches(images, batches, seed), strict=True)
    return torch.cat(pixels), torch.cat(labels)


# Order, seeds and processes


def test_readers_leave_it_to_the_process_that_trains_what_sigterm_means(files):
    before = set(active_children())
    found = read_batches(stream(files, processes=1), torch.arange(30).split(2))
    pixels = [next(found)[0]]
    [reader] = set(active_children()) - before
    os.kill(reader.pid, signal.SIGTERM)
    assert len(torch.cat([*pixels, *(rest for rest, _ in found)])) == 30


def test_the_number_of_processes_does_not_matter(files):
    files[11].write_bytes(b"text")
    batches = torch.randperm(30, generator=torch.Generator().manual_seed(0)).split(4)
    found = []
    for processes in (0, 1, 2):
        with pytest.warns(UserWarning, match=r"replaced by the next one: .*11\.jpg is not a picture"):
            found.append(read(stream(files, processes=processes), batches))
    for pixels, labels in found[1:]:
        assert torch.equal(pixels, found[0][0])
        assert torch.equal(labels, found[0][1])


def test_how_a_picture_is_cut_depends_on_the_seed_and_the_picture_alone(files):
    images, order = stream(files), torch.arange(30).flip(0)
    whole, _ = read(images, [torch.arange(30)])
    assert torch.equal(read(images, order.split(7))[0], whole.flip(0))
    assert torch.equal(read(Subset(images, order), torch.arange(30).split(9))[0], whole.flip(0))
    assert not torch.equal(read(images, [torch.arange(30)], seed=8)[0], whole)


def test_a_picture_is_cut_in_a_part_as_in_the_whole(files):
    whole, labels = read(stream(files), [torch.arange(30)])
    parts = split_validation(stream(files), 11)
    found = [read(part, torch.arange(len(part)).split(4)) for part in parts]
    assert torch.equal(torch.cat([pixels for pixels, _ in found]), whole)
    assert torch.equal(torch.cat([own for _, own in found]), labels)


def test_without_a_seed_pictures_are_cut_at_their_centre(files):
    images = stream(files)
    plain, labels = images.batch(torch.arange(30))
    assert torch.equal(read(images, [torch.arange(30)], seed=None)[0], plain)
    assert torch.equal(in_memory(images).images, plain)
    assert labels.tolist() == list(range(30))


def test_a_batch_with_a_generator_is_varied_and_one_of_centres_draws_nothing(files):
    first, again = (stream(files).batch(torch.arange(30), torch.Generator().manual_seed(3))[0] for _ in range(2))
    assert torch.equal(first, again)
    assert not torch.equal(first, stream(files).batch(torch.arange(30))[0])
    for crop in ("centre", "shift-flip"):
        generator = torch.Generator().manual_seed(3)
        stream(files, crop=crop).batch(torch.arange(2), generator)
        assert torch.equal(generator.get_state(), torch.Generator().manual_seed(3).get_state())


def test_reading_leaves_torchs_own_generator_alone(files):
    before = torch.get_rng_state()
    read(stream(files, processes=1), torch.arange(30).split(10))
    assert torch.equal(torch.get_rng_state(), before)


def test_few_pictures_start_no_processes(files, monkeypatch):
    monkeypatch.setattr(module, "DataLoader", None)
    assert len(read(stream(files), torch.arange(30).split(10))[0]) == 30


def test_processes_of_one_machine_share_its_cores(monkeypatch):
    monkeypatch.setattr(module.os, "sched_getaffinity", lambda _: range(8), raising=False)
    assert module._processes() == 8
    for ranks, expected in ((2, 4), (8, 1), (64, 1)):
        monkeypatch.setenv("LOCAL_WORLD_SIZE", str(ranks))
        assert module._processes() == expected


# Pictures that cannot be read


def test_unreadable_pictures_are_counted_and_named(files):
    for number in (3, 4, 29):
        files[number].write_bytes(PICTURES[0][:150])
    images = stream(files, most_unreadable=0.1)
    with pytest.warns(UserWarning, match="replaced") as warned:
        _, labels = read(images, torch.arange(30).split(8))
    read(images, torch.arange(30).split(8))  # without further warnings, which would be errors
    assert len(warned) == len(images.unreadable) == 3
    assert sorted(reason.split(" ")[0][-6:] for reason in images.unreadable) == ["03.jpg", "04.jpg", "29.jpg"]
    assert (labels[3], labels[4], labels[29]) == (5, 5, 0)
    assert isinstance(images, Stream)


def test_a_picture_is_replaced_by_one_of_its_own_part(files):
    train, validation = split_validation(stream(files), 10)
    for number in (19, 29):
        files[number].unlink()
    with pytest.warns(UserWarning, match="replaced"):
        assert read(train, [torch.tensor([19])])[1].tolist() == [0]
    with pytest.warns(UserWarning, match="replaced"):
        assert read(validation, [torch.tensor([9])])[1].tolist() == [20]


def test_more_than_the_allowed_share_is_refused(files):
    for number in (3, 4, 29):
        files[number].write_bytes(b"")
    images = stream(files, most_unreadable=0.07)
    with pytest.warns(UserWarning, match="replaced"), pytest.raises(DataError, match="more than 2 of 30 pictures"):
        read(images, torch.arange(30).split(8))


def test_a_file_that_disappears_is_replaced_too(files):
    images = stream(files)
    files[5].unlink()
    with pytest.warns(UserWarning, match=r"05\.jpg cannot be read: No such file"):
        assert read(images, [torch.tensor([5])])[1].tolist() == [6]


@pytest.mark.parametrize("mode", ["CMYK", "L", "I;16", "RGBA", "P"])
def test_pictures_of_every_mode_are_read_in_colour(files, mode):
    levels = np.full((30, 30), 153 * 257 if mode == "I;16" else 153, np.uint16 if mode == "I;16" else np.uint8)
    picture = Image.fromarray(levels)
    picture = picture if mode == "I;16" else picture.convert("RGB").convert(mode)
    out = io.BytesIO()
    picture.save(out, "JPEG" if mode in ("CMYK", "L") else "PNG")
    files[0].write_bytes(out.getvalue())
    found = stream(files, crop="resized").batch(torch.tensor([0]), torch.Generator())[0]
    assert (found.float() - 153).abs().max() <= 2


# Inputs that are read ahead


def test_batches_that_are_read_ahead_are_those_that_are_asked_for(files):
    inputs = Inputs(Subset(stream(files), torch.arange(29, -1, -1)), Scaling())
    batches = torch.randperm(30).split(7)
    expected, _ = read(inputs.images, batches)
    inputs.read_ahead(batches, 7)
    generator = torch.Generator()
    found = [inputs.batch(batch, generator) for batch in batches[:2]]
    other, _ = inputs.batch(torch.tensor([3, 1]), torch.Generator())  # not one of them
    found += [inputs.batch(batch, generator) for batch in batches[2:]]
    assert torch.equal(torch.cat([batch for batch, _ in found]), expected / 255)
    assert other.shape == (2, *SHAPE)
    assert torch.cat([labels for _, labels in found]).tolist() == (29 - torch.cat(batches)).tolist()


def test_an_epoch_that_was_interrupted_is_forgotten(files):
    inputs = Inputs(stream(files, processes=1), Scaling())
    for _ in range(2):
        inputs.read_ahead(torch.arange(30).split(3), 7)
        first, _ = inputs.batch(torch.arange(3), torch.Generator())
    assert torch.equal(first, read(inputs.images, [torch.arange(3)])[0] / 255)


def test_images_in_memory_are_not_read_ahead(files):
    inputs = Inputs(in_memory(stream(files)), Scaling(), is_shifted=True)
    expected, _ = inputs.batch(torch.arange(5), torch.Generator().manual_seed(1))
    inputs.read_ahead([torch.arange(5)], 7)
    assert torch.equal(inputs.batch(torch.arange(5), torch.Generator().manual_seed(1))[0], expected)
    assert not torch.equal(expected, inputs.images.images[:5] / 255)
    evaluated = torch.cat([batch for batch, _ in inputs.batches(8)])
    assert torch.equal(evaluated, inputs.images.images / 255)


def test_the_scaling_of_a_long_stream_comes_from_a_part_of_it(files, monkeypatch):
    monkeypatch.setattr(scaling_module, "_MOST_READ", 10)
    images, opened = stream(files), []
    monkeypatch.setattr(Place, "read", lambda place: opened.append(place.path) or PICTURES[len(opened) % 5])
    train, _ = split_validation(images, 10)
    assert len(Scaling.fit(train, "standard").mean) == 3
    assert opened == [str(files[number]) for number in range(0, 20, 2)]
    assert Scaling.fit(train, "unit") == Scaling()
