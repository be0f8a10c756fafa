import errno
import json
import os
import re
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from commands import sentence
from safetensors.torch import load_file, save_file

import secateur
from secateur import networks
from secateur.encode import nncodec_sizes
from secateur.encode.container import to_bytes
from secateur.encode.convert import pack, read_safetensors, unpack
from secateur.encode.errors import FormatError
from secateur.encode.inspection import entropy_bits, inspect, sizes
from secateur.functions.computed import compute_from
from secateur.functions.low_rank import LowRank
from secateur.methods.small import weights_of


@pytest.fixture(autouse=True)
def _in_a_directory_with_a_model(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    save_file(state(), "model.safetensors", {"network": "lenet-300-100", "mean": "0.0", "std": "1.0", "data": "digits"})


def state():
    """LeNet-300-100 with 5 % of its weights, at 4 levels."""
    model, draw = networks.build("lenet-300-100", seed=0), torch.Generator().manual_seed(0)
    tensors = {}
    for name, tensor in model.state_dict().items():
        levels = torch.tensor([-0.2, -0.1, 0.1, 0.2])[torch.randint(4, tensor.shape, generator=draw)]
        tensors[name] = levels.where(torch.rand(tensor.shape, generator=draw) < 0.05, 0.0)
    return tensors


def test_a_model_is_packed_and_unpacked_without_loss(command):
    code, printed, complained = command("pack", "model.safetensors", "model.cut")
    size = Path("model.cut").stat().st_size
    assert (code, complained) == (0, "")
    assert printed.startswith(f"model.cut: {size:,} bytes, ")
    assert re.search(r"\d+\.\d× smaller than model.safetensors \(1,06\d,\d{3}\)\n", printed)
    assert command("unpack", "model.cut", "again.safetensors")[0] == 0
    tensors, metadata = read_safetensors(Path("again.safetensors"))
    assert metadata == {"network": "lenet-300-100", "mean": "0.0", "std": "1.0", "data": "digits"}
    for name, tensor in state().items():
        assert torch.equal(tensors[name], tensor)


def test_packing_remarks_on_negative_zeros():
    save_file({"weight": torch.full((10, 10), -0.0)}, "signed.safetensors")
    with pytest.warns(UserWarning, match='"weight" holds 100 negative zeros, .* add 0.0 to it to lose them'):
        pack(Path("signed.safetensors"), Path("signed.cut"))


def test_the_state_of_a_sibling_is_not_packed(command):
    save_file(secateur.build_sibling(torch.nn.Linear(3, 2)).state_dict(), "sibling.safetensors")
    code, _, complained = command("pack", "sibling.safetensors", "sibling.cut")
    assert code == 1
    assert 'holds "parametrizations.weight.' in sentence(complained)
    assert not Path("sibling.cut").exists()


def test_a_file_is_not_packed_or_unpacked_onto_itself(command):
    Path("link.safetensors").symlink_to("model.safetensors")
    before = Path("model.safetensors").read_bytes()
    for target in ("model.safetensors", "./model.safetensors", "link.safetensors"):
        code, _, complained = command("pack", "model.safetensors", target)
        assert (code, sentence(complained)) == (1, f"{Path(target)} is the source itself: choose another target")
    assert Path("model.safetensors").read_bytes() == before
    command("pack", "model.safetensors", "model.cut")
    assert sentence(command("unpack", "model.cut", "model.cut")[2]).startswith("model.cut is the source itself")


def test_verify_with_data_names_what_differs_instead_of_judging_it(command):
    command("pack", "model.safetensors", "model.cut")
    other = {name: tensor for name, tensor in state().items() if name != "fc3.bias"}
    save_file(other | {"more": torch.zeros(1)}, "other.safetensors")
    code, printed, _ = command("verify", "model.cut", "--against", "other.safetensors", "--data", "digits")
    assert code == 1
    assert printed.splitlines()[1] == "differs from the original: fc3.bias, more"
    assert re.fullmatch(r"error on 297 test images: \d+\.\d\d %", printed.splitlines()[2])


def test_what_was_packed_loads_as_a_network(command):
    command("pack", "model.safetensors", "model.cut")
    model = secateur.load("model.cut")
    assert list(model.state_dict()) == list(state())
    assert torch.equal(model.fc2.weight, state()["fc2.weight"])


def test_the_same_model_makes_the_same_file(command):
    command("pack", "model.safetensors", "a.cut")
    command("pack", "model.safetensors", "b.cut")
    assert Path("a.cut").read_bytes() == Path("b.cut").read_bytes()


def test_tied_tensors_count_one_by_one_when_they_are_unpacked():
    zeros = torch.zeros(1 << 16)
    Path("bomb.cut").write_bytes(to_bytes({f"t{k}": zeros for k in range(20)}))
    with pytest.raises(FormatError, match="unpacked it takes 5,242,880 bytes, more than max_bytes = 1,000,000"):
        unpack(Path("bomb.cut"), Path("bomb.safetensors"), max_bytes=1_000_000)
    assert not Path("bomb.safetensors").exists()


@pytest.mark.parametrize(
    ("name", "tensor"), [("__metadata__", torch.ones(2)), ("wide", torch.ones(2, dtype=torch.complex128))]
)
def test_what_safetensors_has_no_place_for_is_not_unpacked(command, name, tensor):
    Path("odd.cut").write_bytes(to_bytes({name: tensor}))
    code, _, complained = command("unpack", "odd.cut", "odd.safetensors")
    assert (code, sentence(complained)[: len(name) + 3]) == (1, f'"{name}":')
    assert not Path("odd.safetensors").exists()


@pytest.mark.parametrize("name", ["[/b]", "[red]w", "a\\[b]"])
def test_names_are_shown_as_they_are(command, name):
    Path("odd.cut").write_bytes(to_bytes({name: torch.ones(2)}, metadata={"note": "\x1b[2J", "is": "[/b]"}))
    code, printed, _ = command("inspect", "odd.cut")
    assert code == 0
    assert name in printed
    assert "\x1b[2J" not in printed
    assert r"'\x1b[2J'" in printed


def test_a_complex_number_is_one_element():
    Path("wide.cut").write_bytes(to_bytes({"wide": torch.tensor([1 + 2j, 0, 3j], dtype=torch.complex128)}))
    (tensor,) = inspect(Path("wide.cut")).tensors
    assert (tensor.weights, tensor.nonzero) == (3, 2)


@pytest.mark.parametrize("target", [".", "directory", "pipe"])
def test_what_is_no_file_is_not_replaced(command, target):
    Path("directory").mkdir()
    os.mkfifo("pipe")
    code, _, complained = command("pack", "model.safetensors", target)
    assert (code, sentence(complained)) == (
        1,
        f"{target} is a directory, a pipe or a device: name a file to write",
    )
    assert Path("pipe").is_fifo()


def test_a_link_is_followed(command):
    Path("link.cut").symlink_to("real.cut")
    assert command("pack", "model.safetensors", "link.cut")[0] == 0
    assert Path("link.cut").is_symlink()
    assert Path("real.cut").is_file()


def test_tied_tensors_can_be_unpacked(command):
    weight = torch.ones(3, 3)
    Path("tied.cut").write_bytes(secateur.encode.to_bytes({"a.weight": weight, "b.weight": weight}))
    assert command("unpack", "tied.cut", "tied.safetensors")[0] == 0
    assert set(load_file("tied.safetensors")) == {"a.weight", "b.weight"}


def test_inspect_and_verify_know_tensors_that_are_computed_from_smaller_ones(command):
    model = networks.build("lenet-300-100", seed=0)
    for tensor in weights_of(model):
        compute_from(tensor, LowRank.truncated(tensor.stored, 2))
    secateur.save(model, "small.cut")
    code, printed, _ = command("inspect", "small.cut", "--json")
    tensors = {tensor["name"]: tensor for tensor in json.loads(printed)["tensors"]}
    assert code == 0
    assert tensors["fc1.weight"]["nonzero"] == 2 * (784 + 300)
    assert (tensors["fc1.weight"]["values"], tensors["fc1.weight"]["is_computed"]) == ("low-rank", True)
    assert "Of a tensor that is computed from smaller ones" in " ".join(command("inspect", "small.cut")[1].split())
    assert command("unpack", "small.cut", "plain.safetensors")[0] == 0
    assert "every bit equals the original" in command("verify", "small.cut", "--against", "plain.safetensors")[1]


def test_inspect_shows_what_is_spent_on_each_tensor(command):
    command("pack", "model.safetensors", "model.cut", "--codec", "huffman")
    code, printed, _ = command("inspect", "model.cut")
    assert code == 0
    report = inspect(Path("model.cut"))
    sum_of_parts = report.header_bytes + sum(tensor.bytes for tensor in report.tensors)
    assert sum_of_parts == report.bytes == Path("model.cut").stat().st_size
    assert f"{report.bytes:,}" in printed
    document = json.loads(command("inspect", "model.cut", "--json")[1])
    first = document["tensors"][0]
    assert (first["name"], first["shape"], first["levels"]) == ("fc1.weight", [300, 784], 4)
    assert (first["values"], first["codec"]) == ("step", "huffman")
    assert first["nonzero"] == int(state()["fc1.weight"].count_nonzero())


def test_entropy_has_its_closed_form():
    half = torch.tensor([0.0, 1.0] * 32)
    assert entropy_bits(half) == 64  # one bit a position, none a value
    four = torch.tensor([0.0, 0.0, 0.0, 0.0, 1.0, 1.0, -1.0, -1.0] * 8)
    assert entropy_bits(four) == 64 + 32
    assert entropy_bits(torch.zeros(10)) == entropy_bits(torch.ones(10)) == 0


def test_verify_finds_a_sound_file_equal_and_counts_errors(command):
    command("pack", "model.safetensors", "model.cut")
    code, printed, _ = command("verify", "model.cut", "--against", "model.safetensors", "--data", "digits")
    assert code == 0
    sound, equal, error = printed.splitlines()
    assert re.fullmatch(r"model.cut: [\d,]+ bytes, 6 tensors, 266,610 elements, sound", sound)
    assert equal == "every bit equals the original"
    percent = re.fullmatch(r"error on 297 test images: (\d+\.\d\d) %, original \1 %", error)
    assert percent
    found = json.loads(command("verify", "model.cut", "--json")[1])
    assert (found["tensors"], found["differences"], found["error"]) == (6, None, None)


def test_verify_names_what_differs(command):
    command("pack", "model.safetensors", "model.cut")
    other = {name: tensor for name, tensor in state().items() if name != "fc3.bias"}
    other["fc2.weight"][0, 0] = -0.0 if other["fc2.weight"][0, 0] == 0 else 0.0
    save_file(other | {"more": torch.zeros(1)}, "other.safetensors")
    code, printed, _ = command("verify", "model.cut", "--against", "other.safetensors")
    assert code == 1
    assert printed.splitlines()[1] == "differs from the original: fc2.weight, fc3.bias, more"


def test_sizes_weigh_every_form(command, monkeypatch):
    found = json.loads(command("sizes", "model.safetensors", "--json")[1])
    assert found["dense"] == 266_610 * 4
    kept = sum(int(tensor.count_nonzero()) for tensor in state().values() if tensor.dim() == 2)
    assert found["csr"] == kept * 8 + (300 + 100 + 10 + 3) * 4 + 410 * 4
    assert found["entropy bound"] < found["huffman"] < found["lzma"] < found["gzip"] < found["csr"]
    assert found["smallest"] <= found["huffman"]
    code, printed, _ = command("sizes", "model.safetensors")
    assert code == 0
    assert f"{found['huffman']:,}" in printed


def test_sizes_ask_an_interpreter_for_nncodec(tmp_path, monkeypatch):
    # A stand-in for the interpreter: what it is given are levels, what it answers are bytes.
    python = tmp_path / "python"
    python.write_text(
        f"#!{sys.executable}\nimport json, sys, numpy\n"
        "with numpy.load(sys.argv[2]) as m: print(json.dumps([int(numpy.count_nonzero(m[n])) for n in m.files]))\n"
    )
    python.chmod(0o755)
    tensors = {"a": torch.tensor([[0.0, 0.1, -0.2]]), "b": torch.zeros(3)}
    assert sizes(tensors, nncodec=python)["nncodec"] == 2 + 8  # two levels, and their float32 codebook


def test_without_nncodec_its_interpreter_is_named(command):
    code, _, complained = command("sizes", "model.safetensors", "--nncodec", sys.executable)
    assert code == 1
    assert sentence(complained).startswith(f"{sys.executable} cannot run NNCodec: ModuleNotFoundError: nncodec is not")


def test_a_rival_that_loses_something_is_not_weighed():
    class Forgetful:
        HdspMode = type("HdspMode", (), {"AlwaysOff": 99})

        class Encoder:
            initCtxModels = encodeLayer = lambda *_: None
            finish = lambda _: np.zeros(3, np.uint8)  # noqa: E731

        class Decoder:
            setStream = initCtxModels = decodeLayer = finish = lambda *_: None

    assert nncodec_sizes._smallest(Forgetful, np.zeros((2, 2), np.int32)) == 3
    with pytest.raises(ValueError, match="did not give back"):
        nncodec_sizes._smallest(Forgetful, np.ones((2, 2), np.int32))


@pytest.mark.parametrize(
    ("words", "code", "complaint"),
    [
        ("pack model.safetensors out.cut --codec hufman", 2, 'there is no codec "hufman": did you mean "huffman"?'),
        ("verify model.safetensors --data minst", 2, 'there is no data set "minst": did you mean "mnist"?'),
        ("pack nowhere.safetensors out.cut", 1, "nowhere.safetensors does not exist"),
        ("pack . out.cut", 1, ". is a directory, not a safetensors file"),
        ("sizes .", 1, ". is a directory, not a safetensors file"),
        ("inspect nowhere.cut", 1, "nowhere.cut: No such file or directory"),
        ("inspect model.safetensors", 1, "model.safetensors: byte 0: this is not a .cut file: it begins differently"),
        (
            "unpack model.safetensors out",
            1,
            "model.safetensors: byte 0: this is not a .cut file: it begins differently",
        ),
        ("sizes broken", 1, "broken is not a safetensors file: Error while deserializing header: header too small"),
    ],
)
def test_what_cannot_be_done_is_one_sentence(command, words, code, complaint):
    Path("broken").write_bytes(b"x")
    found, printed, complained = command(*words.split())
    assert (found, printed, sentence(complained)) == (code, "", complaint)
    assert not Path("out.cut").exists()


def test_a_file_larger_than_allowed_is_refused(command):
    command("pack", "model.safetensors", "model.cut")
    code, _, complained = command("inspect", "model.cut", "--max-gb", "0.00095")
    assert code == 1
    assert re.match(r'model.cut: tensor "fc2.weight", byte \d+: .* max_bytes = 1,020,054', sentence(complained))


def test_an_unscaled_model_is_not_judged(command):
    save_file(state(), "plain.safetensors")
    command("pack", "plain.safetensors", "plain.cut")
    code, _, complained = command("verify", "plain.cut", "--data", "digits")
    assert code == 1
    assert sentence(complained) == "plain.cut does not say how its inputs are scaled: pack the model of a run"


def test_a_full_disk_is_one_sentence_and_leaves_nothing(command, monkeypatch):
    def no_room(_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", no_room)
    code, _, complained = command("pack", "model.safetensors", "model.cut")
    assert (code, sentence(complained)) == (1, "model.cut: No space left on device")
    assert [path.name for path in Path().iterdir()] == ["model.safetensors"]
