"""The error that every reader of .cut files raises."""

from __future__ import annotations


class FormatError(ValueError):
    """A damaged or unknown .cut file: what is wrong, in which tensor, at which byte."""

    def __init__(self, message: str, *, offset: int | None = None, tensor: str | None = None) -> None:
        place = [f'tensor "{tensor}"'] if tensor is not None else []
        place += [f"byte {offset}"] if offset is not None else []
        super().__init__(f"{', '.join(place)}: {message}" if place else message)
        self.message, self.offset, self.tensor = message, offset, tensor

    def inside(self, tensor: str, start: int) -> FormatError:
        """Return the same error for a file that holds the stream of `tensor` at byte `start`."""
        return FormatError(self.message, offset=start + (self.offset or 0), tensor=tensor)
