"""Does any file, however damaged, do more than raise a FormatError?

    python tests/fuzz.py --cases 200000 --seed 0

Sound small files are taken apart, changed and put together again: bits flipped and ends cut off as they are, or fields,
headers and streams changed with all checksums made to match, which is what gets past the checks at the door. A reader
may refuse a file with a FormatError, or accept it; it may not raise anything else, hang, or take more memory than
its caller allows.
"""

import argparse
import io
import random
import resource
import signal
import sys
import time
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from secateur.encode import Architecture, preamble
from secateur.encode.codecs import CODECS
from secateur.encode.container import MAGIC, Archive, FormatError, seal, to_bytes
from secateur.encode.formulas import ComputedTensor, Hashed, Predicted, Product, Signs, Vectors
from secateur.encode.layouts import layout_of
from secateur.encode.levels import Values
from secateur.encode.records import DTYPES, RecordWriter
from secateur.encode.varint import Cursor, put_varint

LIMIT = 1 << 21  # bytes of decoded tensors that the reader is allowed
# Beside the result a decoder holds levels, places and tables, the largest of which has 2²⁰ entries of 4 bytes.
MOST_MEMORY = 5 * LIMIT + (16 << 20)
SECONDS = 20  # for one case on a busy machine; the slowest takes some milliseconds

INTERESTING = [
    0,
    1,
    2,
    3,
    14,
    15,
    16,
    127,
    128,
    255,
    256,
    65_534,
    65_535,
    65_536,
    1 << 20,
    1 << 31,
    1 << 40,
    (1 << 63) - 1,
]


def tensors():
    """Some small tensors of every kind."""
    draw = torch.Generator().manual_seed(0)
    normal = torch.randn(6, 20, generator=draw)
    sparse = normal * (normal.abs() > 1)
    tied = torch.randint(-2, 3, (4, 5), generator=draw) * 0.3
    return {
        "fc1.weight": (sparse * 2).round() * 0.1,
        "fc1.bias": (torch.randn(20, generator=draw) * 3).round() / 8,
        "conv.weight": (torch.randn(3, 2, 3, 3, generator=draw) * 1.5).round() * 0.37,
        "dense": normal,
        "pruned": sparse,
        "half": sparse.half(),
        "brain": sparse.bfloat16(),
        "bn.num_batches_tracked": torch.tensor(137),
        "mask": sparse != 0,
        "index": torch.arange(-4, 6),
        "zeros": torch.zeros(3, 4),
        "empty": torch.zeros(0, 4),
        "embedding.weight": tied,
        "head.weight": tied,
    }


def small_lenet():
    """Return LeNet-5 with few weights."""
    state = {name: torch.zeros(shape) for name, _, shape in layout_of("lenet-5")}
    state["conv1.weight"][:, :, 2] = 0.25
    state["fc4.bias"][3:] = 0.1
    return state


def computed():
    """Some small tensors that are computed from smaller ones, one of every formula, and one that is not."""
    draw = torch.Generator().manual_seed(0)

    def normal(*shape):
        return torch.randn(shape, generator=draw)

    def index(*shape):
        return torch.randint(3, shape, generator=draw, dtype=torch.int32)

    low_rank = Product(2, 3), (normal(5, 3), normal(3, 8)), (4, 5, 2, 1)
    signs = Signs(4), (normal(4).abs(), (index(4, 3, 2) - 1).to(torch.int8)), (4, 3, 2)
    kernel = torch.tensor([0.7, 0.1], dtype=torch.float64), torch.tensor([[0, 7], [3, 4]], dtype=torch.int32)
    made = {
        "conv.weight": low_rank,
        "hashed.weight": (Hashed(5, 7), (normal(7),), (6, 4)),
        "vectors.weight": (Vectors(2, 2, 2, 3), (normal(2, 2, 3, 2), index(2, 5, 2)), (5, 4)),
        "signs.weight": signs,
        "predicted.weight": (Predicted(2, 2, 1, 2, 4), (*kernel, normal(6, 2)), (6, 8)),
    }
    found = {name: ComputedTensor(*each, torch.float32) for name, each in made.items()}
    halves = normal(6, 1).half(), normal(1, 4).half()
    found["fc.weight"] = ComputedTensor(Product(1, 1), halves, (6, 4), torch.float16)
    return {**found, "tied.weight": found["vectors.weight"], "fc.bias": normal(6)}


def corpus():
    """Return sound files, one per codec and one of everything."""
    named = [to_bytes(tensors(), codec=codec) for codec in ("raw", *(codec.name for codec in CODECS))]
    lenet = {name: value for name, value in tensors().items() if "fc1" in name}
    return [
        *named,
        to_bytes(lenet, metadata={"network": "lenet-5", "mean": "0.13"}, architecture=Architecture("lenet-5")),
        to_bytes(lenet, architecture=Architecture("package.module:Class", {"width": 3})),
        to_bytes(computed()),
        to_bytes(computed(), codec="raw"),
        # With the layout of its network; what is nearly all zeros can be changed in little time.
        to_bytes(small_lenet(), architecture=Architecture("lenet-5")),
    ]


def vector_by_context(elements):
    """Return a file with one vector, all zeros but its first element, by a codec that keeps counts of every column."""
    vector = torch.zeros(elements)
    vector[0] = 1
    return to_bytes({"a": vector}, codec="context")


def split(content):
    """Take a sound file apart: flags, header, streams."""
    cursor = Cursor(content[len(MAGIC) :])
    cursor.byte()
    flags, length = cursor.byte(), cursor.varint()
    head = bytes(cursor.take(length))
    cursor.take(4)
    return flags, head, bytes(cursor.take(cursor.left))


def check(content, limit=LIMIT):
    """Read a file; return whether it was accepted."""
    try:
        archive = Archive(io.BytesIO(content), limit)
        for record in archive.records:
            check_sparse(archive, record, limit)
        for _record, tensor in archive.read_all():
            assert tensor.numel() * tensor.element_size() <= limit
    except FormatError:
        return False
    return True


def check_sparse(archive, record, limit):
    """Read a tensor in both ways: both refuse it for the same reason, or both find the same values."""
    sparse, refusal = outcome(archive.read_sparse, record)
    tensor, other_refusal = outcome(archive.read, record)
    if "read it as a dense tensor" in str(refusal):  # in half of the memory
        return
    assert str(refusal) == str(other_refusal)
    if refusal is not None:
        raise refusal
    assert sparse.shape == tuple(tensor.shape)
    assert len(sparse.places) * tensor.element_size() <= limit
    patterns = bit_patterns(tensor)
    places = np.flatnonzero(patterns.any(1))
    assert np.array_equal(sparse.places, places)
    if tensor.dtype not in (torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2):  # which become float32
        assert sparse.values.tobytes() == patterns[places].tobytes()


def outcome(read, record):
    """Return what reading gives, or why it is refused."""
    try:
        return read(record), None
    except FormatError as error:
        return None, error


def bit_patterns(tensor):
    """Return the bytes of every element, a row each."""
    flat = tensor.contiguous().reshape(-1)
    if not flat.numel():
        return np.zeros((0, flat.element_size()), np.uint8)
    return flat.view(torch.uint8).numpy().reshape(flat.numel(), -1)


def change_bytes(content, rng):
    """Flip, overwrite, insert, delete, repeat or cut bytes."""
    content = bytearray(content)
    for _ in range(rng.choice([1, 1, 1, 2, 5])):
        place = rng.randrange(len(content) + 1) if content else 0
        what = rng.randrange(6)
        if what == 0 and place < len(content):
            content[place] ^= 1 << rng.randrange(8)
        elif what == 1 and place < len(content):
            content[place] = rng.choice([0, 1, 127, 128, 254, 255, rng.randrange(256)])
        elif what == 2:
            content[place:place] = rng.randbytes(rng.choice([1, 2, 9]))
        elif what == 3:
            del content[place : place + rng.choice([1, 2, 9])]
        elif what == 4:
            number = bytearray()
            put_varint(number, rng.choice(INTERESTING))
            content[place : place + rng.choice([0, 1, len(number)])] = number
        else:
            del content[place:]
    return bytes(content)


def change_header(content, rng):
    """Change bytes of the header and seal it again."""
    flags, head, streams = split(content)
    if rng.randrange(10) == 0:
        flags ^= 1 << rng.randrange(4)
    return seal(flags, change_bytes(head, rng), [streams], content[len(MAGIC)])


def pieces(archive):
    """Return what has a stream of its own: the records of tensors, and of computed ones those of their parts."""
    return [piece for record in archive.records for piece in record.parts or (record,)]


def streams_of(content):
    """Return an archive and the stream of each of its pieces."""
    archive = Archive(io.BytesIO(content))
    return archive, [content[piece.offset : piece.offset + piece.length] for piece in pieces(archive)]


def change_stream(content, rng):
    """Change one tensor's stream and make its length and checksum match."""
    archive, streams = streams_of(content)
    chosen = rng.choice([i for i, stream in enumerate(streams) if stream])
    changed = change_bytes(streams[chosen], rng)
    return rebuild(archive, streams, {chosen: (pieces(archive)[chosen].coding, None, None, changed)})


def change_formula(content, rng):
    """Change a number of a formula; a stream of a file without formulas."""
    archive, streams = streams_of(content)
    chosen = [record for record in archive.records if record.formula is not None]
    if not chosen:
        return change_stream(content, rng)
    record = rng.choice(chosen)
    numbers = list(record.formula.numbers)
    place = rng.randrange(len(numbers))
    numbers[place] = rng.choice([*INTERESTING, numbers[place] + 1, max(numbers[place] - 1, 0)])
    return rebuild(archive, streams, {}, {record.name: type(record.formula)(*numbers)})


def change_field(content, rng):
    """Change what a record says of its tensor: kind, codec, counts, shape or dtype."""
    archive, streams = streams_of(content)
    chosen = rng.randrange(len(streams))
    record, stream = pieces(archive)[chosen], streams[chosen]
    coding, shape, dtype = record.coding, list(record.shape), record.dtype
    what = rng.randrange(6)
    number = rng.choice([*INTERESTING, *(max(coding.nonzero + d, 0) for d in (-1, 1)), record.size])
    if what == 0:
        coding = replace(coding, nonzero=number)
    elif what == 1:
        field = rng.choice(["negatives", "positives"])
        coding = replace(coding, **{field: rng.choice([number, getattr(coding, field) + 1])})
    elif what == 2:
        coding = replace(coding, kind=Values(rng.randrange(7)), codec=rng.choice([coding.codec, rng.randrange(16)]))
    elif what == 3:
        coding = replace(coding, codec=rng.randrange(6))
    elif what == 4:
        dtype = rng.choice(DTYPES)
    else:
        shape = rng.choice(
            [shape[::-1], [*shape, number], [number, *shape[1:]], [record.size], [1] * number if number < 70 else []]
        )
    if rng.randrange(4) == 0:
        stream = change_bytes(stream, rng)
    return rebuild(archive, streams, {chosen: (coding, tuple(shape), dtype, stream)})


def rebuild(archive, streams, changes, formulas=()):
    """Write all records anew, changed as told, with lengths and checksums that match.

    `streams` and `changes` count the pieces of the archive. What a formula gives its parts, shape and dtype, stays.
    """
    head = bytearray()
    flags = preamble.put_preamble(head, archive.metadata, archive.architecture) | archive.flags & preamble.LAYOUT
    layout = layout_of(archive.architecture.name) if flags & preamble.LAYOUT else None
    writer, written = RecordWriter(head, layout, len(archive.records)), []
    names, index = [record.name for record in archive.records], -1
    for record in archive.records:
        index += 1
        if record.alias_of is not None and index not in changes:
            writer.put_alias(record.name, names.index(record.alias_of))
            index += max(len(record.parts) - 1, 0)
            continue
        if record.formula is not None:
            parts = []
            for number, part in enumerate(record.parts, start=index):
                coding, _, _, stream = changes.get(number, (part.coding, None, None, streams[number]))
                parts.append((coding, stream))
            index += len(parts) - 1
            formula = dict(formulas).get(record.name, record.formula)
            writer.put_computed(record.name, record.dtype, record.shape, formula, parts)
            written += [stream for _, stream in parts]
            continue
        coding, shape, dtype, stream = changes.get(index, (record.coding, None, None, streams[index]))
        writer.put(record.name, dtype or record.dtype, record.shape if shape is None else shape, coding, stream)
        written.append(stream)
    return seal(flags, bytes(head), written, archive.version)


CHANGES = (change_bytes, change_header, change_stream, change_field, change_formula)


def cases(count, seed):
    """Yield damaged files."""
    rng, sound = random.Random(seed), corpus()
    for index in range(count):
        yield CHANGES[index % len(CHANGES)](rng.choice(sound), rng)


@contextmanager
def memory(most):
    """Let no more than `most` bytes be taken inside, by Python or by native code; asking for more is a MemoryError.

    Only Linux tells how much there is already; elsewhere nothing is watched.
    """
    statm = Path("/proc/self/statm")
    if not statm.exists():
        yield
        return
    taken = int(statm.read_text().split()[0]) * resource.getpagesize()
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (taken + most, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def run(count, seed, watch_memory=1):
    """Check that many cases, every `watch_memory`th with its memory watched; return how many were accepted."""
    accepted = 0
    for index, content in enumerate(cases(count, seed)):
        signal.alarm(SECONDS)
        try:
            with memory(MOST_MEMORY) if index % watch_memory == 0 else nullcontext():
                accepted += check(content)
        except BaseException:
            print(f"case {index} of seed {seed}: {content.hex()}", file=sys.stderr)
            raise
        finally:
            signal.alarm(0)
    return accepted


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cases", type=int, default=200_000)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    check(corpus()[0])  # what is loaded on first use is not the files' doing
    resource.setrlimit(resource.RLIMIT_AS, (16 << 30, resource.RLIM_INFINITY))
    started = time.monotonic()
    accepted = run(arguments.cases, arguments.seed)
    seconds = time.monotonic() - started
    print(f"{arguments.cases:,} cases in {seconds:.0f} s: {accepted:,} accepted, the others refused with a FormatError")


if __name__ == "__main__":
    main()
