"""Reading a file without building its tensors: same values, same refusals, and memory for the non-zeros only."""

import io
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from handmade import LEVELS, assert_non_zeros, coded, halves
from hypothesis import given, settings
from hypothesis import strategies as st

from secateur.encode import Archive, Bounds, FormatError, to_bytes
from secateur.encode.codecs import CODECS, context, rans
from secateur.encode.levels import Values

every_codec = pytest.mark.parametrize("codec", ["raw", *(codec.name for codec in CODECS)])
with_and_without_native = pytest.mark.parametrize("native", [True, False], ids=["native", "twin"])


@pytest.fixture
def _native(native, monkeypatch):
    if not native:
        monkeypatch.setattr(rans, "_native_routines", lambda: None)
        monkeypatch.setattr(context, "_native_routines", lambda: None)


def sparse_tensors(seed, shape, density, kind):
    """Draw a tensor whose non-zeros are any floats, few distinct ones, multiples of a step, or whole numbers."""
    draw = torch.Generator().manual_seed(seed)
    normal = torch.randn(shape, generator=draw)
    values = {
        "floats": normal,
        "codebook": torch.tensor([-0.7, 0.11, 0.3, -0.0])[torch.randint(4, shape, generator=draw)],
        "step": (normal * 3).round() * 0.07,
        "halves": (normal * 3).round().half(),
        "integers": (normal * 9).round().int(),
    }[kind]
    return values.where(torch.rand(shape, generator=draw) < density, torch.zeros((), dtype=values.dtype))


tensors = st.builds(
    sparse_tensors,
    st.integers(0, 2**32),
    st.sampled_from([(), (1,), (60,), (12, 17), (17, 12), (3, 40), (40, 3), (4, 3, 5, 5), (0, 3)]),
    st.sampled_from([0.0, 0.02, 0.2, 0.9, 1.0]),
    st.sampled_from(["floats", "codebook", "step", "halves", "integers"]),
)


def only(content):
    archive = Archive(io.BytesIO(content))
    return archive, archive.records[0]


@every_codec
@with_and_without_native
@pytest.mark.usefixtures("_native")
def test_reading_sparsely_gives_what_is_not_zero_in_the_dense_tensor(codec):
    @given(tensor=tensors)
    @settings(max_examples=60)
    def check(tensor):
        archive, record = only(to_bytes({"tensor": tensor}, codec=codec))
        assert_non_zeros(archive.read_sparse(record), archive.read(record))

    check()


@with_and_without_native
@pytest.mark.usefixtures("_native")
def test_a_matrix_that_was_coded_transposed_comes_in_the_order_of_the_tensor():
    levels = np.random.default_rng(0).integers(-3, 4, (30, 8)).astype(np.int32)
    bounds = Bounds.of(levels)
    stream = b"\1" + context._stream(levels.T, bounds, stride=0)
    places, kept = context.decode_sparse(memoryview(stream), bounds)
    np.testing.assert_array_equal(places, np.flatnonzero(levels))
    np.testing.assert_array_equal(kept, levels[levels != 0])


@with_and_without_native
@pytest.mark.usefixtures("_native")
def test_places_beyond_2_to_the_31_are_wide():
    places = np.array([3, 5_000_000, 2**31 - 1, 2**31, 2**32 - 1])
    levels = np.array([1, -2, 3, 1, -1], np.int32)
    bounds = Bounds(1 << 16, 1 << 16, 5, -2, 3)
    found, kept = rans.decode_sparse(memoryview(rans.encode_sparse(places, levels, bounds)), bounds)
    assert (found.dtype, found.tolist()) == (np.int64, places.tolist())
    np.testing.assert_array_equal(kept, levels)


def test_raw_elements_in_several_pieces_come_back(monkeypatch):
    monkeypatch.setattr("secateur.encode.container._PIECE", 48)
    for dtype in (torch.float32, torch.float64, torch.complex128, torch.int8):
        tensor = torch.randn(7, 9).where(torch.rand(7, 9) < 0.5, torch.zeros(())).mul(9).to(dtype)
        archive, record = only(to_bytes({"tensor": tensor}, codec="raw"))
        assert record.length > 48
        assert_non_zeros(archive.read_sparse(record), tensor)


def test_half_a_complex_number_is_a_value():
    tensor = torch.tensor([0, 1j, 0, 2, 0], dtype=torch.complex128)
    archive, record = only(to_bytes({"tensor": tensor}))
    sparse = archive.read_sparse(record)
    assert sparse.places.tolist() == [1, 3]
    assert sparse.values.tolist() == [1j, 2]


def test_tied_tensors_are_both_read():
    weight = torch.eye(3)
    archive = Archive(io.BytesIO(to_bytes({"a": weight, "b": weight})))
    assert [archive.read_sparse(record).places.tolist() for record in archive.records] == [[0, 4, 8]] * 2


def test_a_level_that_a_small_step_makes_zero_is_no_value():
    content = coded(LEVELS, Values.STEP, np.float32(2.0**-25).tobytes(), (0, 2), torch.float16)
    archive, record = only(content)
    assert 0 < torch.count_nonzero(archive.read(record)) < record.coding.nonzero
    assert_non_zeros(archive.read_sparse(record), archive.read(record))


def test_a_truth_value_above_one_is_refused():
    content = to_bytes({"mask": torch.tensor([2, 0, 1], dtype=torch.uint8)}, codec="raw")
    archive, record = only(content)
    for read in (archive.read, archive.read_sparse):
        with pytest.raises(FormatError, match=r'tensor "mask", byte .*truth value'):
            read(replace(record, dtype=torch.bool))


@every_codec
def test_a_damaged_stream_is_noticed(codec):
    content = bytearray(to_bytes({"tensor": sparse_tensors(0, (20, 30), 0.3, "codebook")}, codec=codec))
    content[-3] ^= 1
    archive, record = only(bytes(content))
    with pytest.raises(FormatError, match=r'tensor "tensor", byte .*damaged: its checksum'):
        archive.read_sparse(record)


@every_codec
def test_a_file_that_was_cut_after_it_was_opened_is_refused(codec):
    content = to_bytes({"tensor": sparse_tensors(0, (20, 30), 0.3, "codebook")}, codec=codec)
    file = io.BytesIO(content)
    archive = Archive(file)
    file.truncate(len(content) - 1)
    with pytest.raises(FormatError, match=r'tensor "tensor", byte .*ends within the tensor'):
        archive.read_sparse(archive.records[0])


def test_raw_elements_that_change_between_two_looks_are_refused():
    class Growing(io.BytesIO):
        """Zeros on first reading, something else later."""

        reads = 0

        def read(self, size=-1, /):
            found = super().read(size)
            if size == 4 * 50:
                Growing.reads += 1
            return b"\1" * size if Growing.reads > 1 and size == 4 * 50 else found

    tensor = torch.zeros(50)
    tensor[0] = 1
    content = to_bytes({"tensor": tensor}, codec="raw")
    archive = Archive(Growing(content))
    with pytest.raises(FormatError, match="changed while it was read"):
        archive.read_sparse(archive.records[0])


def test_a_tensor_without_zeros_that_is_allowed_dense_may_be_refused_sparse():
    content = to_bytes({"tensor": torch.full((1000,), 0.5)}, codec="rans")
    assert len(content) < 100
    roomy, narrow = (Archive(io.BytesIO(content), max_bytes=most) for most in (8000, 7999))
    assert len(roomy.read_sparse(roomy.records[0]).places) == 1000
    assert len(narrow.read(narrow.records[0])) == 1000
    with pytest.raises(
        FormatError, match=r"non-zeros need more memory than max_bytes = 7,999 allows: read it as a dense"
    ):
        narrow.read_sparse(narrow.records[0])


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells how much memory is taken")
@pytest.mark.parametrize("codec", ["raw", "huffman", "rans", "context"])
def test_memory_goes_with_the_non_zeros(codec, tmp_path):
    # 16 MB as a dense tensor, 8 MB of address space for all that is sparse: in a process of its own, see test_fuzz.
    tensor = torch.zeros(2000, 2000)
    tensor[::20, ::10] = torch.randint(1, 9, (100, 200)).float()
    path = tmp_path / "tensor.cut"
    path.write_bytes(to_bytes({"warm.weight": tensor[:20, :20].clone(), "tensor": tensor}, codec=codec))
    program = f"""
import fuzz, torch
from secateur.encode import open_archive
torch.set_num_threads(1)
with open_archive({str(path)!r}) as archive:
    warm, record = archive.records
    archive.read(warm), archive.read_sparse(warm)
    with fuzz.memory(8 << 20):
        print(len(archive.read_sparse(record).places))
        try:
            archive.read(record)
        except (MemoryError, RuntimeError):
            print("a dense tensor has no room")
"""
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=Path(__file__).parents[1], capture_output=True, text=True, timeout=120
    )
    assert (done.returncode, done.stdout) == (0, "20000\na dense tensor has no room\n"), done.stderr


def test_halves_stay_halves_and_bfloat16_becomes_float32():
    values = torch.tensor([0, 1.5, 0, -2])
    for dtype, wanted in ((torch.float16, np.float16), (torch.bfloat16, np.float32)):
        archive, record = only(to_bytes({"tensor": values.to(dtype)}))
        sparse = archive.read_sparse(record)
        assert (sparse.values.dtype, sparse.values.tolist()) == (wanted, [1.5, -2])


def test_a_codebook_in_halves_is_read_as_the_tensors_dtype():
    archive, record = only(coded(LEVELS, Values.HALF_CODEBOOK, halves(0.5, 2), (0, 2)))
    sparse = archive.read_sparse(record)
    assert sparse.values.dtype == np.float32
    assert sorted(set(sparse.values.tolist())) == [0.5, 2]
