"""The orders in which kernels read weights."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sparse_layers import needs_native

from secateur.run.kernels.packing import pack_offsets
from secateur.run.sparse_weight import SparseWeight


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
