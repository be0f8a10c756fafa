"""HashedNets: the hash is XXH32, the gradient is summed per bucket, and nothing but the buckets is stored."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from small_training import carry_out, small_network
from torch.testing import assert_close

from secateur.encode.formulas.hashed import Hashed, xxh32
from secateur.functions.hashed import HashedWeights
from secateur.measure import count
from secateur.methods.hashed_nets import HashedNets

MASK = 0xFFFFFFFF


def short_xxh32(text, seed):
    """XXH32 of texts below 16 bytes, number by number."""
    state = seed + 374761393 + len(text) & MASK
    while len(text) >= 4:
        state = state + int.from_bytes(text[:4], "little") * 3266489917 & MASK
        state, text = (state << 17 | state >> 15) * 668265263 & MASK, text[4:]
    for byte in text:
        state = state + byte * 374761393 & MASK
        state = (state << 11 | state >> 21 & 0x7FF) * 2654435761 & MASK
    state = (state ^ state >> 15) * 2246822519 & MASK
    state = (state ^ state >> 13) * 3266489917 & MASK
    return state ^ state >> 16


@given(i=st.integers(0, MASK), j=st.integers(0, MASK), seed=st.integers(0, MASK))
def test_the_hash_is_xxh32_of_row_and_column(i, j, seed):
    assert (short_xxh32(b"", 0), short_xxh32(b"a", 0), short_xxh32(b"abc", 0)) == (0x02CC5D05, 0x550D7456, 0x32D153FF)
    [found] = xxh32(np.array([i], np.uint32), np.array([j], np.uint32), seed)
    assert found == short_xxh32(i.to_bytes(4, "little") + j.to_bytes(4, "little"), seed)


def test_the_gradient_of_a_bucket_is_the_sum_over_its_weights():
    function, upstream = HashedWeights.like(torch.randn(30, 40), 50, seed=7), torch.randn(30, 40)
    function(torch.empty(0, 0)).backward(upstream)
    expected = [(upstream * function.signs)[function.places.view(30, 40) == bucket].sum() for bucket in range(50)]
    assert_close(function.values.grad, torch.stack(expected))


def test_buckets_and_signs_are_spread_evenly_and_keep_the_variance():
    weight = torch.randn(300, 300)
    function = HashedWeights.like(weight, 900, seed=1)
    assert torch.bincount(function.places, minlength=900).double().var() == pytest.approx(100, rel=0.2)  # Poisson
    assert function.signs.mean().abs() < 0.01
    assert function(weight).std().item() == pytest.approx(1, rel=0.1)


@pytest.mark.parametrize("ratio", [8, 36])
def test_every_layer_has_its_share_of_buckets_and_a_hash_of_its_own(ratio):
    finished = carry_out(HashedNets(ratio=ratio, hash_seed=5), small_network())
    assert [tensor.kept for tensor in count(finished).prunable.tensors] == [max(n // ratio, 1) for n in (36, 768, 36)]
    formulas = [finished[index].parametrizations.weight[0].formula for index in (0, 3, 6)]
    assert formulas == [Hashed(seed, formula.buckets) for seed, formula in zip((5, 7, 9), formulas, strict=True)]
