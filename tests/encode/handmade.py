"""Files put together by hand, right and wrong, and how the non-zeros of a tensor are compared."""

import io
import zlib

import numpy as np
import torch
from fuzz import rebuild

from secateur.encode import Archive, to_bytes
from secateur.encode.container import seal
from secateur.encode.tensors import Coding
from secateur.encode.varint import put_pair, put_varint


def bits(tensor):
    return tensor.contiguous().reshape(-1).view(torch.uint8) if tensor.numel() else torch.zeros(0, dtype=torch.uint8)


def assert_non_zeros(sparse, tensor):
    """Make sure that a sparse tensor holds exactly what has a bit set in a dense one, every bit of it."""
    flat = tensor.reshape(-1)
    if tensor.dtype in (torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2):
        flat = flat.float()
    found = bits(flat).view(-1, flat.element_size()).any(1).nonzero().view(-1)
    assert sparse.shape == tuple(tensor.shape)
    assert (sparse.places.dtype, sparse.values.dtype) == (np.int32, flat.numpy().dtype)
    assert sparse.places.tolist() == found.tolist()
    assert sparse.values.tobytes() == flat[found].numpy().tobytes()


def through_a_file(tensor, **options):
    """Return the record of a tensor after it came back from a file, every bit of it."""
    archive = Archive(io.BytesIO(to_bytes({"tensor": tensor}, **options)))
    [(record, again)] = archive.read_all()
    assert (again.dtype, again.shape) == (tensor.dtype, tensor.shape)
    assert torch.equal(bits(again), bits(tensor))
    assert_non_zeros(archive.read_sparse(record), again)
    return record


GOLDEN = {
    "fc.weight": torch.tensor([[0.0, 0.5, 0.0, -0.25], [0.5, 0.0, 0.0, 0.0]]),
    "fc.bias": torch.tensor([0.1, -0.2]),
    "steps": torch.tensor(3),
    "out.weight": torch.zeros(2, 2),
}


def join(flags, head, streams, version=1):
    return seal(flags, head, [streams], version)


def record(name=b"a", *, first=0x00, second=0x43, pair=(0, 0), shape=(1, 1), rest=b"", shared=0):
    """Write a record by hand: by default the zeros of a float32 matrix."""
    head = bytearray([first, second])
    put_pair(head, shared, len(name))
    head += name
    for dimension in shape:
        put_varint(head, dimension)
    if pair is not None:
        put_pair(head, *pair)
    return bytes(head) + rest


def of_records(*records, count=None, streams=b""):
    return join(0, bytes([len(records) if count is None else count]) + b"".join(records), streams)


def crc(stream):
    return zlib.crc32(stream).to_bytes(4, "little")


BIG = (1 << 20, 1 << 20)


def coded(levels, kind, table, pair, dtype=torch.float32):
    """A file with one 1×4 tensor whose values are as told."""
    archive = Archive(io.BytesIO(to_bytes({"a": torch.tensor([levels], dtype=torch.int64)}, codec="huffman")))
    [sound] = archive.records
    # The stream of an INTEGERS record is the codec's alone.
    stream = to_bytes({"a": torch.tensor([levels], dtype=torch.int64)}, codec="huffman")[sound.offset :]
    coding = Coding(kind, 1, sound.coding.nonzero, *pair)
    return rebuild(archive, [stream], {0: (coding, None, dtype, table + stream)})


def halves(*values):
    return torch.tensor(values, dtype=torch.float16).numpy().tobytes()


LEVELS = [0, 1, 2, 1] * 20
