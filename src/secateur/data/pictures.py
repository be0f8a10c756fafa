"""Read picture files of any size and common format as images of a network's input shape."""

from __future__ import annotations

import os
import struct
import warnings
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

import numpy as np
import torch
from torch import Tensor

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


def printable(path: Path) -> str:
    """Return a path as text that any stream can print: bytes that are not UTF-8 become escapes."""
    return os.fsencode(path).decode("utf-8", "backslashreplace")


def read_picture(
    file: BinaryIO, name: str, shape: tuple[int, int, int], *, invert: bool = False, crop: bool = False
) -> Tensor:
    """Return a picture as uint8 of a network's input shape (channels, height, width).

    It is converted to grey or RGB, turned upright as its EXIF data say, and resized to the height and width: stretched,
    or with `crop` scaled until it covers them and cut at its centre. `invert` exchanges black and white, for a network
    trained on white strokes on black that is shown ink on paper. Transparent parts become the background: black, or
    white with `invert`. A DataError that begins with `name` says why a picture cannot be read.
    """
    channels, height, width = shape
    if channels not in (1, 3):
        raise ValueError(f"pictures have 1 channel or 3, the network takes {channels}")
    mode, background = "L" if channels == 1 else "RGB", 255 if invert else 0
    picture = _decode(file, name, mode, background, least_side=max(height, width) if crop else None)
    if picture.size != (width, height):
        box = _central_box(picture.size, (width, height)) if crop else None
        picture = picture.resize((width, height), _bilinear(), box)  # averages where the picture gets smaller
    pixels = torch.from_numpy(np.array(picture)).reshape(height, width, channels).permute(2, 0, 1).contiguous()
    return 255 - pixels if invert else pixels


def picture_size(path: Path) -> tuple[int, int] | None:
    """Return height and width of a picture turned upright, from its header alone; None if it cannot be read."""
    from PIL import Image

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
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


def _decode(file: BinaryIO, name: str, mode: str, background: int, least_side: int | None) -> Image:
    require_pillow()
    from PIL import Image, ImageOps, UnidentifiedImageError

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # on odd headers, and on the size, which is checked below
        try:
            with Image.open(file, formats=tuple(_FORMATS)) as opened:
                wide, high = opened.size  # known from the header, before memory is allocated
                if wide * high > _MOST_PIXELS:
                    raise _TooLargeError
                if least_side is not None:
                    # Decoding a large JPEG at a half, a quarter or an eighth of its size is several times as fast.
                    opened.draft(None, (least_side, least_side))
                opened.load()
                return _flat(ImageOps.exif_transpose(opened), mode, background)
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
    return picture.convert(mode)


def _central_box(size: tuple[int, int], wanted: tuple[int, int]) -> tuple[float, float, float, float]:
    """Return the largest centred part of a picture that has the wanted ratio of width to height, in its pixels."""
    scale = min(size[0] / wanted[0], size[1] / wanted[1])
    width, height = wanted[0] * scale, wanted[1] * scale
    left, top = (size[0] - width) / 2, (size[1] - height) / 2
    return max(left, 0.0), max(top, 0.0), min(left + width, size[0]), min(top + height, size[1])


def _bilinear() -> int:
    from PIL import Image

    return Image.Resampling.BILINEAR
