"""Files that are not sound are refused, with the tensor and the byte, before they take memory."""

import io
import zlib

import pytest
import torch
from fuzz import check, rebuild, split
from handmade import BIG, GOLDEN, LEVELS, coded, crc, halves, join, of_records, record, through_a_file

from secateur.encode import Architecture, Archive, FormatError, container, open_archive, preamble, to_bytes
from secateur.encode.levels import Values
from secateur.encode.varint import put_varint


def small():
    values = torch.tensor([0.0, 0.1, 0.0, 0.0, -0.2, 0.4, 0.0, 0.0, 0.1, 0.0])
    return to_bytes({"fc.weight": values.repeat(2).view(4, 5), "bias": torch.tensor([0.3, -1.7, 0.011])})


def test_a_file_cut_short_anywhere_is_refused():
    content = to_bytes(GOLDEN, metadata={"by": "test"}, architecture=Architecture("lenet-5"))
    for length in range(len(content)):
        with pytest.raises(FormatError):
            list(Archive(io.BytesIO(content[:length])).read_all())


def test_every_flipped_bit_is_noticed():
    content = to_bytes(GOLDEN)
    for place in range(8 * len(content)):
        spoilt = bytearray(content)
        spoilt[place // 8] ^= 1 << place % 8
        assert not check(bytes(spoilt)), place


def test_bytes_behind_the_last_stream_are_refused():
    with pytest.raises(FormatError, match="1 bytes behind the last stream belong to nothing"):
        Archive(io.BytesIO(small() + b"\0"))


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (b"", "not a .cut file: it ends within its first eight bytes"),
        (b"\x89CUT", "it ends within its first eight bytes"),
        (b"PK\x03\x04 and so on", "not a .cut file: it begins differently"),
        (small().replace(b"\r\n", b"\n", 1), "changed by a transfer as text"),
        (join(*split(small()), version=3), "byte 8: version 3 of the format is unknown: update secateur"),
        (join(32, *split(small())[1:]), "byte 9: flags 0x20 are unknown"),
        (join(8, *split(small())[1:]), "byte 9: flags 0x08 are unknown"),
        (join(9, b"\x07lenet-6" + bytes(9), b""), "layout is that of a network that is unknown"),
        (join(9, b"\x07lenet-5\x0b" + bytes(9), b""), 'tensor "conv1.weight".*a bit that has no meaning is set'),
        (join(9, b"\x07lenet-5\x17" + bytes(9), b""), "a tied tensor has a dtype, a codec or a rank of its own"),
        (join(9, b"\x07lenet-5\x07" + bytes(9), b""), 'tensor "conv1.weight".*tied to a tensor that does not exist'),
        (join(9, b"\x07lenet-5" + b"\3\0" * 7, b""), "1 bytes are announced and 0 are left"),
        (join(9, b"\x07lenet-5" + b"\3\0" * 9, b""), "2 bytes are left over"),
        (join(3, *split(small())[1:]), "flags 0x03 are unknown"),
        (container.MAGIC + b"\1\0\x80\x80\x01", "a header of 16,384 bytes is announced, the file has 13"),
        (container.MAGIC + b"\1\0\x85\x00", "a number is written in more bytes than it needs"),
        (container.MAGIC + b"\1\0" + b"\xff" * 20, "a number has more than 63 bits"),
    ],
    ids=lambda part: part if isinstance(part, str) else "",
)
def test_what_does_not_begin_like_a_file_of_ours_is_refused(content, complaint):
    with pytest.raises(FormatError, match=complaint):
        Archive(io.BytesIO(content))


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (of_records(record(), record(b"", shared=1)), 'there are two tensors "a"'),
        (of_records(record(b"")), "a name is empty or unprintable"),
        (of_records(record(b"\x1b[31m")), "a name is empty or unprintable"),
        (of_records(record(b"\xff")), "a name is not UTF-8"),
        (of_records(record(shared=1)), "a name shares 1 bytes with one of 0"),
        (of_records(record(b"x" * 513)), "too long"),
        (of_records(record(second=0x43 | 7 << 3)), "ending 7 of a name is unknown"),
        (of_records(record(), count=2), "1 bytes are announced and 0 are left"),
        (of_records(record(), count=0), "bytes are left over"),
        (of_records(record(first=15)), 'tensor "a".*dtype 15 is unknown'),
        (of_records(record(shape=BIG)), "more memory than max_bytes = 4,294,967,296 allows"),
        (of_records(record(shape=(1 << 40, 1 << 40))), "larger than any"),
        (of_records(record(shape=(0, 1 << 60))), "larger than any"),
        (of_records(record(second=0xC3, shape=(33, *[1] * 33))), "33 dimensions are too many"),
        (of_records(record(second=0xC3, shape=(2, 1, 1))), "written the long way"),
        (of_records(record(second=0x44)), "without levels is coded as if it had some"),
        (of_records(record(first=0x10)), "without levels is coded as if it had some"),
        (of_records(record(pair=(40_000, 40_000))), "levels besides zero are more than 65,535"),
        (of_records(record(first=0x10, pair=(0, 1), shape=(0, 1))), "an empty tensor is coded"),
        (of_records(record(first=0x10, pair=(0, 1), rest=b"\0\5")), "0 of 1 elements are announced"),
        (of_records(record(first=0x10, pair=(0, 1), rest=b"\2\5")), "2 of 1 elements are announced"),
        (of_records(record(first=0x00, pair=(0, 1), rest=b"\1\5")), "codec 0 cannot be used"),
        (of_records(record(first=0xF0, pair=(0, 1), rest=b"\1\5")), "codec 15 is unknown"),
        (of_records(record(first=0x10, pair=(0, 1), rest=b"\1\3")), "not in 3 bytes"),
        (of_records(record(first=0x14, pair=(0, 1), rest=b"\1\5")), "CODEBOOK values of torch.int64 do not exist"),
        (of_records(record(first=0x10, second=0x46, pair=(0, 1), rest=b"\1\5")), "INTEGERS values of torch.float32"),
        (
            of_records(record(first=0x1B, second=0x45, pair=None, shape=(1, 2), rest=b"\1\5")),
            "BITS values of torch.complex128",
        ),
        (of_records(record(second=0x40, pair=None, rest=crc(b""))), "its stream ends at byte"),
        (of_records(record(second=0x07, shape=(), pair=None, rest=b"\0")), "tied to a tensor that does not exist"),
    ],
)
def test_a_record_that_cannot_be_is_refused_before_its_stream_is_read(content, complaint):
    with pytest.raises(FormatError, match=complaint):
        Archive(io.BytesIO(content))


@pytest.mark.parametrize(
    ("kind", "table", "complaint"),
    [
        (Values.HALF_CODEBOOK, halves(1, float("inf")), "not finite"),
        (Values.HALF_CODEBOOK, halves(1, float("nan")), "not finite"),
        (Values.CODEBOOK, bytes.fromhex("0000803f0100807f"), "not finite"),  # 1 and a signalling NaN
        (Values.HALF_CODEBOOK, halves(2, 1), "not in the order"),
        (Values.HALF_CODEBOOK, halves(1, 1), "not in the order"),
        (Values.HALF_CODEBOOK, halves(-1, 1), "not in the order"),
        (Values.HALF_CODEBOOK, halves(0, 1), "not in the order"),
        (Values.HALF_STEP, halves(float("inf")), "must be positive and finite"),
        (Values.HALF_STEP, halves(float("nan")), "must be positive and finite"),
        (Values.HALF_STEP, halves(0), "must be positive and finite"),
        (Values.HALF_STEP, halves(-1), "must be positive and finite"),
        (Values.STEP, b"\xff\xff\x7f\x7f", "a level times the step .* is not finite"),
    ],
)
def test_values_that_cannot_be_are_refused(kind, table, complaint):
    archive = Archive(io.BytesIO(coded(LEVELS, kind, table, (0, 2))))
    for read in (archive.read, archive.read_sparse):
        with pytest.raises(FormatError, match=f'tensor "a", byte .*{complaint}') as caught:
            read(archive.records[0])
        assert (caught.value.tensor, caught.value.offset) == ("a", archive.records[0].offset)


def test_values_written_by_hand_are_read():
    archive = Archive(io.BytesIO(coded(LEVELS, Values.HALF_CODEBOOK, halves(0.5, 2), (0, 2))))
    assert archive.read(archive.records[0]).unique().tolist() == [0, 0.5, 2]


def test_a_zip_bomb_is_refused_before_it_takes_memory():
    bomb = of_records(*[record(b"x" * n, shape=(10**6, 10**6)) for n in range(1, 10)])
    assert len(bomb) < 200
    with pytest.raises(FormatError, match=r'tensor "x".* more memory than max_bytes'):
        Archive(io.BytesIO(bomb))
    many_small = of_records(*[record(b"x" * n, shape=(1 << 9, 1 << 9)) for n in range(1, 9)])
    assert len(Archive(io.BytesIO(many_small), max_bytes=8 << 20).records) == 8
    with pytest.raises(FormatError, match=r'tensor "xxxxxxxx".* more memory than max_bytes'):
        Archive(io.BytesIO(many_small), max_bytes=(8 << 20) - 1)


@pytest.mark.parametrize("shape", [((1 << 20) + 1,), ((1 << 20) + 1, 1)])
@pytest.mark.parametrize("codec", ["smallest", "context"])
def test_a_long_vector_is_not_written_by_a_codec_that_needs_much_memory_a_column(shape, codec):
    tensor = torch.zeros(shape)
    tensor.view(-1)[::1000] = 0.5
    assert through_a_file(tensor, codec=codec).codec in ("huffman", "rans")


def test_a_plane_of_bytes_by_context_is_refused():
    tensor = torch.rand(50, 40)
    content = to_bytes({"a": tensor}, codec="huffman")
    archive = Archive(io.BytesIO(content))
    [sound] = archive.records
    stream = content[sound.offset :]
    assert (sound.coding.kind, stream[0]) == (Values.BITS, 1)
    spoilt = Archive(io.BytesIO(rebuild(archive, [stream], {0: (sound.coding, None, None, b"\3" + stream[1:])})))
    with pytest.raises(FormatError, match="a plane of bytes is coded by a codec for matrices"):
        spoilt.read(spoilt.records[0])


def test_metadata_that_swells_is_refused():
    deflate = zlib.compressobj(9, zlib.DEFLATED, -15, zdict=preamble.DICTIONARY)
    packed = deflate.compress(bytes(1 << 24)) + deflate.flush()
    head = bytearray()
    put_varint(head, len(packed))
    with pytest.raises(FormatError, match="metadata is cut short, has bytes left over or is above"):
        Archive(io.BytesIO(join(4, bytes(head) + packed + b"\0", b"")))


def test_an_error_names_the_file(tmp_path):
    path = tmp_path / "model.cut"
    path.write_bytes(small()[:-1])
    with pytest.raises(FormatError, match=r"model\.cut: .* byte \d+"), open_archive(path):
        pass
