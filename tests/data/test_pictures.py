"""Reading picture files."""

import io
import os
import struct
import sys
import zlib
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from secateur.data import DataError, find_pictures, picture_suffixes, pictures, printable, read_picture

Image = pytest.importorskip("PIL.Image")
GREY, RGB = (1, 28, 28), (3, 28, 28)


def encoded(pixels, kind="PNG", **options):
    out = io.BytesIO()
    Image.fromarray(pixels).save(out, kind, **options)
    return out.getvalue()


def read(content, shape=GREY, **options):
    return read_picture(io.BytesIO(content), "a.png", shape, **options)


def noise(*shape, seed=0):
    return np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)


@pytest.mark.parametrize("kind", ["PNG", "BMP", "PPM", "GIF"])
def test_a_picture_of_the_networks_size_and_kind_comes_as_it_is(kind):
    pixels = noise(28, 28)
    assert torch.equal(read(encoded(pixels, kind)), torch.from_numpy(pixels)[None])


def test_colours_come_channel_by_channel():
    pixels = noise(28, 28, 3)
    found = read(encoded(pixels), RGB)
    assert (found.shape, found.dtype, found.is_contiguous()) == (RGB, torch.uint8, True)
    assert torch.equal(found, torch.from_numpy(pixels).permute(2, 0, 1))


def test_colours_become_grey_and_grey_becomes_colours():
    red = np.zeros((28, 28, 3), np.uint8)
    red[..., 0] = 255
    assert read(encoded(red)).unique().tolist() == [76]  # 0.299 · 255
    assert torch.equal(read(encoded(noise(28, 28)), RGB), torch.from_numpy(noise(28, 28)).expand(RGB))


@pytest.mark.parametrize("kind", ["JPEG", "WEBP"])
def test_lossy_pictures_come_nearly_as_they_are(kind):
    ramp = np.tile(np.arange(0, 252, 9, dtype=np.uint8), (28, 1))
    found = read(encoded(ramp, kind, quality=95)).int()
    assert (found - torch.from_numpy(ramp).int()).abs().max() <= 8


def test_a_larger_picture_is_averaged_and_keeps_its_sides():
    pixels = np.zeros((280, 560), np.uint8)
    pixels[:, :280] = 200
    found = read(encoded(pixels))
    assert found[0, :, :13].unique().tolist() == [200]
    assert found[0, :, 15:].unique().tolist() == [0]


@pytest.mark.parametrize("sides", [(280, 560), (560, 280)])
def test_a_cropped_picture_keeps_its_proportions_and_its_centre(sides):
    pixels = np.zeros(sides, np.uint8)
    pixels[sides[0] // 2 - 140 : sides[0] // 2 + 140, sides[1] // 2 - 140 : sides[1] // 2 + 140] = 200
    found = read(encoded(pixels), crop="centre")
    assert found[0, 1:-1, 1:-1].unique().tolist() == [200]
    assert (read(encoded(pixels)) == 0).any()  # stretched, its margins are seen


@pytest.mark.parametrize("size", [(28, 28), (27, 28), (28, 29), (1, 900), (900, 1), (3, 5), (57, 31)])
@pytest.mark.parametrize("shape", [(1, 28, 28), (1, 20, 40), (3, 40, 20)])
def test_pictures_of_every_size_are_cropped(size, shape):
    found = read(encoded(np.full(size, 90, np.uint8)), shape, crop="centre")
    assert (found.shape, found.unique().tolist()) == (shape, [90])


def test_a_large_jpeg_is_cropped_to_what_a_png_of_it_gives():
    smooth = Image.fromarray(noise(6, 8)).resize((800, 600), Image.Resampling.BICUBIC)
    jpeg = read(encoded(np.array(smooth), "JPEG", quality=95), crop="centre").int()
    png = read(encoded(np.array(smooth)), crop="centre").int()
    assert (jpeg - png).abs().max() <= 8


def test_white_on_black_and_ink_on_paper_are_the_same_once_inverted():
    strokes = noise(40, 40)
    assert torch.equal(read(encoded(255 - strokes), invert=True), 255 - read(encoded(255 - strokes)))
    assert torch.equal(read(encoded(255 - noise(28, 28)), invert=True), torch.from_numpy(noise(28, 28))[None])


def test_what_is_transparent_is_the_background():
    pixels = np.zeros((28, 28, 4), np.uint8)
    pixels[:14] = 255, 255, 255, 255
    assert read(encoded(pixels))[0, :, 0].tolist() == [255] * 14 + [0] * 14
    pixels[:14] = 0, 0, 0, 255
    assert read(encoded(pixels), invert=True)[0, :, 0].tolist() == [255] * 14 + [0] * 14


@pytest.mark.parametrize("kind", ["PNG", "PPM"])
def test_sixteen_bits_become_eight(kind):
    levels = np.linspace(0, 65_535, 784).astype(np.uint16).reshape(28, 28)
    found = read(encoded(levels, kind))
    assert torch.equal(found[0], torch.from_numpy((levels // 257).astype(np.uint8)))
    assert (found.min(), found.max()) == (0, 255)


def test_a_picture_lies_as_its_camera_was_held():
    pixels = np.zeros((28, 28), np.uint8)
    pixels[:14] = 200
    exif = Image.Exif()
    exif[0x0112] = 6  # turn by 90° clockwise
    found = read(encoded(pixels, "PNG", exif=exif))
    assert found[0, :, 20].unique().tolist() == [200]
    assert found[0, :, 5].unique().tolist() == [0]


def test_palettes_and_bitmaps_are_read():
    half = Image.fromarray(np.where(np.arange(28)[:, None] < 14, np.uint8(255), np.uint8(0)).repeat(28, 1))
    for mode in ("P", "1"):
        out = io.BytesIO()
        half.convert(mode).save(out, "PNG")
        assert torch.equal(read(out.getvalue())[0], torch.from_numpy(np.array(half)))


# What cannot be read


def png_header(width, height):
    """A picture that only announces its size."""
    out = b"\x89PNG\r\n\x1a\n"
    for chunk in (b"IHDR" + struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0), b"IDAT" + zlib.compress(b"")):
        out += struct.pack(">I", len(chunk) - 4) + chunk + struct.pack(">I", zlib.crc32(chunk))
    return out


def postscript():
    return b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 10 10\n%%EndComments\nshowpage\n"


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (b"", "a.png is not a picture, or only the beginning of one: PNG, JPEG"),
        (b"plain text", "a.png is not a picture"),
        (postscript(), "a.png is not a picture"),  # Pillow would start Ghostscript
        (encoded(noise(40, 40))[:-400], r"a.png is damaged or cut short \(.+\): copy it again"),
        (encoded(noise(40, 40), "JPEG")[:-400], r"a.png is damaged or cut short \(.+\): copy it again"),
        (png_header(100_000, 100_000), "a.png is larger than the 67,108,864 pixels that are read: make it smaller"),
        (png_header(10_000, 10_000), "a.png is larger than"),
        (png_header(10, 10), "a.png is damaged or cut short"),
        (encoded(np.zeros((4, 4), np.float32), "PPM"), "pixels of mode F: save it with 8 bits a channel"),
        (encoded(noise(40, 40), "TIFF"), "a.png is not a picture"),
    ],
)
def test_what_is_no_sound_picture_is_refused_in_a_sentence(content, complaint):
    with pytest.raises(DataError, match=complaint) as caught:
        read(content)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "WEBP", "BMP", "GIF", "PPM"])
@given(changes=st.lists(st.tuples(st.integers(0, 10_000), st.integers(0, 255)), min_size=1, max_size=6))
@settings(max_examples=80)
def test_a_damaged_picture_is_refused_or_read(kind, changes):
    content = bytearray(encoded(noise(30, 20), kind))
    for place, value in changes:
        content[place % min(len(content), 200)] = value  # where the headers are
    try:
        found = read(bytes(content))
    except DataError:
        return
    assert (found.shape, found.dtype) == (GREY, torch.uint8)


def test_without_pillow_the_remedy_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(DataError, match=r"Pillow, which is not installed: pip install 'secateur\[vision\]'"):
        read(b"")


def test_pictures_have_one_channel_or_three():
    with pytest.raises(ValueError, match="1 channel or 3, the network takes 2"):
        read(encoded(noise(4, 4)), (2, 4, 4))


# Folders


def test_a_folder_gives_its_pictures_by_name(tmp_path):
    for name in ("b.png", "a.JPG", "c.txt", "d", ".hidden"):
        (tmp_path / name).touch()
    (tmp_path / "e.png").mkdir()
    assert [path.name for path in find_pictures(tmp_path)] == ["a.JPG", "b.png"]


def test_names_that_are_not_text_can_be_printed():
    assert printable(Path(os.fsdecode(b"a\xff/\xc3\xa4.png"))) == "a\\xff/ä.png"


def test_every_kind_that_is_read_is_looked_for():
    assert set(picture_suffixes()) <= set(Image.registered_extensions())
    assert {Image.registered_extensions()[suffix] for suffix in picture_suffixes()} == set(pictures._FORMATS)
