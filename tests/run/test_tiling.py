"""How convolutions are divided into bands and tiles."""

import math
from dataclasses import replace

import pytest
from sparse_layers import (
    sparse_layer,
)

from secateur.run import Kernel
from secateur.run.kernels import bindings, layout, tiling
from secateur.run.sparse_layer import Window


def image_of(
    channels: int, filters: int, kernel: int, size: int, stride: int = 1, pad: int | None = None, density: float = 0.2
) -> tiling.Image:
    window = Window((stride, stride), (kernel // 2 if pad is None else pad,) * 2)
    layer = sparse_layer((filters, channels, kernel, kernel), density, window=window)
    return tiling.Image.of(layer, (channels, size, size))


@pytest.mark.parametrize(
    ("size", "stride", "pad", "kernel", "pitch", "spill", "tile"),
    [
        (12, 1, 1, 3, 13, 1, 0),  # zeros on the left serve the row before
        (7, 1, 2, 5, 9, 2, 0),
        (9, 1, 0, 3, 9, 0, 0),  # no zeros, nothing to share
        (28, 2, 0, 1, 14, 0, 0),  # nor anything between rows: they are one
        (40, 2, 1, 3, 21, 0, 0),  # one phase has a zero on its left and a pixel more
        (14, 1, 1, 3, 16, 0, 2),  # seven rows of two vectors
        (56, 2, 1, 3, 32, 0, 4),
        (56, 1, 1, 3, 64, 0, 7),
        (72, 1, 1, 3, 80, 0, 5),  # nine vectors: five, and five
        (224, 1, 1, 3, 232, 0, 7),
    ],
)
def test_rows_of_a_packed_image_stand_close_or_make_tiles(size, stride, pad, kernel, pitch, spill, tile):
    frame = next(tiling._straight(image_of(1, 1, kernel, size, stride, pad, density=1.0), 8))
    assert (frame.pitch, frame.spill, frame.tile) == (pitch, spill, tile)


@pytest.mark.parametrize(
    ("size", "lanes", "strips", "columns"),
    [
        (14, 16, 1, 1),  # 14 pixels and two that are lost
        (28, 16, 1, 2),
        (56, 16, 1, 4),
        (112, 16, 2, 4),
        (224, 16, 3, 5),  # of 75 columns
        (14, 8, 1, 2),
        (7, 8, 2, 1),  # two vectors would hold seven pixels, and one vector of none
    ],
)
def test_sums_that_move_lose_pixels_at_the_end_of_a_strip(size, lanes, strips, columns):
    frames = list(tiling._turned(image_of(1, 1, 3, size, density=1.0), lanes))
    assert all(frame.turns == 2 and frame.pitch == frame.tile * lanes for frame in frames)
    assert all((frame.tile - 1) * lanes <= frame.span <= frame.tile * lanes - 2 for frame in frames)
    vectors = {(math.ceil(size / frame.span) * frame.tile, frame.tile) for frame in frames}
    assert (strips * columns, columns) in vectors
    assert min(vectors)[0] == strips * columns  # nothing takes fewer


def test_sums_do_not_move_where_no_weight_looks_aside_or_one_looks_far():
    assert not list(tiling._turned(image_of(2, 2, 1, 28, stride=2, density=1.0), 8))
    assert not list(tiling._turned(image_of(2, 2, 9, 28, density=1.0), 8))
    assert not list(tiling._turned(image_of(2, 2, 3, 5, density=1.0), 16))  # a tile is higher than the image


@pytest.mark.parametrize(
    ("kernel", "size", "stride", "aligned"),
    [
        (3, 28, 1, True),
        (3, 28, 2, True),
        (1, 28, 1, False),  # planes of 784 pixels begin as vectors do
        (1, 14, 1, True),  # those of 196 do not
        (1, 14, 2, False),  # what is split is packed anyway
    ],
)
def test_aligned_kernels_are_others_where_loads_would_lie_across_lines(kernel, size, stride, aligned):
    layer, sample = image_of(2, 2, kernel, size, stride, density=1.0).layer, (2, size, size)
    assert tiling.aligns(layer, sample, 16) == aligned
    steps = [layout.lay_out([layer], sample, Kernel(aligned=each), 16, 1).keep[1][0] for each in (False, True)]
    geometries = [[getattr(step, name) for name in bindings._GEOMETRY] for step in steps]
    assert (geometries[0] != geometries[1]) == aligned
    assert not tiling.aligns(sparse_layer((3, 4), 1.0), (4,), 16)


@pytest.mark.parametrize("aligned", [False, True])
@pytest.mark.parametrize("lanes", [8, 16])
@pytest.mark.parametrize(
    ("channels", "filters", "kernel", "size", "stride"),
    [(64, 64, 3, 224, 1), (512, 512, 3, 14, 1), (512, 512, 3, 28, 1), (256, 256, 3, 28, 2), (1024, 256, 1, 14, 1)],
)
def test_bands_are_of_whole_tiles_and_fit_the_cache(channels, filters, kernel, size, stride, lanes, aligned):
    image = image_of(channels, filters, kernel, size, stride)
    found = tiling.choose_frame(image, Kernel(aligned=aligned), lanes, 1)
    if not found.packs:
        assert (kernel, stride, aligned) == (1, 1, False)
        return
    planes = len(image.phases) * channels
    assert planes * (found.band + image.halo) * found.pitch * 4 <= 512 << 10 or found.band == found.tall
    fits = planes * (found.tall + image.halo) * found.pitch * 4 <= 512 << 10
    assert not (found.tile and fits) or found.band % found.tall == 0 or found.band == image.out[0]


def test_bands_fill_runs_of_vectors_or_tiles():
    def of(*shape, **settings):
        frame = tiling.choose_frame(image_of(*shape, **settings), Kernel(), 8, 1)
        return frame.band, frame.tile

    # 14 rows of 14 pixels are 25 vectors: three runs, so that of the bands that make no more the smallest is taken.
    assert of(512, 1024, 1, 28, 2) == (5, 0)
    assert of(256, 256, 3, 14) == (7, 2)  # the rows of a tile
    assert of(128, 128, 3, 56, 2) == (7, 2)  # four of them, and none twice
    assert of(1, 1, 3, 5) == (5, 0)


def test_rows_so_long_that_a_few_fill_the_cache_are_made_in_strips():
    found = tiling.choose_frame(image_of(64, 64, 3, 224, density=0.05), Kernel(), 8, 1)
    assert (found.span, found.pitch, found.areas((found.band, 224), 8)) == (56, 64, 4)
    assert 64 * (found.band + 2) * 64 * 4 <= tiling._BAND_BYTES
    assert tiling.choose_frame(image_of(3, 64, 3, 224), Kernel(), 8, 1).span == 224  # three channels are few
    assert tiling.choose_frame(image_of(256, 64, 3, 56), Kernel(), 8, 1).span == 56  # a row is a tile


@pytest.mark.parametrize(
    ("band", "tile", "tall", "height", "count", "lower"),
    [
        (14, 2, 7, 14, 1, 14),
        (14, 2, 7, 14, 2, 7),  # rows of a tile
        (14, 2, 7, 14, 8, 7),
        (14, 2, 7, 28, 2, 14),  # there are two
        (12, 7, 2, 12, 4, 6),  # not three, which are a tile and a half
        (12, 7, 2, 12, 2, 6),
        (14, 0, 1, 14, 2, 14),  # runs of pixels would end elsewhere
        (14, 2, 7, 27, 4, 14),  # the last of four would be lower than a tile
    ],
)
def test_threads_get_slabs_of_their_own_where_tiles_stay_whole(band, tile, tall, height, count, lower):
    frame = tiling.Frame(True, band, 56, 64, 0, tile, tall)
    assert frame.for_threads((height, 56), count, 8) == replace(frame, band=lower)


def test_planes_do_not_meet_in_few_places_of_the_cache():
    assert tiling.plane_floats(225, 8) == 232
    assert tiling.plane_floats(16 * 64, 8) == 16 * 64 + 16


@pytest.mark.parametrize(
    ("filters", "bands", "count", "wanted"),
    [
        (256, 1, 1, 256),  # alone, a thread reads pixels once for all filters,
        (2048, 1, 1, 256),  # or for as many as have sums in the cache
        (256, 1, 2, 64),  # two threads have two pieces each
        (256, 2, 2, 128),
        (256, 8, 2, 256),  # which bands may be as well
        (40, 1, 4, 32),  # but none of few filters
        (8, 1, 4, 8),
        (0, 1, 1, 1),
    ],
)
def test_threads_find_two_pieces_each_where_filters_are_not_too_few(filters, bands, count, wanted):
    assert tiling.filters_in_segment(filters, bands, count) == wanted
