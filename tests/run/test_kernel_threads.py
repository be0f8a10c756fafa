"""Sparse chains on several threads: their bits do not depend on them."""

import threading

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sparse_layers import (
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
)
from torch import Tensor

from secateur.run import Kernel, SparseChain
from secateur.run.sparse_layer import Window


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
