"""Tensors that are computed from smaller ones: only these are stored, and every bit of the value is defined."""

import io

import numpy as np
import pytest
import torch
from fuzz import computed, rebuild, streams_of
from handmade import assert_non_zeros, of_records, record, through_a_file
from torch.testing import assert_close

from secateur.encode import Archive, ComputedTensor, FormatError, to_bytes
from secateur.encode.codecs import CODECS
from secateur.encode.container import seal
from secateur.encode.formulas import FORMULAS, Hashed, Predicted, Product, Signs, Vectors
from secateur.encode.formulas.predicted import solved


@pytest.mark.parametrize("codec", ["smallest", "raw", *(codec.name for codec in CODECS)])
def test_parts_and_values_come_back_and_nothing_else_is_stored(codec):
    stored = computed()
    archive = Archive(io.BytesIO(to_bytes(stored, codec=codec)))
    assert {type(tensor.formula) for tensor in stored.values() if isinstance(tensor, ComputedTensor)} == set(
        FORMULAS.values()
    )
    for name, tensor in stored.items():
        found, value = archive.record(name), archive.read(archive.record(name))
        expected = tensor.value() if isinstance(tensor, ComputedTensor) else tensor
        assert (value.dtype, found.shape) == (expected.dtype, tuple(expected.shape))
        assert torch.equal(value, expected)
        assert_non_zeros(archive.read_sparse(found), expected)
        if isinstance(tensor, ComputedTensor):
            again = archive.read_parts(found)
            assert again.formula == tensor.formula
            assert again.stored == tensor.stored
            assert all(map(torch.equal, again.parts, tensor.parts))
    assert archive.record("tied.weight").alias_of == "vectors.weight"
    assert archive.header_bytes + sum(r.length for r in archive.records if r.alias_of is None) == archive.size


def test_only_files_with_computed_tensors_have_the_second_version():
    plain = {name: tensor for name, tensor in computed().items() if isinstance(tensor, torch.Tensor)}
    assert [Archive(io.BytesIO(to_bytes(tensors))).version for tensors in (plain, computed())] == [1, 2]


# Golden bytes: what is read here is read for ever.
GOLDEN_PARTS = {
    "a.weight": (Product(1, 1), (torch.tensor([[0.5], [-1.0]]), torch.tensor([[0.1, 0.2, 0.3]])), (2, 3)),
    "b.weight": (Hashed(7, 2), (torch.tensor([0.25, 3.0]),), (2, 3)),
    "c.weight": (
        Vectors(2, 1, 1, 2),
        (torch.tensor([[[[1.0, 2.0], [0.1, -4.0]]]]), torch.tensor([[[0, 1], [1, 1]]], dtype=torch.int32)),
        (2, 4),
    ),
    "d.weight": (Signs(2), (torch.tensor([0.3, 2.0]), torch.tensor([[1, -1], [0, -1]], dtype=torch.int8)), (2, 2)),
    "e.weight": (
        Predicted(1, 2, 1, 1, 4),
        (
            torch.tensor([0.75, 0.125], dtype=torch.float64),
            torch.tensor([[0, 3]], dtype=torch.int32),
            torch.tensor([[1.0, -2.0]]),
        ),
        (1, 4),
    ),
}
GOLDEN_HEX = (
    "894355540d0a1a0a02007005104f0161020301010068c60e261103030b488fee1f204f01620203070200c3c326e3304f0163"
    "02040201010211ff1905040e595e7903160103066a54b9e7404f016402020200434496f3001963620a504f01650104010201"
    "01041402020a2ebcaad4160301064b59c8c300562687c3eb9fa3b10000003f000080bfcdcccc3d0800c07fa626b00000803e"
    "00004040cdcccc3d0800c07fe0a2222621680800a01fc12c9a99993e0000004001ff00ff0030003a0800c07fa4140800501f"
    "c4800000803f000000c0"
)
GOLDEN_VALUES = {
    "a.weight": "cdcc4c3dcdcccc3d9a99193ecdccccbdcdcc4cbe9a9999be",
    "b.weight": "0000803e000080be00004040000040c00000803e00004040",
    "c.weight": "0000803f00000040cdcccc3d000080c0cdcccc3d000080c0cdcccc3d000080c0",
    "d.weight": "9a99993e9a9999be00000000000000c0",
    "e.weight": "4b9d5f3f765e333ec12988bf8e79e2bf",
}


def test_the_bytes_of_a_small_file_and_the_bits_of_its_values_are_these():
    tensors = {name: ComputedTensor(*made, torch.float32) for name, made in GOLDEN_PARTS.items()}
    assert to_bytes(tensors, codec="huffman").hex() == GOLDEN_HEX
    archive = Archive(io.BytesIO(bytes.fromhex(GOLDEN_HEX)))
    assert {each.name: value.numpy().tobytes().hex() for each, value in archive.read_all()} == GOLDEN_VALUES


def test_formulas_compute_what_they_say():
    left, right = torch.randn(6, 2), torch.randn(2, 20)
    product = ComputedTensor(Product(2, 2), (left, right), (4, 6, 5), torch.float32).value()
    assert_close(product, (left @ right).view(6, 4, 5).transpose(0, 1))
    book, index = torch.randn(2, 3, 4, 2), torch.randint(4, (2, 5, 3), dtype=torch.int32)
    vectors = ComputedTensor(Vectors(3, 2, 3, 4), (book, index), (5, 6), torch.float32).value()
    expected = sum(torch.stack([book[t, s][index[t, :, s].long()] for s in range(3)], 1) for t in range(2))
    assert_close(vectors, expected.reshape(5, 6))
    scale, sign = torch.rand(3), torch.randint(-1, 2, (3, 4), dtype=torch.int8)
    assert torch.equal(ComputedTensor(Signs(3), (scale, sign), (3, 4), torch.float32).value(), sign * scale[:, None])
    matrix = torch.randn(9, 12, dtype=torch.float64)
    matrix, right = (matrix @ matrix.T).numpy(), np.random.default_rng(0).normal(size=(9, 4))
    np.testing.assert_allclose(solved(matrix, right), np.linalg.solve(matrix, right), rtol=1e-6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_plain_tensor_of_signs_with_scales_is_stored_as_such(dtype):
    sign = torch.randint(0, 2, (30, 5, 4, 4)) * 2 - 1
    scale = (torch.rand(30, 1, 1, 1) + 0.5).to(dtype)
    [found] = Archive(io.BytesIO(to_bytes({"a": sign * scale}))).records
    assert found.formula == Signs(30)
    assert found.length < 1.1 * sign.numel() / 8 + dtype.itemsize * 30
    through_a_file(sign * scale)
    through_a_file(sign.clamp(min=0) * scale)
    others = {
        "one scale": sign * scale[0],
        "few a row": sign * scale * (torch.arange(80).view(5, 4, 4) < 3),
        "one that differs": (sign * scale).index_put((torch.tensor(3), torch.tensor(1)), torch.tensor(0.1).to(dtype)),
        "empty": sign[:0] * scale[:0],
        "negative zeros": sign * scale * (sign > 0),
    }
    for name, tensor in others.items():
        assert Archive(io.BytesIO(to_bytes({name: tensor}))).version == 1, name


def of_formula(number, numbers, shape=(4, 6), rest=b"", version=2):
    """Write a file by hand with one float32 tensor of zeros, computed by a formula."""
    content = record(first=number << 4, second=0x47, pair=None, shape=shape, rest=bytes(numbers) + rest)
    return seal(0, bytes([1]) + content, [], version)


ZEROS = b"\x03\x00"


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (of_formula(1, [1, 1], rest=2 * ZEROS, version=1), "a tied tensor has a dtype, a codec or a rank"),
        (of_formula(9, [1, 1]), 'tensor "a".*formula 9 is unknown'),
        (of_formula(1, [0, 1]), "pairing 0 leaves no rows or no columns"),
        (of_formula(1, [3, 1]), "pairing 3 leaves no rows or no columns"),
        (of_formula(1, [1, 5]), "a matrix of 4 × 6 cannot have rank 5"),
        (of_formula(1, [1, 0]), "cannot have rank 0"),
        (of_formula(1, [1, 1], shape=(0, 6)), "cannot be computed from smaller ones"),
        (of_formula(1, [1, 1], rest=b"\x07\x00"), "its left is tied"),
        (of_formula(1, [1, 1], rest=ZEROS + b"\x0b\x00"), "its right is tied, or a bit that has no meaning is set"),
        (of_formula(1, [1, 1], rest=ZEROS), "1 bytes are announced and 0 are left"),
        (of_formula(2, [1, 25]), "cannot have 25 buckets of seed 1"),
        (of_formula(2, [1, 0]), "cannot have 0 buckets"),
        (of_formula(3, [4, 1, 1, 2]), r"cannot be Vectors\(segments=4"),
        (of_formula(3, [3, 1, 2, 2]), "cannot be Vectors"),
        (of_formula(3, [0, 1, 1, 2]), "cannot be Vectors"),
        (of_formula(4, [3]), "cannot have 3 scales"),
        (of_formula(5, [3, 1, 1, 1, 6]), "cannot be Predicted"),
        (of_formula(5, [2, 7, 1, 1, 6]), "cannot be Predicted"),
        (of_records(record(first=0x10, second=0x47, pair=None)), "a tied tensor has a dtype"),
    ],
)
def test_a_formula_that_cannot_be_is_refused_before_its_parts_are_read(content, complaint):
    with pytest.raises(FormatError, match=complaint):
        Archive(io.BytesIO(content))


def test_parts_count_for_the_memory_that_a_file_may_take():
    content = of_formula(3, [1, 127, 1, 127], rest=2 * ZEROS)  # 127 codebooks of 127 entries: 400 kB in float32
    assert Archive(io.BytesIO(content), 1_200_000).records[0].size == 24
    with pytest.raises(FormatError, match="more memory than max_bytes = 1,100,000 allows"):
        Archive(io.BytesIO(content), 1_100_000)


@pytest.mark.parametrize(
    ("name", "part", "value", "complaint"),
    [
        ("vectors.weight", 1, 3, "an index is not below 3"),
        ("vectors.weight", 1, -1, "an index is not below 3"),
        ("signs.weight", 1, 2, "a sign is neither"),
        ("predicted.weight", 1, 8, "a place is not below 8"),
        ("predicted.weight", 0, -0.5, "q must lie in"),
    ],
)
def test_parts_that_make_no_sense_are_refused_by_name(name, part, value, complaint):
    archive, streams = streams_of(to_bytes(computed(), codec="raw"))
    pieces = [(found, number) for found in archive.records for number in range(len(found.parts) or 1)]
    chosen = next(n for n, (found, number) in enumerate(pieces) if (found.name, number) == (name, part))
    spoilt = archive.read(archive.record(name).parts[part])
    spoilt.view(-1)[0] = value
    coding = archive.record(name).parts[part].coding
    content = rebuild(archive, streams, {chosen: (coding, None, None, spoilt.numpy().tobytes())})
    with pytest.raises(FormatError, match=f'tensor "{name}".*{complaint}'):
        list(Archive(io.BytesIO(content)).read_all())


def test_parts_of_another_shape_or_dtype_are_refused_when_they_are_put_together():
    with pytest.raises(ValueError, match=r"has the parts torch.float32 \(4, 2\), torch.float32 \(2, 3\), got"):
        ComputedTensor(Product(1, 2), (torch.zeros(4, 2), torch.zeros(3, 2)), (4, 3), torch.float32)
