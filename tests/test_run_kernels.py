"""Sparse chains compute what dense torch computes in float64, whatever their shape, kernel and number of threads.

Two differences are meant. A weight that is zero is not read, so that an infinity or NaN it would have met leaves no
trace (dense: 0 · ∞ = NaN); and denormals, in weights, inputs and results, count as zeros.
"""

import copy
import math
import threading
from contextlib import contextmanager
from dataclasses import replace
from unittest.mock import patch

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from secateur import native
from secateur.run import Kernel, SparseChain, kernels, layout
from secateur.run.layers import Layer, Pool, Window
from secateur.run.weights import SparseWeight, pack_offsets

KERNELS = [
    Kernel(vectors, spread, shared, aligned)
    for vectors in (0, 1, 2, 4, 8)
    for spread in (1, 3)
    for shared in (False, True)
    for aligned in ((False, True) if vectors == 0 else (False,))
]
ACTIVATIONS = ["none", "relu", "gelu", "gelu_tanh"]
BUILDS = [build for build in native._builds() if native._open(build)]

needs_native = pytest.mark.skipif(not BUILDS, reason="the native library is not built")


def routine_of(build: str) -> tuple[kernels.Call, int]:
    """Return a build's own routine, and its lanes: the machine's best is not the only one it can run."""
    library = native._open(build)
    call = library["secateur_chain"]
    call.restype, call.argtypes = kernels.chain_routine().restype, kernels.chain_routine().argtypes
    return call, library["secateur_lanes"]()


ROUTINES = {build: routine_of(build) for build in BUILDS}
# How a chain is computed: by one of the builds, or by the twin.
ways = st.sampled_from([*BUILDS, "twin"])


@contextmanager
def threads(count: int):
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    yield
    torch.set_num_threads(before)


def sparse_layer(
    shape: tuple[int, ...],
    density: float,
    activation: str = "none",
    window: Window | None = None,
    pool: Pool | None = None,
    levels: int = 0,
) -> Layer:
    """A layer of random weights, of so many distinct values if `levels` is given."""
    weight = torch.randn(shape) if levels == 0 else torch.randint(1, levels + 1, shape) / levels
    weight = torch.where(torch.rand(shape) < density, weight, torch.zeros(()))
    return Layer(SparseWeight.of(weight), torch.randn(shape[0]).numpy(), activation, window, pool)


def dense(layers: list[Layer], x: Tensor, residual: Tensor | None = None) -> Tensor:
    """The same by dense torch, in float64."""
    y = x.double()
    for layer in layers:
        weight, bias, window = layer.weight.dense().double(), torch.from_numpy(layer.bias).double(), layer.window
        if window is None:
            y = F.linear(y if y.shape[-1:] == weight.shape[1:] else y.flatten(1), weight, bias)
        else:
            y = F.conv2d(y, weight, bias, window.stride, window.padding, window.dilation, window.groups)
        if residual is not None and layer is layers[-1]:
            y = y + residual.double()
        if layer.activation == "relu":
            y = F.relu(y)
        elif layer.activation != "none":
            y = F.gelu(y, approximate="none" if layer.activation == "gelu" else "tanh")
        if layer.pool is not None:
            y = F.max_pool2d(y, layer.pool.size, layer.pool.stride)
    return y


def assert_near(found: Tensor, wanted: Tensor) -> None:
    assert found.dtype is torch.float32
    assert found.shape == wanted.shape
    most = float(wanted.abs().max()) if wanted.numel() else 0.0
    torch.testing.assert_close(found.double(), wanted, rtol=0, atol=1e-4 * most + 1e-12)


def chain_of(layers: list[Layer], kernel: Kernel, way: str = "", **options: bool) -> SparseChain:
    chain = SparseChain(layers, kernel, **options)
    if way:
        chain._call, chain._lanes = ROUTINES.get(way, (None, 8))
    return chain


def steps_of(chain: SparseChain) -> list[kernels.Step]:
    """The layers of a chain that has run, as they were laid out."""
    (laid_out,) = chain._prepared.values()
    return list(laid_out.keep[1])


# ---- every shape ----


@settings(max_examples=150)
@given(
    rows=st.integers(0, 90),
    columns=st.integers(0, 200),
    batch=st.integers(1, 70),
    density=st.sampled_from([0.0, 0.01, 0.1, 0.4, 1.0]),
    activation=st.sampled_from(ACTIVATIONS),
    kernel=st.sampled_from(KERNELS),
    levels=st.sampled_from([0, 5]),
    adds=st.booleans(),
    way=ways,
    seed=st.integers(0, 2**20),
)
def test_a_linear_layer_is_the_dense_one(rows, columns, batch, density, activation, kernel, levels, adds, way, seed):
    torch.manual_seed(seed)
    layer = sparse_layer((rows, columns), density, activation, levels=levels)
    x = torch.randn(batch, columns)
    residual = torch.randn(batch, rows) if adds and not kernel.vectors else None
    chain = chain_of([layer], kernel, way)
    for _ in range(2):  # the second call finds everything laid out
        assert_near(chain(x, residual), dense([layer], x, residual))


@pytest.mark.parametrize("kernel", KERNELS, ids=lambda kernel: kernel.name)
def test_what_no_weight_looks_at_may_be_anything(kernel):
    weight = torch.randint(1, 4, (21, 30)).float() * (torch.rand(21, 30) < torch.linspace(0, 1, 21)[:, None])
    weight[:, [0, 7]] = 0
    layer = Layer(SparseWeight.of(weight), torch.ones(21).numpy(), "none", None, None)
    clean = torch.randn(5, 30)
    x = clean.clone()
    x[:, [0, 7]] = torch.tensor([torch.nan, torch.inf])
    assert torch.equal(chain_of([layer], kernel)(x), chain_of([layer], kernel)(clean))


windows = st.builds(
    Window,
    stride=st.tuples(st.integers(1, 3), st.integers(1, 3)),
    padding=st.tuples(st.integers(0, 3), st.integers(0, 3)),
    dilation=st.tuples(st.integers(1, 3), st.integers(1, 3)),
    groups=st.integers(1, 3),
)


@settings(max_examples=250)
@given(
    window=windows,
    filters=st.integers(1, 20),
    channels=st.integers(1, 5),
    kernel_size=st.tuples(st.integers(1, 4), st.integers(1, 4)),
    size=st.tuples(st.integers(1, 17), st.integers(1, 17)),
    batch=st.integers(1, 20),
    density=st.sampled_from([0.0, 0.05, 0.3, 1.0]),
    activation=st.sampled_from(ACTIVATIONS),
    pool=st.sampled_from([None, None, Pool(2, 2), Pool(3, 2), Pool(2, 1), Pool(1, 3)]),
    kernel=st.sampled_from(KERNELS),
    levels=st.sampled_from([0, 5]),
    adds=st.booleans(),
    way=ways,
    seed=st.integers(0, 2**20),
)
def test_a_convolution_is_the_dense_one(
    window, filters, channels, kernel_size, size, batch, density, activation, pool, kernel, levels, adds, way, seed
):
    torch.manual_seed(seed)
    assume(min(window.out(size, kernel_size)) >= (pool.size if pool else 1))
    shape = (filters * window.groups, channels, *kernel_size)
    layer = sparse_layer(shape, density, activation, window, pool, levels)
    x = torch.randn(batch, channels * window.groups, *size)
    adds = adds and not kernel.vectors and pool is None
    residual = torch.randn(batch, shape[0], *window.out(size, kernel_size)) if adds else None
    chain = chain_of([layer], kernel, way)
    for _ in range(2):
        assert_near(chain(x, residual), dense([layer], x, residual))


@settings(max_examples=250)
@given(
    window=st.sampled_from([Window(), Window(padding=(1, 1)), Window((2, 2), (1, 1)), Window((1, 2), (2, 3))]),
    kernel_size=st.tuples(st.integers(1, 3), st.integers(1, 5)),
    size=st.tuples(st.integers(1, 30), st.one_of(st.sampled_from([14, 28, 30, 56, 60, 112]), st.integers(9, 240))),
    density=st.sampled_from([0, 0.02, 0.3]),
    activation=st.sampled_from(ACTIVATIONS),
    adds=st.booleans(),
    slab=st.sampled_from([1, 20_000, 1 << 19]),
    strips=st.booleans(),
    channels_at_once=st.sampled_from([1, 2, 3]),
    aligned=st.booleans(),
    way=ways,
    seed=st.integers(0, 2**20),
)
def test_wide_images_are_made_in_tiles_bands_and_strips_of_any_size(
    window, kernel_size, size, density, activation, adds, slab, strips, channels_at_once, aligned, way, seed
):
    torch.manual_seed(seed)
    layer = sparse_layer((5, 3, *kernel_size), density, activation, window)
    x = torch.randn(2, 3, *size)
    assume(min(window.out(size, kernel_size)) >= 1)
    residual = torch.randn(2, 5, *window.out(size, kernel_size)) if adds else None
    sizes = {"_MOST_BAND_BYTES": slab}
    if strips:  # which the slab of a band of whole rows is too large for
        sizes |= {"_BAND_BYTES": 3 * 30 * 72 * 4, "_PACK_CYCLES": 0}
    if channels_at_once < 3:  # a block is a channel, and slabs are large
        sizes |= {"_L1_BYTES": 1, "_WEIGHTS_IN_BLOCK": {0: 0}, "_MOST_SLAB_BYTES": 0}
        sizes |= {"_SLAB_BYTES": channels_at_once * 1000}
    with patch.multiple(layout, **sizes):
        chain = chain_of([layer], Kernel(aligned=aligned), way)
        assert_near(chain(x, residual), dense([layer], x, residual))


@needs_native
@pytest.mark.parametrize("build", BUILDS)
@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize("channels", [3, 40])
def test_results_of_long_rows_are_made_strip_by_strip(build, count, channels):
    # Slabs are asked for ahead by as many channels as there are filters, and by the others when these are done.
    torch.manual_seed(0)
    layer = sparse_layer((12, channels, 3, 3), 0.05, "relu", Window(padding=(1, 1)))
    x, residual = torch.randn(1, channels, 40, 448), torch.randn(1, 12, 40, 448)
    with patch.multiple(layout, _BAND_BYTES=channels * 8 * 120 * 4, _PACK_CYCLES=0):
        chain = chain_of([layer], Kernel(0), build)
        with threads(count):
            assert_near(chain(x, residual), dense([layer], x, residual))
        assert steps_of(chain)[0].span == layout._LONGEST_TILE * ROUTINES[build][1]


@needs_native
@pytest.mark.parametrize("build", BUILDS)
def test_a_slab_that_would_fill_the_cache_holds_some_blocks_of_channels_at_a_time(build):
    torch.manual_seed(0)
    layer = sparse_layer((20, 70, 3, 3), 0.05, "none", Window(stride=(2, 2), padding=(1, 1)))
    x = torch.randn(1, 70, 56, 56)
    with patch.multiple(layout, _WEIGHTS_IN_BLOCK={0: 2}, _MOST_SLAB_BYTES=0, _SLAB_BYTES=250_000):
        chain = chain_of([layer], Kernel(0), build)
        assert_near(chain(x), dense([layer], x))
        (step,) = steps_of(chain)
        assert 1 < step.slab_blocks < step.blocks


@needs_native
@pytest.mark.parametrize("build", BUILDS)
@pytest.mark.parametrize("activation", ["none", "gelu"])
@pytest.mark.parametrize("size", [(5, 58), (3, 193), (13, 89)], ids=["four lanes", "eight", "sixteen"])
def test_the_last_run_of_an_image_may_be_shorter_than_a_vector(size, activation, build):
    # 73 vectors are six runs of twelve and one more, of which there is a part only.
    torch.manual_seed(0)
    layer = sparse_layer((4, 2, 1, 1), 1.0, activation, Window())
    x = torch.randn(1, 2, *size)
    assert_near(chain_of([layer], Kernel(0), build)(x), dense([layer], x))


def image_of(
    channels: int, filters: int, kernel: int, size: int, stride: int = 1, pad: int | None = None, density: float = 0.2
) -> layout._Image:
    window = Window((stride, stride), (kernel // 2 if pad is None else pad,) * 2)
    layer = sparse_layer((filters, channels, kernel, kernel), density, window=window)
    return layout._Image.of(layer, (channels, size, size))


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
    frame = next(layout._straight(image_of(1, 1, kernel, size, stride, pad, density=1.0), 8))
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
    frames = list(layout._turned(image_of(1, 1, 3, size, density=1.0), lanes))
    assert all(frame.turns == 2 and frame.pitch == frame.tile * lanes for frame in frames)
    assert all((frame.tile - 1) * lanes <= frame.span <= frame.tile * lanes - 2 for frame in frames)
    vectors = {(math.ceil(size / frame.span) * frame.tile, frame.tile) for frame in frames}
    assert (strips * columns, columns) in vectors
    assert min(vectors)[0] == strips * columns  # nothing takes fewer


def test_sums_do_not_move_where_no_weight_looks_aside_or_one_looks_far():
    assert not list(layout._turned(image_of(2, 2, 1, 28, stride=2, density=1.0), 8))
    assert not list(layout._turned(image_of(2, 2, 9, 28, density=1.0), 8))
    assert not list(layout._turned(image_of(2, 2, 3, 5, density=1.0), 16))  # a tile is higher than the image


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
    assert layout.aligns(layer, sample, 16) == aligned
    steps = [layout.lay_out([layer], sample, Kernel(aligned=each), 16, 1).keep[1][0] for each in (False, True)]
    geometries = [[getattr(step, name) for name in kernels._GEOMETRY] for step in steps]
    assert (geometries[0] != geometries[1]) == aligned
    assert not layout.aligns(sparse_layer((3, 4), 1.0), (4,), 16)


@pytest.mark.parametrize("aligned", [False, True])
@pytest.mark.parametrize("lanes", [8, 16])
@pytest.mark.parametrize(
    ("channels", "filters", "kernel", "size", "stride"),
    [(64, 64, 3, 224, 1), (512, 512, 3, 14, 1), (512, 512, 3, 28, 1), (256, 256, 3, 28, 2), (1024, 256, 1, 14, 1)],
)
def test_bands_are_of_whole_tiles_and_fit_the_cache(channels, filters, kernel, size, stride, lanes, aligned):
    image = image_of(channels, filters, kernel, size, stride)
    found = layout._frame(image, Kernel(aligned=aligned), lanes, 1)
    if not found.packs:
        assert (kernel, stride, aligned) == (1, 1, False)
        return
    planes = len(image.phases) * channels
    assert planes * (found.band + image.halo) * found.pitch * 4 <= 512 << 10 or found.band == found.tall
    fits = planes * (found.tall + image.halo) * found.pitch * 4 <= 512 << 10
    assert not (found.tile and fits) or found.band % found.tall == 0 or found.band == image.out[0]


def test_bands_fill_runs_of_vectors_or_tiles():
    def of(*shape, **settings):
        frame = layout._frame(image_of(*shape, **settings), Kernel(), 8, 1)
        return frame.band, frame.tile

    # 14 rows of 14 pixels are 25 vectors: three runs, so that of the bands that make no more the smallest is taken.
    assert of(512, 1024, 1, 28, 2) == (5, 0)
    assert of(256, 256, 3, 14) == (7, 2)  # the rows of a tile
    assert of(128, 128, 3, 56, 2) == (7, 2)  # four of them, and none twice
    assert of(1, 1, 3, 5) == (5, 0)


def test_rows_so_long_that_a_few_fill_the_cache_are_made_in_strips():
    found = layout._frame(image_of(64, 64, 3, 224, density=0.05), Kernel(), 8, 1)
    assert (found.span, found.pitch, found.areas((found.band, 224), 8)) == (56, 64, 4)
    assert 64 * (found.band + 2) * 64 * 4 <= layout._BAND_BYTES
    assert layout._frame(image_of(3, 64, 3, 224), Kernel(), 8, 1).span == 224  # three channels are few
    assert layout._frame(image_of(256, 64, 3, 56), Kernel(), 8, 1).span == 56  # a row is a tile


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
    frame = layout._Frame(True, band, 56, 64, 0, tile, tall)
    assert frame.for_threads((height, 56), count, 8) == replace(frame, band=lower)


@needs_native
@pytest.mark.parametrize("build", BUILDS)
@pytest.mark.parametrize("aligned", [False, True])
def test_the_bits_do_not_depend_on_whether_threads_have_slabs_of_their_own(aligned, build):
    torch.manual_seed(0)
    layer = sparse_layer((48, 40, 3, 3), 0.2, "relu", Window(padding=(1, 1)))
    lanes = ROUTINES[build][1]
    x, found, bands = torch.randn(1, 40, 28, 2 * lanes - 2 if aligned else 14 * lanes // 8), [], []
    for count in (1, 2):
        chain = chain_of([layer], Kernel(aligned=aligned), build)
        with threads(count):
            found.append(chain(x))
        bands.append(steps_of(chain)[0].band)
    assert bands[1] < bands[0]
    assert torch.equal(*found)


def test_planes_do_not_meet_in_few_places_of_the_cache():
    assert layout._plane(225, 8) == 232
    assert layout._plane(16 * 64, 8) == 16 * 64 + 16


@needs_native
def test_rows_that_read_the_same_come_after_each_other():
    # Rows 0, 2 and 4 read channels 0 to 3, the others 4 to 7.
    mask = torch.zeros(6, 8, 1, 1)
    mask[::2, :4], mask[1::2, 4:] = 1, 1
    weight = SparseWeight.of(mask)
    channel = weight.places % 8
    packed = pack_offsets(weight, channel * 9, channel, 8, 8, 6, parts=channel)
    assert packed.order.tolist() == [0, 2, 4, 1, 3, 5]
    assert packed.places.reshape(6, 4).tolist() == 3 * [[0, 9, 18, 27]] + 3 * [[36, 45, 54, 63]]
    sorted_by_count = pack_offsets(weight, channel * 9, channel, 8, 8, 6)
    assert sorted_by_count.order.tolist() == [0, 1, 2, 3, 4, 5]


@settings(max_examples=60)
@given(
    rows=st.integers(1, 40),
    columns=st.integers(1, 12),
    block=st.integers(1, 12),
    segment=st.integers(1, 40),
    density=st.sampled_from([0.0, 0.1, 0.5, 1.0]),
    seed=st.integers(0, 2**20),
)
def test_every_row_has_its_weights_in_whatever_order(rows, columns, block, segment, density, seed):
    torch.manual_seed(seed)
    dense = torch.randn(rows, columns) * (torch.rand(rows, columns) < density)
    weight = SparseWeight.of(dense)
    channel = weight.places % columns
    packed = pack_offsets(weight, channel, channel, columns, block, segment, parts=channel % block)
    cells = packed.order.reshape(-1, segment)
    found = torch.zeros(rows, columns)
    for k, row in enumerate(packed.order):
        for j in range(packed.starts[k], packed.starts[k + 1]):
            assert int(packed.places[j]) // block == k // segment % packed.blocks
            found[int(row), int(packed.places[j])] = float(packed.values[j])
    assert torch.equal(found, dense)
    assert all(sorted(cell) == [*range(min(cell), min(cell) + segment)] for cell in cells)


@settings(max_examples=80)
@given(
    stride=st.integers(1, 3),
    padding=st.integers(0, 3),
    dilation=st.integers(1, 3),
    groups=st.integers(1, 3),
    filters=st.integers(1, 9),
    channels=st.integers(1, 5),
    taps=st.integers(1, 5),
    length=st.integers(1, 70),
    lead=st.sampled_from([(), (1,), (9,)]),
    density=st.sampled_from([0.0, 0.3, 1.0]),
    kernel=st.sampled_from(KERNELS),
    adds=st.booleans(),
    way=ways,
    seed=st.integers(0, 2**20),
)
def test_a_convolution_over_lines_is_the_dense_one(
    stride, padding, dilation, groups, filters, channels, taps, length, lead, density, kernel, adds, way, seed
):
    torch.manual_seed(seed)
    assume(length + 2 * padding >= dilation * (taps - 1) + 1)
    module = nn.Conv1d(channels * groups, filters * groups, taps, stride, padding, dilation, groups)
    module.weight.data *= torch.rand(module.weight.shape) < density
    x = torch.randn(*lead, channels * groups, length)
    wanted = copy.deepcopy(module).double()(x.double()).detach()
    residual = torch.randn(wanted.shape) if adds and not kernel.vectors else None
    found = chain_of([Layer.of(module)], kernel, way)(x, residual)
    assert_near(found, wanted if residual is None else wanted + residual.double())


@pytest.mark.parametrize("way", [*BUILDS, "twin"])
@pytest.mark.parametrize("kernel", [Kernel(0), Kernel(2)])
def test_columns_beyond_two_bytes_are_found(way, kernel):
    layer = sparse_layer((5, 70_000), 0.01, "relu")
    x = torch.randn(3, 70_000)
    assert_near(chain_of([layer], kernel, way)(x), dense([layer], x))


@pytest.mark.parametrize("way", [*BUILDS, "twin"])
@pytest.mark.parametrize("kernel", [Kernel(0), Kernel(0, 1 << 20), Kernel(2)])
def test_offsets_beyond_two_bytes_are_found(way, kernel):
    layer = sparse_layer((3, 40, 3, 3), 0.1, window=Window(padding=(1, 1)))
    x = torch.randn(2, 40, 45, 47)
    assert_near(chain_of([layer], kernel, way)(x), dense([layer], x))


@pytest.mark.parametrize("way", BUILDS)
@pytest.mark.parametrize("stride", [(2, 17), (32, 32)])
def test_strides_may_be_larger_than_a_line_of_the_cache(way, stride):
    layer = sparse_layer((3, 2, 2, 2), 0.7, window=Window(stride))
    x = torch.randn(2, 2, 70, 70)
    assert_near(chain_of([layer], Kernel(0), way)(x), dense([layer], x))


@pytest.mark.parametrize("way", BUILDS)
@pytest.mark.parametrize("aside", [12, 18, 24, 36])
def test_short_rows_far_from_the_edge_of_a_padded_image_have_zeros_before_them(way, aside):
    # What a thread worked with before is still in its memory, and must not be taken for zeros.
    window = Window(padding=(aside, aside), dilation=(aside, aside))
    layer, x = sparse_layer((4, 3, 3, 3), 1.0, window=window), torch.randn(1, 3, 14, 14)
    other, noise = sparse_layer((4, 9, 3, 3), 0.5, window=Window(padding=(1, 1))), torch.full((1, 9, 60, 60), 1e6)
    for kernel in (Kernel(), Kernel(aligned=True)):
        chain_of([other], kernel, way)(noise)
        assert_near(chain_of([layer], kernel, way)(x), dense([layer], x))


def lenet(activation: str = "relu") -> list[Layer]:
    return [
        sparse_layer((6, 1, 5, 5), 0.3, activation, Window(padding=(2, 2)), Pool(2, 2)),
        sparse_layer((16, 6, 5, 5), 0.1, activation, Window(), Pool(2, 2)),
        sparse_layer((12, 16, 3, 3), 0.1, activation, Window(stride=(2, 2))),
        sparse_layer((30, 12 * 2 * 2), 0.2, activation),
        sparse_layer((10, 30), 0.3),
    ]


@pytest.mark.parametrize("way", [*BUILDS, "twin"])
@pytest.mark.parametrize("kernel", [Kernel(0), Kernel(0, 2, True), Kernel(1), Kernel(2), Kernel(4), Kernel(8)])
@pytest.mark.parametrize("batch", [1, 37])
def test_convolutions_and_linear_layers_run_as_one_chain(way, kernel, batch):
    layers = lenet("gelu" if batch == 1 else "relu")
    x = torch.randn(batch, 1, 28, 28)
    assert_near(chain_of(layers, kernel, way)(x), dense(layers, x))


@pytest.mark.parametrize("way", BUILDS)
@pytest.mark.parametrize("kernel", [Kernel(0), Kernel(2)])
def test_layers_without_filters_or_channels_leave_the_bias(way, kernel):
    none = sparse_layer((0, 2, 3, 3), 1.0, "relu", Window())
    layers = [none, sparse_layer((4, 0), 1.0)]
    assert_near(
        chain_of(layers, kernel, way)(torch.randn(2, 2, 5, 5)), torch.from_numpy(layers[1].bias).expand(2, 4).double()
    )
    blind = sparse_layer((4, 0, 3, 3), 1.0, window=Window())
    wanted = torch.from_numpy(blind.bias)[:, None, None].expand(2, 4, 3, 3).double()
    assert_near(chain_of([blind], kernel, way)(torch.randn(2, 0, 5, 5)), wanted)


@pytest.mark.parametrize("way", [*BUILDS, "twin"])
@pytest.mark.parametrize("kernel", [Kernel(0), Kernel(2)])
def test_one_chain_takes_images_of_any_size(way, kernel):
    layers = [sparse_layer((4, 2, 3, 3), 0.5, "relu", Window()), sparse_layer((3, 4, 3, 3), 0.5, window=Window((2, 1)))]
    chain = chain_of(layers, kernel, way)
    for size in ((9, 9), (5, 6), (30, 7), (9, 9), (5, 5)):
        x = torch.randn(3, 2, *size)
        assert_near(chain(x), dense(layers, x))


def test_a_chain_forgets_sizes_it_has_not_seen_for_long():
    chain = SparseChain([sparse_layer((2, 1, 2, 2), 1.0, window=Window())])
    for size in range(2, 200):
        chain(torch.randn(1, 1, size, 2))
    assert len(chain._prepared) < 50


# ---- every layout of the input ----


@pytest.mark.parametrize("way", [*BUILDS, "twin"])
@pytest.mark.parametrize("kernel", [Kernel(0), Kernel(2)])
@pytest.mark.parametrize("lead", [(), (1,), (7,), (2, 3), (1, 5), (2, 1, 4), (0,), (2, 0)])
def test_all_dimensions_before_the_last_are_samples(way, kernel, lead):
    layer = sparse_layer((6, 9), 0.5, "gelu")
    x = torch.randn(*lead, 9)
    chain = chain_of([layer], kernel, way)
    for _ in range(2):
        assert_near(chain(x), dense([layer], x))
    if not kernel.vectors:
        residual = torch.randn(*lead, 6)
        assert_near(chain(x, residual), dense([layer], x, residual))


@pytest.mark.parametrize("way", [*BUILDS, "twin"])
@pytest.mark.parametrize("kernel", [Kernel(0), Kernel(2)])
@pytest.mark.parametrize("lead", [(), (1,), (3,), (0,)])
def test_single_images_and_empty_batches_are_taken(way, kernel, lead):
    layer = sparse_layer((6, 2, 3, 3), 0.5, "relu", Window(), Pool(2, 2))
    x = torch.randn(*lead, 2, 9, 8)
    chain = chain_of([layer], kernel, way)
    for _ in range(2):
        assert_near(chain(x), dense([layer], x))


@pytest.mark.parametrize("way", [*BUILDS, "twin"])
def test_samples_of_any_shape_are_read_as_vectors(way):
    layer = sparse_layer((6, 24), 0.5)
    chain = chain_of([layer], Kernel(), way, flattens="samples")
    for shape in ((5, 24), (5, 2, 3, 4), (5, 4, 3, 2), (1, 24, 1)):
        x = torch.randn(shape)
        assert_near(chain(x), dense([layer], x.flatten(1)))


@pytest.mark.parametrize("way", [*BUILDS, "twin"])
def test_results_lie_in_memory_as_torch_has_them(way):
    chain = chain_of([sparse_layer((6, 9), 0.5)], Kernel(), way)
    assert all(chain(torch.randn(batch, 9)).is_contiguous() for batch in (1, 5))


@pytest.mark.parametrize("way", [*BUILDS, "twin"])
@pytest.mark.parametrize("kernel", [Kernel(0), Kernel(4)])
def test_strides_of_the_input_do_not_matter(way, kernel):
    layer, x = sparse_layer((6, 9), 0.5), torch.randn(9, 20)
    chain = chain_of([layer], kernel, way)
    chain(torch.randn(2, 9))
    for view in (x.t(), torch.randn(40, 9)[::2], torch.randn(20, 18)[:, ::2], torch.randn(1, 9).expand(20, 9)):
        assert_near(chain(view), dense([layer], view))
    image, images = sparse_layer((4, 3, 3, 3), 0.5, window=Window()), torch.randn(5, 3, 8, 7)
    chain = chain_of([image], kernel, way)
    chain(images)
    for view in (images.to(memory_format=torch.channels_last), images.transpose(2, 3), images[:, :, ::2, 1:]):
        assert_near(chain(view), dense([image], view))


@pytest.mark.parametrize("way", [*BUILDS, "twin"])
def test_a_residual_of_any_strides_is_added(way):
    layer, x = sparse_layer((4, 3, 3, 3), 0.5, "relu", Window()), torch.randn(5, 3, 8, 7)
    residual = torch.randn(5, 4, 6, 5)
    chain = chain_of([layer], Kernel(), way)
    views = residual, residual.to(memory_format=torch.channels_last), residual[:1], residual[:, :, :, :1]
    for view in (*views, residual.clone().requires_grad_(), *views):  # the first again, now that its shape is known
        with torch.no_grad():
            assert_near(chain(x, view), dense([layer], x, view))


# ---- zeros, infinities, NaN and denormals ----


@pytest.mark.parametrize("way", [*BUILDS, "twin"])
@pytest.mark.parametrize("kernel", KERNELS[:8:2])
def test_rows_without_weights_give_their_bias(way, kernel):
    weight = torch.randn(40, 30) * (torch.arange(40) % 3 == 0)[:, None]
    layer = Layer(SparseWeight.of(weight), torch.arange(40.0).numpy())
    found = chain_of([layer], kernel, way)(torch.randn(9, 30))
    silent = torch.arange(40) % 3 != 0
    assert (found[:, silent] == torch.arange(40.0)[silent]).all()


@pytest.mark.parametrize("way", [*BUILDS, "twin"])
@pytest.mark.parametrize("kernel", [Kernel(0), Kernel(1), Kernel(8)])
@pytest.mark.parametrize("activation", ["none", "relu", "gelu"])
def test_nan_and_infinities_reach_what_reads_them(way, kernel, activation):
    layer = sparse_layer((20, 30), 0.3, activation)
    x = torch.randn(8, 30)
    x[0, 3], x[1, 4], x[2, 5] = torch.nan, torch.inf, -torch.inf
    wanted = dense([layer], x)
    reads = layer.weight.dense() != 0
    for sample, column in ((0, 3), (1, 4), (2, 5)):
        # What does not read the odd number is what it would be without it: the dense product has 0 · ∞ = NaN there.
        finite = x[sample].clone()
        finite[column] = 0
        wanted[sample] = torch.where(reads[:, column], wanted[sample], dense([layer], finite[None])[0])
    found = chain_of([layer], kernel, way)(x)
    if activation == "gelu":  # −∞ · Φ(−∞) is no number for torch; what stands in for it may be zero
        found, wanted = found[:2], wanted[:2]
    torch.testing.assert_close(found.double(), wanted, rtol=1e-4, atol=1e-4, equal_nan=True)


@pytest.mark.parametrize("way", [*BUILDS, "twin"])
@pytest.mark.parametrize("kernel", [Kernel(0), Kernel(1), Kernel(8)])
@pytest.mark.parametrize("pool", [Pool(2, 2), Pool(3, 1), Pool(3, 2)])
def test_max_pooling_keeps_nan_and_infinities_as_torch_does(way, kernel, pool):
    layer = Layer(SparseWeight.of(torch.ones(1, 1, 1, 1)), np.zeros(1, np.float32), "none", Window(), pool)
    x = torch.randn(30, 1, 8, 8)
    odd = torch.rand(x.shape)
    x[odd < 0.06], x[odd > 0.94], x[(odd > 0.5) & (odd < 0.56)] = torch.nan, -torch.inf, torch.inf
    x[0] = -torch.inf
    found = chain_of([layer], kernel, way)(x)
    torch.testing.assert_close(found, F.max_pool2d(x, pool.size, pool.stride), rtol=0, atol=0, equal_nan=True)


@needs_native
def test_denormal_weights_count_as_zeros():
    weight = torch.tensor([[1e-39, 2.0], [-1e-45, 0.0], [torch.nan, 1e-40]])
    assert SparseWeight.of(weight).count == 2
    assert SparseWeight.of(weight[:2]).places.tolist() == [1]


@pytest.mark.parametrize("way", BUILDS)
@pytest.mark.parametrize("kernel", [Kernel(0), Kernel(1), Kernel(8)])
def test_denormal_inputs_and_results_are_flushed(way, kernel):
    layer = Layer(SparseWeight.of(torch.tensor([[1e30], [1e-30]])), np.zeros(2, np.float32))
    x = torch.tensor([[1e-39], [1e-10], [1.0]])
    found = chain_of([layer], kernel, way)(x)
    assert found[0].tolist() == [0.0, 0.0]  # 1e-9 where denormals are read
    assert found[1, 1] == 0.0
    assert found[2, 1] > 0


def test_denormal_biases_count_as_zeros():
    layer = torch.nn.Conv2d(1, 3, 1)
    layer.bias.data.copy_(torch.tensor([1e-40, torch.nan, -1.0]))
    assert Layer.of(layer).bias.tolist()[::2] == [0.0, -1.0]
    assert np.isnan(Layer.of(layer).bias[1])
    assert layer.bias[0] > 0


@pytest.mark.parametrize("way", [*BUILDS, "twin"])
@pytest.mark.parametrize("activation", ["gelu", "gelu_tanh"])
def test_gelu_is_right_from_end_to_end(way, activation):
    x = torch.cat([torch.linspace(-30, 30, 4001), torch.tensor([-3e38, -1e30, -1e9, 1e9, 1e30])])[:, None]
    layer = Layer(SparseWeight.of(torch.ones(1, 1)), np.zeros(1, np.float32), activation)
    wanted = F.gelu(x.double(), approximate="none" if activation == "gelu" else "tanh")
    for kernel in (Kernel(0), Kernel(4)):
        torch.testing.assert_close(chain_of([layer], kernel, way)(x).double(), wanted, rtol=1e-6, atol=2e-6)


@needs_native
def test_denormals_outside_of_a_chain_stay_what_they_are():
    chain = SparseChain([sparse_layer((300, 300), 0.9)])
    with threads(2):
        for batch in (1, 2, 64):
            chain(torch.randn(batch, 300))
            assert torch.tensor([1e-39]).mul(0.5).item() > 0


# ---- threads ----


@needs_native
@settings(max_examples=25)
@given(
    kernel=st.sampled_from(KERNELS),
    batch=st.sampled_from([1, 2, 3, 17, 64, 130]),
    images=st.booleans(),
    deep=st.booleans(),
    seed=st.integers(0, 2**20),
)
def test_the_bits_do_not_depend_on_the_number_of_threads(kernel, batch, images, deep, seed):
    torch.manual_seed(seed)
    if images:
        window = Window(stride=(1 + seed % 2,) * 2, padding=(seed % 3 // 2,) * 2)
        layers = [sparse_layer((70, 8, 3, 3), 0.5, "relu", window)] + [
            sparse_layer((5, 70, 3, 3), 0.5, "none", window) for _ in range(deep)
        ]
        batch, x = min(batch, 20), torch.randn(min(batch, 20), 8, 29, 31)
    else:
        layers = [sparse_layer((700, 300), 0.7, "gelu")] + [sparse_layer((30, 700), 0.5) for _ in range(deep)]
        x = torch.randn(batch, 300)
    chain = SparseChain(layers, kernel)
    results = []
    for count in (1, 2, 3):
        with threads(count):
            results.append(chain(x))
    assert torch.equal(results[0], results[1])
    assert torch.equal(results[0], results[2])
    assert_near(results[0], dense(layers, x))


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
    assert layout._segment(filters, bands, count) == wanted


@needs_native
def test_a_chain_is_laid_out_anew_for_another_number_of_threads():
    layer = sparse_layer((256, 64, 1, 1), 0.2, window=Window())
    chain, x = SparseChain([layer]), torch.randn(1, 64, 14, 14)
    for count in (1, 2, 1, 2):
        with threads(count):
            assert_near(chain(x), dense([layer], x))
    assert len(chain._prepared) == 2
    with threads(2):
        chain(x.expand(2, -1, -1, -1).contiguous())  # each thread takes a sample, alone
    assert len(chain._prepared) == 2


@needs_native
@pytest.mark.parametrize("kernel", [Kernel(0), Kernel(2)])
def test_many_python_threads_may_call_one_chain(kernel):
    layers = lenet()
    chain = SparseChain(layers, kernel)
    convolutions = SparseChain(layers[:3], kernel)
    inputs = [torch.randn(1 + number % 5, 1, 28, 28) for number in range(24)]
    wanted = [dense(layers, x) for x in inputs]
    found: list[Tensor] = [torch.empty(0)] * len(inputs)

    def work(number: int) -> None:
        for size in range(5):
            convolutions(torch.randn(1, 1, 28 + number, 28 + size))  # laid out by all of them at once
            found[number] = chain(inputs[number])

    workers = [threading.Thread(target=work, args=(number,)) for number in range(len(inputs))]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    for one, other in zip(found, wanted, strict=True):
        assert_near(one, other)


# ---- what is refused ----


def test_inputs_that_do_not_fit_are_refused():
    linear = SparseChain([sparse_layer((6, 9), 0.5)])
    image = SparseChain(
        [sparse_layer((4, 3, 3, 3), 0.5, window=Window()), sparse_layer((2, 4, 3, 3), 1, window=Window())]
    )
    with pytest.raises(ValueError, match="takes 9 features, got an input of shape"):
        linear(torch.randn(3, 8))
    with pytest.raises(ValueError, match="images of 3 channels"):
        image(torch.randn(1, 4, 8, 8))
    with pytest.raises(ValueError, match="images of 3 channels"):
        image(torch.randn(1, 1, 3, 8, 8))
    with pytest.raises(ValueError, match="2 × 9 pixels are smaller"):
        image(torch.randn(1, 3, 2, 9))
    with pytest.raises(ValueError, match="2 × 7 pixels are smaller"):  # what the first layer leaves of them
        image(torch.randn(1, 3, 4, 9))
    with pytest.raises(TypeError, match=r"float32 on the CPU, got torch\.float64"):
        linear(torch.randn(3, 9).double())
    with pytest.raises(RuntimeError, match="no gradients"):
        linear(torch.randn(3, 9, requires_grad=True))
    with pytest.raises(ValueError, match="at least one layer"):
        SparseChain([])


def test_an_image_that_vanishes_between_layers_does_not_come_back_by_padding():
    layers = [
        sparse_layer((2, 1, 5, 5), 1.0, window=Window()),
        sparse_layer((2, 2, 1, 1), 1, window=Window(padding=(4, 4))),
    ]
    with pytest.raises(ValueError, match="smaller"):
        SparseChain(layers)(torch.randn(1, 1, 3, 3))


def test_a_pool_larger_than_its_image_is_refused():
    chain = SparseChain([sparse_layer((2, 1, 2, 2), 1.0, "none", Window(), Pool(3, 3))])
    for size in (2, 3):
        with pytest.raises(ValueError, match="smaller"):
            chain(torch.randn(1, 1, size, size))


def test_a_residual_that_the_kernels_cannot_add_is_refused():
    layer, x = sparse_layer((4, 3, 3, 3), 0.5, "none", Window(), Pool(2, 2)), torch.randn(1, 3, 8, 8)
    plain = sparse_layer((6, 9), 0.5)
    pooled, panels, chain = SparseChain([layer]), SparseChain([plain], Kernel(2)), SparseChain([plain])
    for _ in range(2):  # also when the shape is known
        with pytest.raises(ValueError, match="pool"):
            pooled(x, torch.randn(1, 4, 3, 3))
        with pytest.raises(ValueError, match="panels"):
            panels(torch.randn(2, 9), torch.randn(2, 6))
        for dtype in (torch.float16, torch.float64, torch.int64):
            with pytest.raises(TypeError, match="residual"):
                chain(torch.randn(2, 9), torch.ones(2, 6, dtype=dtype))
        pooled(x), panels(torch.randn(2, 9)), chain(torch.randn(2, 9))


@pytest.mark.parametrize("fault", ["beyond", "negative", "twice", "descending"])
def test_loaded_weights_outside_of_a_layer_never_reach_the_kernel(fault):
    layer = sparse_layer((6, 9), 1.0)
    chain = SparseChain([layer])
    chain(torch.randn(1, 9))
    state = {name: value.clone() for name, value in chain.state_dict().items()}
    places = state["places0"]
    if fault == "beyond":
        places[-1] = 54
    elif fault == "negative":
        places[0] = -1
    elif fault == "twice":
        places[5] = places[4]
    else:
        places[4:6] = places[4:6].flip(0)
    chain.load_state_dict(state)
    chain._call = lambda *_: pytest.fail("the kernel ran")
    with pytest.raises(ValueError, match="layer 0 of the chain has"):
        chain(torch.randn(1, 9))


def test_weights_that_are_changed_in_place_are_looked_at_before_a_new_size():
    chain = SparseChain([sparse_layer((2, 1, 2, 2), 1.0, window=Window())])
    chain(torch.randn(1, 1, 4, 4))
    chain.places0[-1] = 10**6
    with pytest.raises(ValueError, match="outside of its 8 weights"):
        chain(torch.randn(1, 1, 5, 5))


def test_a_chain_loads_what_another_saved():
    first, second = (SparseChain([sparse_layer((6, 9), 1.0)]) for _ in range(2))
    x = torch.randn(4, 9)
    assert not torch.equal(first(x), second(x))
    second.load_state_dict(first.state_dict())
    assert torch.equal(first(x), second(x))


def test_a_kernel_of_no_known_kind_is_refused():
    with pytest.raises(ValueError, match="1, 2, 4 or 8 vectors"):
        Kernel(3)
    with pytest.raises(ValueError, match="spread"):
        Kernel(0, 0)


@pytest.mark.parametrize(("kernel", "dilation"), [(3, 1), (5, 2), ((3, 1), 1)])
def test_padding_may_be_given_by_its_name(kernel, dilation):
    x = torch.randn(2, 3, 12, 11)
    for padding in ("same", "valid"):
        module = torch.nn.Conv2d(3, 4, kernel, padding=padding, dilation=dilation).requires_grad_(False)
        torch.testing.assert_close(SparseChain([Layer.of(module)])(x), module(x), rtol=1e-4, atol=1e-5)


def test_padding_that_differs_between_sides_is_left_to_torch():
    assert Layer.of(torch.nn.Conv2d(3, 4, 2, padding="same")) is None
