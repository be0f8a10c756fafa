import io
import math
import zlib
from pathlib import Path

import pytest
import torch
from handmade import GOLDEN, through_a_file
from hypothesis import given, settings
from hypothesis import strategies as st

from secateur.encode import Architecture, Archive, FormatError, preamble, to_bytes
from secateur.encode.codecs import CODECS
from secateur.encode.layouts import layout_of
from secateur.encode.levels import Values
from secateur.encode.varint import Cursor, put_pair, put_varint

FLOATS = [torch.float32, torch.float16, torch.bfloat16, torch.float64]
INTEGERS = [torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8]
OTHERS = [torch.bool, torch.complex64, torch.complex128, torch.float8_e4m3fn, torch.float8_e5m2]
SHAPES = [(), (1,), (0,), (7,), (3, 0, 2), (1, 1), (5, 4), (2, 3, 4), (3, 2, 3, 3), (2, 1, 2, 1, 2)]


# Losslessness


@pytest.mark.parametrize("codec", ["smallest", "raw", *(codec.name for codec in CODECS)])
@pytest.mark.parametrize("dtype", [*FLOATS, *INTEGERS, *OTHERS], ids=str)
def test_every_shape_of_every_dtype_comes_back(dtype, codec):
    for shape in SHAPES:
        numbers = torch.randn(shape) * 3
        for tensor in (numbers, numbers.round(), numbers * (numbers > 2), torch.zeros(shape), torch.full(shape, 3.0)):
            through_a_file((tensor.abs() if dtype == torch.uint8 else tensor).to(dtype), codec=codec)


@pytest.mark.parametrize("codec", [codec.name for codec in CODECS])
@pytest.mark.parametrize("largest", [1, 100, 254, 255])
def test_byte_planes_of_any_range_come_back(codec, largest):
    places = torch.rand(40, 50) < 0.3
    low_bytes = torch.randint(1, largest + 1, (40, 50), dtype=torch.int32)
    for shift in (0, 8, 24):
        tensor = (low_bytes << shift).view(torch.float32) * torch.ones(1)
        through_a_file(torch.cat([tensor.where(places, 0.0), torch.rand(40, 50)]), codec=codec)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@given(data=st.data())
@settings(max_examples=30)
def test_any_bits_of_a_float_come_back(dtype, data):
    width = {2: torch.int16, 4: torch.int32, 8: torch.int64}[dtype.itemsize]
    special = [0.0, -0.0, float("inf"), float("-inf"), float("nan"), 1.0, -1.5, torch.finfo(dtype).tiny / 2]
    count = data.draw(st.integers(1, 40))
    tensor = torch.tensor(data.draw(st.lists(st.sampled_from(special), min_size=count, max_size=count)), dtype=dtype)
    payload = data.draw(st.integers(0, 2 ** (8 * dtype.itemsize - 1) - 1))
    tensor.view(width)[data.draw(st.integers(0, count - 1))] = payload
    through_a_file(tensor)


@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
def test_the_extremes_of_an_integer_come_back(dtype):
    info = torch.iinfo(dtype)
    for values in ([info.min], [info.max], [info.min, info.max], [0, info.max], [info.min, 0, 1]):
        through_a_file(torch.tensor(values, dtype=dtype))


@pytest.mark.parametrize("distinct", [1, 2, 255, 256, 65_535, 65_536])
def test_any_number_of_distinct_values_comes_back(distinct):
    values = (torch.arange(1, distinct + 1) - distinct // 2 - 1).float() * 1.1 + 0.05
    through_a_file(values[torch.randperm(distinct)].repeat(2).reshape(2, distinct))


def test_memory_layout_does_not_matter():
    tensor = torch.randn(3, 4, 2, 2).round()
    plain = to_bytes({"tensor": tensor})
    assert to_bytes({"tensor": tensor.to(memory_format=torch.channels_last)}) == plain
    assert to_bytes({"tensor": tensor.permute(3, 2, 1, 0).contiguous().permute(3, 2, 1, 0)}) == plain


# How values are written


def quantized(values, shape=(30, 40)):
    return torch.tensor(values)[torch.randint(len(values), shape)]


@pytest.mark.parametrize(
    ("tensor", "kind", "levels"),
    [
        (quantized([0.0, 0.0, 0.0, 0.1, -0.1]), Values.STEP, (1, 1)),
        (quantized([0.0, 0.0, 0.0, 0.5, -0.25]), Values.HALF_STEP, (1, 2)),
        (quantized([0.0, 0.5, -0.25, -2.0]), Values.HALF_STEP, (8, 2)),
        (quantized([0.0, 1.25, -1.0078125]), Values.HALF_CODEBOOK, (1, 1)),
        (quantized([0.0, 1.5, -0.0009765625]), Values.HALF_CODEBOOK, (1, 1)),
        (quantized(range(-3, 6)) * 0.1, Values.STEP, (3, 5)),
        (quantized([-30, -12, 0, 6, 9]) * 0.1, Values.STEP, (10, 3)),
        (quantized([0.0, 0.123, 0.456, -0.789, 1.011]), Values.CODEBOOK, (1, 3)),
        (torch.randint(-2, 6, (30, 40)), Values.INTEGERS, (2, 5)),
        (torch.rand(30, 40) < 0.5, Values.INTEGERS, (0, 1)),
        (torch.randn(30, 40), Values.BITS, (0, 1)),
        (torch.randn(30, 40).where(torch.rand(30, 40) < 0.1, 0.0), Values.BITS, (0, 1)),
        (torch.zeros(30, 40), Values.CODEBOOK, (0, 0)),
    ],
)
def test_values_are_written_in_the_shortest_way_that_is_exact(tensor, kind, levels):
    coding = through_a_file(tensor, codec="huffman").coding
    assert (coding.kind, (coding.negatives, coding.positives)) == (kind, levels)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
@given(step=st.floats(2**-10, 8, width=32), highest=st.integers(20, 60))
@settings(max_examples=20)
def test_multiples_of_a_step_are_found_whatever_the_step(dtype, step, highest):
    levels = torch.arange(-highest, highest + 1).repeat(3)
    coding = through_a_file((levels.float() * step).to(dtype), codec="huffman").coding
    assert coding.kind in (Values.STEP, Values.HALF_STEP)
    assert (coding.negatives, coding.positives) == (highest, highest)


def test_a_pruned_tensor_costs_its_values_and_positions_only():
    tensor = torch.randn(200, 300).where(torch.rand(200, 300) < 0.05, 0.0)
    kept = int(tensor.count_nonzero())
    position_bits = 60_000 * (-0.05 * math.log2(0.05) - 0.95 * math.log2(0.95))
    assert through_a_file(tensor).length < 4 * kept + 1.1 * position_bits / 8


def test_one_frequent_value_does_not_hide_that_all_others_are_there_once():
    weight = torch.rand(300, 784) * 2 - 1
    pruned = weight * (weight.abs() > 0.95)  # which leaves −0.0 where a negative weight was
    kept, zeros = int(pruned.count_nonzero()), int(((pruned == 0) & pruned.signbit()).sum())
    assert 4 * kept < kept + zeros
    assert through_a_file(pruned).coding.kind == Values.BITS


def test_zeros_cost_nothing_but_their_record():
    assert len(to_bytes({"a": torch.zeros(1000, 1000)})) - len(to_bytes({})) == 2 + 2 + 4 + 1


# The header


def lenet():
    torch.manual_seed(0)
    shapes = {"fc1": (300, 784), "fc2": (100, 300), "fc3": (10, 100)}
    state = {}
    for layer, shape in shapes.items():
        state[f"{layer}.weight"] = torch.randint(-2, 3, shape) * 0.11 * (torch.rand(shape) < 0.02)
        state[f"{layer}.bias"] = torch.randint(-5, 6, shape[:1]) * 0.013
    return state


@pytest.mark.parametrize(("named", "most"), [(True, 90), (False, 110)])
def test_the_header_of_lenet_300_100_takes_few_bytes(named, most):
    architecture = Architecture("lenet-300-100") if named else None
    archive = Archive(io.BytesIO(to_bytes(lenet(), architecture=architecture)))
    assert archive.header_bytes <= most
    assert [(record.name, record.dtype, record.shape) for record in archive.records] == list(layout_of("lenet-300-100"))
    assert archive.header_bytes + sum(record.length for record in archive.records) == archive.size


def test_the_layouts_that_are_part_of_the_format_never_change():
    def shapes(network):
        assert all(dtype == torch.float32 for _, dtype, _ in layout_of(network))
        return {name: shape for name, _, shape in layout_of(network)}

    assert list(shapes("lenet-300-100").items()) == [
        ("fc1.weight", (300, 784)),
        ("fc1.bias", (300,)),
        ("fc2.weight", (100, 300)),
        ("fc2.bias", (100,)),
        ("fc3.weight", (10, 100)),
        ("fc3.bias", (10,)),
    ]
    assert list(shapes("lenet-5").items()) == [
        ("conv1.weight", (20, 1, 5, 5)),
        ("conv1.bias", (20,)),
        ("conv2.weight", (50, 20, 5, 5)),
        ("conv2.bias", (50,)),
        ("fc3.weight", (500, 800)),
        ("fc3.bias", (500,)),
        ("fc4.weight", (10, 500)),
        ("fc4.bias", (10,)),
    ]
    # Their names stand in test_networks.py, where torchvision's are spelled out.
    checksums = {name: zlib.crc32(repr(layout_of(name)).encode()) for name in ("alexnet", "vgg-16", "resnet-50")}
    assert checksums == {"alexnet": 4130658848, "vgg-16": 2465941745, "resnet-50": 440722873}
    assert layout_of("lenet-6") is None


@pytest.mark.parametrize(
    "change",
    [
        lambda state: {name: tensor for name, tensor in state.items() if name != "fc3.bias"},
        lambda state: dict(reversed(state.items())),
        lambda state: state | {"fc1.weight": state["fc1.weight"].half()},
        lambda state: state | {"more": torch.ones(2)},
    ],
)
def test_tensors_that_are_laid_out_otherwise_than_their_network_come_back_all_the_same(change):
    state = change(lenet())
    archive = Archive(io.BytesIO(to_bytes(state, architecture=Architecture("lenet-300-100"))))
    assert {record.name: record.dtype for record in archive.records} == {n: t.dtype for n, t in state.items()}
    assert all(torch.equal(tensor, state[record.name]) for record, tensor in archive.read_all())


def test_one_tensor_is_read_without_the_others():
    content = bytearray(to_bytes(lenet()))
    for record in Archive(io.BytesIO(content)).records:
        if record.name != "fc3.weight":
            content[record.offset] ^= 255
    archive = Archive(io.BytesIO(content))
    assert torch.equal(archive.read(archive.record("fc3.weight")), lenet()["fc3.weight"])
    with pytest.raises(FormatError, match=r'tensor "fc1.weight", byte .* checksum'):
        archive.read(archive.record("fc1.weight"))
    with pytest.raises(KeyError):
        archive.record("fc4.weight")


def test_tied_tensors_are_stored_once_and_come_back_tied():
    weight = torch.randn(20, 30)
    once = len(to_bytes({"embedding.weight": weight}))
    content = to_bytes({"embedding.weight": weight, "head.weight": weight, "other.weight": weight.clone()})
    archive = Archive(io.BytesIO(content))
    assert [record.alias_of for record in archive.records] == [None, "embedding.weight", None]
    first, second, third = (tensor for _, tensor in archive.read_all())
    assert first is second
    assert torch.equal(first, third)
    assert len(to_bytes({"embedding.weight": weight, "head.weight": weight})) < once + 10
    assert torch.equal(archive.read(archive.record("head.weight")), weight)


def test_views_of_one_memory_are_not_taken_for_one_tensor():
    weight = torch.randn(4, 4)
    archive = Archive(io.BytesIO(to_bytes({"a": weight, "b": weight.T, "c": weight[:2]})))
    assert [torch.equal(t, w) for (_, t), w in zip(archive.read_all(), (weight, weight.T, weight[:2]), strict=True)]
    assert {record.alias_of for record in archive.records} == {None}


names = st.lists(
    st.text(st.characters(exclude_categories=("C", "Z")), min_size=1, max_size=20)
    | st.sampled_from(["a.weight", "a.bias", "ab.weight", "weight", ".weight", "layers.10.bias", "bn.running_var"]),
    unique=True,
)


@given(names=names)
def test_any_names_come_back_in_their_order(names):
    archive = Archive(io.BytesIO(to_bytes({name: torch.zeros(2) for name in names})))
    assert [record.name for record in archive.records] == names


@given(metadata=st.dictionaries(st.text(max_size=10), st.text(max_size=50), max_size=5))
def test_any_metadata_comes_back(metadata):
    metadata = {key: value for key, value in metadata.items() if (key + value).isprintable()}
    assert Archive(io.BytesIO(to_bytes({}, metadata=metadata))).metadata == metadata


@pytest.mark.parametrize(
    "architecture", [None, Architecture("lenet-5"), Architecture("a.b:C", {"width": 3, "deep": [1, {"x": None}]})]
)
def test_the_architecture_comes_back(architecture):
    assert Archive(io.BytesIO(to_bytes({}, architecture=architecture))).architecture == architecture


@given(number=st.integers(0, 2**63 - 1), first=st.integers(0, 300), second=st.integers(0, 300))
def test_numbers_come_back(number, first, second):
    out = bytearray()
    put_varint(out, number)
    put_pair(out, first, second)
    cursor = Cursor(bytes(out))
    assert (cursor.varint(), cursor.pair(), cursor.left) == (number, (first, second), 0)


@pytest.mark.parametrize(
    ("tensors", "complaint"),
    [
        ({"": torch.zeros(1)}, "name must be printable, of 1 to 512 bytes, got ''"),
        ({"a\n": torch.zeros(1)}, r"name must be printable, of 1 to 512 bytes, got 'a\\n'"),
        ({"a" * 513: torch.zeros(1)}, "name must be printable"),
        ({"a": torch.zeros(1, device="meta")}, '"a" lies on the meta device'),
        ({"a": torch.zeros(2, 2).to_sparse()}, '"a" is a torch.sparse_coo tensor'),
        ({"a": torch.zeros([1] * 33)}, r'"a" has 33 dimensions, .* at most 32: reshape it'),
        ({"a": torch.zeros(0, 1 << 49)}, '"a" is of shape .* larger than a file can hold'),
        ({"a": torch.zeros(2, dtype=torch.uint16)}, '"a" is a torch.strided tensor of torch.uint16'),
    ],
)
def test_what_a_file_cannot_hold_is_refused_by_name(tensors, complaint):
    with pytest.raises(ValueError, match=complaint):
        to_bytes(tensors)


def circular():
    arguments = {}
    arguments["again"] = arguments
    return arguments


@pytest.mark.parametrize(
    ("architecture", "complaint"),
    [
        (Architecture("a:" + "B" * 511, {}), "name of the architecture must be printable, of 1 to 512 bytes, got 'a:B"),
        (Architecture("a:\ud800", {}), "name of the architecture must be printable"),
        (Architecture("a:B", {"x": torch.zeros(1)}), "arguments of a:B must be data for JSON: .*Tensor"),
        (Architecture("a:B", circular()), "arguments of a:B must be data for JSON"),
        (Architecture("a:B", {"x": "y" * (1 << 20)}), "arguments of a:B may take 1,048,576 bytes, got 1,048,584"),
    ],
)
def test_an_architecture_that_could_not_be_read_back_is_refused(architecture, complaint):
    with pytest.raises(ValueError, match=complaint):
        to_bytes({}, architecture=architecture)


def test_conjugates_come_back_as_such():
    number = torch.tensor([1 + 2j, 3 - 1j])
    tensors = {"a": number, "b": number.conj(), "c": number.conj().imag, "d": number.imag}
    archive = Archive(io.BytesIO(to_bytes(tensors)))
    for stored, tensor in archive.read_all():
        assert torch.equal(tensor, tensors[stored.name]), stored.name


@pytest.mark.parametrize("metadata", [{"seed": 1}, {1: "seed"}, {"text": "x" * (1 << 20)}, {"a": "\ud800"}])
def test_metadata_that_is_not_a_little_text_is_refused(metadata):
    with pytest.raises(ValueError, match="metadata"):
        to_bytes({}, metadata=metadata)


# Golden bytes: a file of version 1 is read for ever, and written the same on every machine.
GOLDEN_HEX = (
    "894355540d0a1a0a010138076c656e65742d3504104a026663020412030a0a22e1f900102002f51d20dc14c605737465"
    "707300030105cdbd5bd1004b036f7574020200fb1ba9b900340800a01fc16a16a0cdcccc3dcdcc4cbe0800c07f92"
)


def test_the_bytes_of_a_small_file_are_these():
    content = to_bytes(GOLDEN, codec="huffman", architecture=Architecture("lenet-5"))
    assert content.hex() == GOLDEN_HEX


def test_the_golden_file_is_read():
    archive = Archive(io.BytesIO(bytes.fromhex(GOLDEN_HEX)))
    assert (archive.architecture, archive.metadata) == (Architecture("lenet-5"), {})
    for record, tensor in archive.read_all():
        assert torch.equal(tensor, GOLDEN[record.name])


def test_the_dictionary_of_the_metadata_is_part_of_the_format():
    document = (Path(__file__).parents[2] / "docs/format.md").read_text()
    assert f"`{preamble.DICTIONARY.decode()}`" in document
    plain, known = {"x": "qwzkvjqwpf"}, {"run": "lenet-300-100-mnist-alpha=50-epochs=160-fine_tune_epochs=60-seed=0"}
    sizes = [len(to_bytes({}, metadata=metadata)) for metadata in (plain, known)]
    assert sizes[1] < sizes[0] + 10
