"""Sparse layers and chains of them, for every build of the kernels, and the same by dense torch."""

from contextlib import contextmanager

import pytest
import torch
import torch.nn.functional as F
from hypothesis import strategies as st
from torch import Tensor

from secateur import native
from secateur.run import Kernel, SparseChain
from secateur.run.kernels import bindings
from secateur.run.sparse_layer import Pool, SparseLayer, Window
from secateur.run.sparse_weight import SparseWeight

KERNELS = [
    Kernel(vectors, spread, shared, aligned)
    for vectors in (0, 1, 2, 4, 8)
    for spread in (1, 3)
    for shared in (False, True)
    for aligned in ((False, True) if vectors == 0 else (False,))
]


ACTIVATIONS = ["none", "relu", "relu6", "gelu", "gelu_tanh", "silu", "hardswish"]


BUILDS = [build for build in native._builds() if native._open(build)]


needs_native = pytest.mark.skipif(not BUILDS, reason="the native library is not built")


def routine_of(build: str) -> tuple[bindings.Call, int]:
    """Return a build's own routine, and its lanes: the machine's best is not the only one it can run."""
    library = native._open(build)
    call = library["secateur_chain"]
    call.restype, call.argtypes = bindings.chain_routine().restype, bindings.chain_routine().argtypes
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
) -> SparseLayer:
    """A layer of random weights, of so many distinct values if `levels` is given."""
    weight = torch.randn(shape) if levels == 0 else torch.randint(1, levels + 1, shape) / levels
    weight = torch.where(torch.rand(shape) < density, weight, torch.zeros(()))
    return SparseLayer(SparseWeight.of(weight), torch.randn(shape[0]).numpy(), activation, window, pool)


def dense(layers: list[SparseLayer], x: Tensor, residual: Tensor | None = None) -> Tensor:
    """The same by dense torch, in float64."""
    y = x.double()
    for layer in layers:
        weight, bias, window = layer.weight.dense().double(), torch.from_numpy(layer.bias).double(), layer.window
        if window is None:
            y = F.linear(y if y.shape[-1:] == weight.shape[1:] else y.flatten(1), weight, bias)
        else:
            (top, left), (high, wide) = window.padding, window.padded(y.shape[-2:])
            y = F.pad(y, (left, wide - y.shape[-1] - left, top, high - y.shape[-2] - top))
            y = F.conv2d(y, weight, bias, window.stride, 0, window.dilation, window.groups)
        if residual is not None and layer is layers[-1]:
            y = y + residual.double()
        if layer.activation.startswith("gelu"):
            y = F.gelu(y, approximate="none" if layer.activation == "gelu" else "tanh")
        elif layer.activation != "none":
            y = getattr(F, layer.activation)(y)
        if layer.pool is not None:
            y = F.max_pool2d(y, layer.pool.size, layer.pool.stride)
    return y


def assert_near(found: Tensor, wanted: Tensor) -> None:
    assert found.dtype is torch.float32
    assert found.shape == wanted.shape
    most = float(wanted.abs().max()) if wanted.numel() else 0.0
    torch.testing.assert_close(found.double(), wanted, rtol=0, atol=1e-4 * most + 1e-12)


def chain_of(layers: list[SparseLayer], kernel: Kernel, way: str = "", **options: bool) -> SparseChain:
    chain = SparseChain(layers, kernel, **options)
    if way:
        chain._call, chain._lanes = ROUTINES.get(way, (None, 8))
    return chain


def steps_of(chain: SparseChain) -> list[bindings.Step]:
    """The layers of a chain that has run, as they were laid out."""
    (laid_out,) = chain._prepared.values()
    return list(laid_out.keep[1])


_symmetric = st.builds(
    Window,
    stride=st.tuples(st.integers(1, 3), st.integers(1, 3)),
    padding=st.tuples(st.integers(0, 3), st.integers(0, 3)),
    dilation=st.tuples(st.integers(1, 3), st.integers(1, 3)),
    groups=st.integers(1, 3),
)
_frames = st.just((0, 0, 0, 0)) | st.tuples(*[st.integers(0, 2)] * 4)
windows = st.builds(Window.framed_by, _symmetric, _frames)


def lenet(activation: str = "relu") -> list[SparseLayer]:
    return [
        sparse_layer((6, 1, 5, 5), 0.3, activation, Window(padding=(2, 2)), Pool(2, 2)),
        sparse_layer((16, 6, 5, 5), 0.1, activation, Window(), Pool(2, 2)),
        sparse_layer((12, 16, 3, 3), 0.1, activation, Window(stride=(2, 2))),
        sparse_layer((30, 12 * 2 * 2), 0.2, activation),
        sparse_layer((10, 30), 0.3),
    ]
