"""Zeros, infinities, NaN and denormals in sparse layers."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from sparse_layers import BUILDS, KERNELS, chain_of, dense, needs_native, sparse_layer, threads

from secateur.run import Kernel, SparseChain
from secateur.run.sparse_layer import Pool, SparseLayer, Window
from secateur.run.sparse_weight import SparseWeight


@pytest.mark.parametrize("way", [*BUILDS, "twin"])
@pytest.mark.parametrize("kernel", KERNELS[:8:2])
def test_rows_without_weights_give_their_bias(way, kernel):
    weight = torch.randn(40, 30) * (torch.arange(40) % 3 == 0)[:, None]
    layer = SparseLayer(SparseWeight.of(weight), torch.arange(40.0).numpy())
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
    layer = SparseLayer(SparseWeight.of(torch.ones(1, 1, 1, 1)), np.zeros(1, np.float32), "none", Window(), pool)
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
    layer = SparseLayer(SparseWeight.of(torch.tensor([[1e30], [1e-30]])), np.zeros(2, np.float32))
    x = torch.tensor([[1e-39], [1e-10], [1.0]])
    found = chain_of([layer], kernel, way)(x)
    assert found[0].tolist() == [0.0, 0.0]  # 1e-9 where denormals are read
    assert found[1, 1] == 0.0
    assert found[2, 1] > 0


def test_denormal_biases_count_as_zeros():
    layer = torch.nn.Conv2d(1, 3, 1)
    layer.bias.data.copy_(torch.tensor([1e-40, torch.nan, -1.0]))
    assert SparseLayer.of(layer).bias.tolist()[::2] == [0.0, -1.0]
    assert np.isnan(SparseLayer.of(layer).bias[1])
    assert layer.bias[0] > 0


@pytest.mark.parametrize("way", [*BUILDS, "twin"])
@pytest.mark.parametrize("activation", ["gelu", "gelu_tanh"])
def test_gelu_is_right_from_end_to_end(way, activation):
    x = torch.cat([torch.linspace(-30, 30, 4001), torch.tensor([-3e38, -1e30, -1e9, 1e9, 1e30])])[:, None]
    layer = SparseLayer(SparseWeight.of(torch.ones(1, 1)), np.zeros(1, np.float32), activation)
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
