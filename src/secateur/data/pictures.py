"""Pictures of any size and kind, as they lie on a disk, become inputs like those a network was trained on."""

from __future__ import annotations

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

# What Pillow may try, and what counts as a picture in a folder. It knows more: some readers start other programs, and
# that of TIFF complains of every damaged file on standard error by itself.
_FORMATS = {
    "PNG": (".png",),
    "JPEG": (".jpg", ".jpeg"),
    "WEBP": (".webp",),
    "BMP": (".bmp",),
    "GIF": (".gif",),
    "PPM": (".pgm", ".ppm", ".pbm", ".pnm"),
}
_SUFFIXES = tuple(suffix for suffixes in _FORMATS.values() for suffix in suffixes)
_MODES = ("1", "L", "LA", "P", "PA", "RGB", "RGBA", "CMYK", "YCbCr", "HSV")  # what can be shown as grey and RGB
_MOST_PIXELS = 1 << 26  # 67 million: more than most cameras take, and some hundred MB while it is read
# A reader of a broken file stumbles over whatever it parsed last; these are what Pillow's were seen to raise.
_STUMBLES = (
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
    """Yield the pictures in a folder by name, those of folders inside not included."""
    return (path for path in sorted(folder.iterdir()) if path.suffix.lower() in _SUFFIXES and path.is_file())


def picture_suffixes() -> tuple[str, ...]:
    """Return the endings of names that `find_pictures` looks for."""
    return _SUFFIXES


def read_picture(file: BinaryIO, name: str, shape: tuple[int, int, int], *, invert: bool = False) -> Tensor:
    """Return a picture as uint8 of a network's input shape (channels, height, width).

    It becomes grey or RGB, lies as its camera was held, and is resized to the height and width, whatever its sides are
    to each other. `invert` exchanges black and white, for a network of white strokes on black that is shown ink on
    paper. What is transparent is the background: black, or with `invert` paper. A DataError says why there is none,
    and begins with `name`.
    """
    channels, height, width = shape
    if channels not in (1, 3):
        raise ValueError(f"pictures have 1 channel or 3, the network takes {channels}")
    picture = _decode(file, name, "L" if channels == 1 else "RGB", background=255 if invert else 0)
    if picture.size != (width, height):
        picture = picture.resize((width, height), _bilinear())  # which averages where the picture gets smaller
    pixels = torch.from_numpy(np.array(picture)).reshape(height, width, channels).permute(2, 0, 1).contiguous()
    return 255 - pixels if invert else pixels


def require_pillow() -> None:
    """Raise a DataError where Pillow, which reads pictures, is not installed."""
    try:
        import PIL  # noqa: F401  # optional, so not at the top
    except ModuleNotFoundError as error:
        remedy = "pip install 'secateur[vision]'"
        raise DataError(f"pictures are read by Pillow, which is not installed: {remedy}") from error


def _decode(file: BinaryIO, name: str, mode: str, background: int) -> Image:
    require_pillow()
    from PIL import Image, ImageOps, UnidentifiedImageError

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # on odd headers and on size, which is our own concern
        try:
            with Image.open(file, formats=tuple(_FORMATS)) as opened:
                wide, high = opened.size  # known from the header, before memory is taken
                if wide * high > _MOST_PIXELS:
                    raise _TooLargeError
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
        except _STUMBLES as error:
            said = str(error).strip().partition("\n")[0] or type(error).__name__
            raise DataError(f"{name} is damaged or cut short ({said}): copy it again") from error


class _TooLargeError(Exception):
    """A picture has more pixels than are read."""


class _UnknownPixelsError(Exception):
    """A picture has pixels that are no levels of grey or colour."""


def _flat(picture: Image, mode: str, background: int) -> Image:
    """Return a picture in grey or RGB, nothing of it transparent."""
    from PIL import Image

    if picture.mode.startswith("I"):  # 16 bits, also where Pillow keeps them in 32
        picture = Image.fromarray((np.asarray(picture) // 257).astype(np.uint8))
    elif picture.mode not in _MODES:
        raise _UnknownPixelsError(picture.mode)
    if picture.has_transparency_data:
        layer = picture.convert("RGBA")
        below = Image.new("RGBA", layer.size, (background, background, background, 255))
        picture = Image.alpha_composite(below, layer)
    return picture.convert(mode)


def _bilinear() -> int:
    from PIL import Image

    return Image.Resampling.BILINEAR
