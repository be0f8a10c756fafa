"""Read picture files of any size and common format as images of a network's input shape."""

from __future__ import annotations

import os
import struct
import warnings
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from secateur.data.crops import Box, CropKind, Size, View, view
from secateur.data.images import DataError

if TYPE_CHECKING:
    from PIL.Image import Image

# The formats that Pillow may try, and the suffixes of pictures in a folder. Pillow knows more formats, but some of its
# readers start other programs, and its TIFF reader prints to standard error about every damaged file.
_FORMATS = {
    "PNG": (".png",),
    "JPEG": (".jpg", ".jpeg"),
    "WEBP": (".webp",),
    "BMP": (".bmp",),
    "GIF": (".gif",),
    "PPM": (".pgm", ".ppm", ".pbm", ".pnm"),
}
_SUFFIXES = tuple(suffix for suffixes in _FORMATS.values() for suffix in suffixes)
_MODES = ("1", "L", "LA", "P", "PA", "RGB", "RGBA", "CMYK", "YCbCr", "HSV")  # which convert to grey and RGB
_MOST_PIXELS = 1 << 26  # 67 million: more than most cameras take, and some hundred MB while a picture is decoded
_ORIENTATION, _ON_ITS_SIDE = 0x0112, (5, 6, 7, 8)  # EXIF's tag, and its values for pictures turned by 90 degrees
# What Pillow's readers were seen to raise on broken files.
_DECODING_ERRORS = (
    OSError,
    SyntaxError,
    ValueError,
    TypeError,
    AttributeError,
    LookupError,
    EOFError,
    ArithmeticError,
    RuntimeError,
    AssertionError,
    struct.error,
    zlib.error,
)


def find_pictures(folder: Path) -> Iterator[Path]:
    """Yield the pictures in a folder, sorted by name, without those of its subfolders."""
    return (path for path in sorted(folder.iterdir()) if path.suffix.lower() in _SUFFIXES and path.is_file())


def picture_suffixes() -> tuple[str, ...]:
    """Return the endings of names that `find_pictures` looks for."""
    return _SUFFIXES


def printable(path: Path | str) -> str:
    """Return a path as text that any stream can print: bytes that are not UTF-8 become escapes."""
    return os.fsencode(path).decode("utf-8", "backslashreplace")


def read_picture(
    file: BinaryIO,
    name: str,
    shape: tuple[int, int, int],
    *,
    invert: bool = False,
    crop: CropKind | None = None,
    seed: int | None = None,
    box: Box | None = None,
) -> Tensor:
    """Return a picture as uint8 of a network's input shape (channels, height, width).

    It is converted to grey or RGB, turned upright as its EXIF data say, and resized to the height and width: stretched
    or, with a kind of `crop`, that part of it; a seed draws the part at random (see `crops.view`). With a `box` (left,
    top, right and bottom in pixels) only that part of the picture is used, stretched. `invert` exchanges
    black and white, for a network trained on white strokes on black that is shown ink on paper. Transparent parts
    become the background: black, or white with `invert`. A DataError that begins with `name` says why a picture cannot
    be read.
    """
    channels, height, width = shape
    if channels not in (1, 3):
        raise ValueError(f"pictures have 1 channel or 3, the network takes {channels}")

    def shown(size: Size) -> View:
        if box is not None:
            return View(_inside(box, size, name))
        return View((0.0, 0.0, *size)) if crop is None else view(crop, size, (width, height), seed)

    mode, background = "L" if channels == 1 else "RGB", 255 if invert else 0
    wanted = (width, height)
    picture, chosen = _decode(file, name, mode, background, wanted, shown, may_shrink=crop is not None)
    if (picture.size, chosen.box) != (wanted, (0, 0, *wanted)):
        picture = picture.resize(wanted, _bilinear(), chosen.box)  # averages where the picture gets smaller
    if chosen.is_mirrored:
        picture = _mirrored(picture)
    # Channel by channel: that takes half the time of rearranging the pixels afterwards.
    levels = [np.asarray(band) for band in picture.split()]
    if chosen.light is not None and channels == 3:
        levels = [_moved(band, round(amount)) for band, amount in zip(levels, chosen.light, strict=True)]
    pixels = torch.from_numpy(np.stack(levels))
    return 255 - pixels if invert else pixels


def _inside(box: Box, size: Size, name: str) -> Box:
    """Return the part of a box that lies in a picture of a size."""
    (left, top, right, bottom), (width, height) = box, size
    left, top, right, bottom = max(left, 0.0), max(top, 0.0), min(right, width), min(bottom, height)
    if left >= right or top >= bottom:
        raise DataError(f"{name} has {width} × {height} pixels, and its box {box} covers none of them")
    return left, top, right, bottom


def picture_size(path: Path) -> tuple[int, int] | None:
    """Return height and width of a picture turned upright; None if it cannot be read.

    The header is enough, but Pillow decodes a PNG without EXIF data in it: they may also follow the pixels.
    """
    from PIL import Image

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            if not path.is_file():  # opening a pipe waits for ever
                return None
            with Image.open(path, formats=tuple(_FORMATS)) as opened:
                width, height = opened.size
                is_turned = opened.getexif().get(_ORIENTATION) in _ON_ITS_SIDE
        except (*_DECODING_ERRORS, Image.DecompressionBombError):
            return None
    return (width, height) if is_turned else (height, width)


def require_pillow() -> None:
    """Raise a DataError if Pillow, which reads pictures, is not installed."""
    try:
        import PIL  # noqa: F401  # optional, so not at the top
    except ModuleNotFoundError as error:
        remedy = "pip install 'secateur[vision]'"
        raise DataError(f"pictures are read by Pillow, which is not installed: {remedy}") from error


def _decode(
    file: BinaryIO,
    name: str,
    mode: str,
    background: int,
    wanted: Size,
    shown: Callable[[Size], View],
    *,
    may_shrink: bool,
) -> tuple[Image, View]:
    """Return a picture, perhaps smaller than it is in the file, and what is to be shown of it."""
    require_pillow()
    from PIL import Image, ImageOps, UnidentifiedImageError

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # on odd headers, and on the size, which is checked below
        try:
            with Image.open(file, formats=tuple(_FORMATS)) as opened:
                wide, high = opened.size  # known from the header, before memory is allocated
                if wide * high > _MOST_PIXELS:
                    raise _TooLargeError
                orientation = _orientation(opened)
                upright = (high, wide) if 5 <= orientation <= 8 else (wide, high)
                chosen = shown(upright)
                if may_shrink:
                    _decode_smaller(opened, chosen.box, wanted)
                opened.load()
                picture = _flat(opened if orientation == 1 else ImageOps.exif_transpose(opened), mode, background)
                return picture, chosen._replace(box=_in_pixels_of(picture, chosen.box, upright))
        except UnidentifiedImageError:
            kinds = ", ".join(_FORMATS).replace("PPM", "PGM")
            raise DataError(f"{name} is not a picture, or only the beginning of one: {kinds} are read") from None
        except (_TooLargeError, Image.DecompressionBombError):
            most = f"{_MOST_PIXELS:,} pixels"
            raise DataError(f"{name} is larger than the {most} that are read: make it smaller") from None
        except _UnknownPixelsError as error:
            raise DataError(f"{name} has pixels of mode {error}: save it with 8 bits a channel") from None
        except _DECODING_ERRORS as error:
            said = str(error).strip().partition("\n")[0] or type(error).__name__
            raise DataError(f"{name} is damaged or cut short ({said}): copy it again") from error


def _orientation(picture: Image) -> int:
    """Return how the camera was held, as EXIF data say: 1 is upright, 5 to 8 are sideways."""
    from PIL import ExifTags

    found = picture.getexif().get(ExifTags.Base.Orientation)
    return found if isinstance(found, int) else 1


def _moved(levels: npt.NDArray[np.uint8], amount: int) -> npt.NDArray[np.uint8]:
    """Return levels plus an amount, at least 0 and at most 255; bytes all the way, which is fast."""
    step = np.uint8(min(abs(amount), 255))
    moved: npt.NDArray[np.uint8]
    if amount >= 0:
        moved = np.minimum(levels, np.uint8(255) - step) + step
    else:
        moved = np.maximum(levels, step) - step
    return moved


def _in_pixels_of(picture: Image, box: Box, size: Size) -> Box:
    """Return a part of a picture that had a size when the part was chosen and may have been decoded smaller."""
    across, down = picture.width / size[0], picture.height / size[1]
    left, top, right, bottom = box
    return left * across, top * down, min(right * across, picture.width), min(bottom * down, picture.height)


def _decode_smaller(picture: Image, box: Box, wanted: Size) -> None:
    """Let a large JPEG be decoded at a half, a quarter or an eighth of its size, which is several times as fast."""
    shrinking = min((box[2] - box[0]) / wanted[0], (box[3] - box[1]) / wanted[1])
    if shrinking >= 2:
        picture.draft(None, (int(picture.width / shrinking), int(picture.height / shrinking)))


class _TooLargeError(Exception):
    """A picture has more pixels than are read."""


class _UnknownPixelsError(Exception):
    """A picture has pixels that are not 8-bit levels of grey or colour."""


def _flat(picture: Image, mode: str, background: int) -> Image:
    """Return a picture in grey or RGB without transparency."""
    from PIL import Image

    if picture.mode.startswith("I"):  # 16 bits, which Pillow sometimes keeps in 32
        picture = Image.fromarray((np.asarray(picture) // 257).astype(np.uint8))
    elif picture.mode not in _MODES:
        raise _UnknownPixelsError(picture.mode)
    if picture.has_transparency_data:
        layer = picture.convert("RGBA")
        below = Image.new("RGBA", layer.size, (background, background, background, 255))
        picture = Image.alpha_composite(below, layer)
    return picture if picture.mode == mode else picture.convert(mode)


def _mirrored(picture: Image) -> Image:
    from PIL import ImageOps

    return ImageOps.mirror(picture)


def _bilinear() -> int:
    from PIL import Image

    return Image.Resampling.BILINEAR
