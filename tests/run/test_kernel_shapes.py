"""Sparse chains compute what dense torch computes in float64, whatever their shape, kernel and number of threads.

Two differences are meant. A weight that is zero is not read, so that an infinity or NaN it would have met leaves no
trace (dense: 0 · ∞ = NaN); and denormals, in weights, inputs and results, count as zeros.
"""

import copy
from unittest.mock import patch

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from sparse_layers import (
    ACTIVATIONS,
    BUILDS,
    KERNELS,
    ROUTINES,
    assert_near,
    chain_of,
    dense,
    lenet,
    needs_native,
    sparse_layer,
    steps_of,
    threads,
    ways,
    windows,
)
from torch import nn

from secateur.run import Kernel, SparseChain
from secateur.run.kernels import tiling
from secateur.run.sparse_layer import Pool, SparseLayer, Window
from secateur.run.sparse_weight import SparseWeight


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
    residual = torch.randn(batch, rows) if adds else None
    chain = chain_of([layer], kernel, way)
    for _ in range(2):  # the second call finds everything laid out
        assert_near(chain(x, residual), dense([layer], x, residual))


@pytest.mark.parametrize("kernel", KERNELS, ids=lambda kernel: kernel.name)
def test_what_no_weight_looks_at_may_be_anything(kernel):
    weight = torch.randint(1, 4, (21, 30)).float() * (torch.rand(21, 30) < torch.linspace(0, 1, 21)[:, None])
    weight[:, [0, 7]] = 0
    layer = SparseLayer(SparseWeight.of(weight), torch.ones(21).numpy(), "none", None, None)
    clean = torch.randn(5, 30)
    x = clean.clone()
    x[:, [0, 7]] = torch.tensor([torch.nan, torch.inf])
    assert torch.equal(chain_of([layer], kernel)(x), chain_of([layer], kernel)(clean))


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
    adds = adds and pool is None
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
        sizes |= {"L1_BYTES": 1, "WEIGHTS_IN_BLOCK": {0: 0}, "_MOST_SLAB_BYTES": 0}
        sizes |= {"_SLAB_BYTES": channels_at_once * 1000}
    with patch.multiple(tiling, **sizes):
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
    with patch.multiple(tiling, _BAND_BYTES=channels * 8 * 120 * 4, _PACK_CYCLES=0):
        chain = chain_of([layer], Kernel(0), build)
        with threads(count):
            assert_near(chain(x, residual), dense([layer], x, residual))
        assert steps_of(chain)[0].span == tiling._LONGEST_TILE * ROUTINES[build][1]


@needs_native
@pytest.mark.parametrize("build", BUILDS)
def test_a_slab_that_would_fill_the_cache_holds_some_blocks_of_channels_at_a_time(build):
    torch.manual_seed(0)
    layer = sparse_layer((20, 70, 3, 3), 0.05, "none", Window(stride=(2, 2), padding=(1, 1)))
    x = torch.randn(1, 70, 56, 56)
    with patch.multiple(tiling, WEIGHTS_IN_BLOCK={0: 2}, _MOST_SLAB_BYTES=0, _SLAB_BYTES=250_000):
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
    residual = torch.randn(wanted.shape) if adds else None
    found = chain_of([SparseLayer.of(module)], kernel, way)(x, residual)
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
