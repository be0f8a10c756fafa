"""Images that are part of a page."""

from __future__ import annotations

import base64
import io
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True)
class Picture:
    """An image with its description, small enough to be part of a page."""

    source: str  # a data: address
    width: int
    height: int
    caption: str
    alternative: str


def as_picture(pixels: npt.NDArray[np.uint8], *, caption: str, alternative: str) -> Picture:
    """Return pixels (height, width), or (height, width, channels), as a picture."""
    from PIL import Image  # the report extra

    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG", optimize=True)
    source = "data:image/png;base64," + base64.b64encode(file.getvalue()).decode()
    return Picture(source, pixels.shape[1], pixels.shape[0], caption, alternative)
