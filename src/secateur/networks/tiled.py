"""Convolutions that share weights between some places only: from ordinary to locally connected by one number.

The output at (y, x) is computed with the bank of filters (y mod tile, x mod tile):

    tile 1                     one bank for all places: the ordinary convolution (LeCun et al. 1998)
    tile k                     k² banks, each for places k apart: tiled convolution (Gregor & LeCun 2010)
    tile = size of the output  a bank for every place: locally connected receptive fields (Coates & Ng 2011)
"""

from __future__ import annotations

from itertools import product

from torch import Tensor, nn
from torch.nn import functional


class TiledConv2d(nn.Conv2d):
    """A convolution with tile² banks of filters.

    It stores them one after the other, bank (i, j) as the filters from (i·tile + j)·filters on, with a bias for each.
    For whatever prunes, counts or stores weights it is a convolution with so many filters.
    """

    def __init__(
        self,
        in_channels: int,
        filters: int,
        kernel_size: int | tuple[int, int],
        *,
        tile: int,
        stride: int | tuple[int, int] = 1,
        padding: int | tuple[int, int] = 0,
        bias: bool = True,
    ) -> None:
        if tile < 1:
            raise ValueError(f"tile must be a whole number ≥ 1, got {tile}")
        super().__init__(in_channels, filters * tile * tile, kernel_size, stride, padding, bias=bias)
        self.filters, self.tile = filters, tile

    def forward(self, x: Tensor) -> Tensor:
        """Return the outputs (samples, filters, height, width)."""
        assert not isinstance(self.padding, str)
        x = functional.pad(x, (self.padding[1], self.padding[1], self.padding[0], self.padding[0]))
        sizes = zip(x.shape[2:], self.kernel_size, self.stride, strict=True)
        height, width = ((size - kernel) // stride + 1 for size, kernel, stride in sizes)
        out = x.new_empty(len(x), self.filters, height, width)
        weights = self.weight.split(self.filters)
        biases = [None] * len(weights) if self.bias is None else self.bias.split(self.filters)
        for bank, (i, j) in enumerate(product(range(self.tile), repeat=2)):
            if i < height and j < width:  # a tile that is larger than the output leaves banks unused
                seen = x[:, :, i * self.stride[0] :, j * self.stride[1] :]
                steps = self.tile * self.stride[0], self.tile * self.stride[1]
                out[:, :, i :: self.tile, j :: self.tile] = functional.conv2d(seen, weights[bank], biases[bank], steps)
        return out

    def extra_repr(self) -> str:
        """Show the tile with the rest."""
        inherited: str = super().extra_repr()  # type: ignore[no-untyped-call]  # torch's
        return f"{inherited}, filters={self.filters}, tile={self.tile}"
