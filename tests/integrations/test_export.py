"""Export: a .cut file as ONNX, safetensors and a state dict, and a run as a folder for the Hub."""

import json
import re
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from commands import sentence
from made_runs import made_result, write_made_run
from safetensors.torch import load_file
from torch import nn

import secateur
from secateur import networks
from secateur.data import Scaling
from secateur.experiments.models import save_model
from secateur.files import describe_inputs
from secateur.integrations import onnx
from secateur.integrations.export import export
from secateur.integrations.hub import model_card, write_hub_folder
from secateur.integrations.onnx import export_onnx
from secateur.measure import engines
from secateur.results import EvaluationResult, FileResult

NEEDS_ONNX = pytest.mark.skipif(
    any(find_spec(name) is None for name in ("onnx", "onnxruntime")),
    reason="needs ONNX Runtime: pip install 'secateur[onnx]'",
)


@pytest.fixture(autouse=True)
def _in_an_empty_directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def lenet():
    """LeNet-300-100 with a tenth of its weights."""
    model, draw = networks.build("lenet-300-100", seed=0), torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter[torch.rand(parameter.shape, generator=draw) > 0.1] = 0.0
    return model.eval()


@pytest.fixture
def file():
    secateur.save(lenet(), "model.cut", codec="rans")
    return Path("model.cut")


def test_safetensors_and_a_state_dict_hold_the_same_tensors(file, command):
    assert command("export", "model.cut", "model.safetensors")[0] == 0
    assert command("export", "model.cut", "model.pt")[0] == 0
    expected, plain = secateur.load_state(file), torch.load("model.pt", weights_only=True)
    assert list(plain) == list(expected)
    dense = load_file("model.safetensors")
    for name, tensor in expected.items():
        assert torch.equal(plain[name], tensor)
        assert torch.equal(dense[name], tensor)


@NEEDS_ONNX
def test_onnx_runtime_gives_the_outputs_of_torch_for_any_batch(file, command):
    import onnxruntime

    code, printed, complained = command("export", "model.cut", "model.onnx")
    assert (code, complained) == (0, "")
    assert float(re.search(r"differ from torch's by (\S+) at most", printed)[1]) <= 1e-4
    session = onnxruntime.InferenceSession("model.onnx", providers=["CPUExecutionProvider"])
    for batch in (1, 7):
        x = torch.randn(batch, 1, 28, 28)
        [answer] = session.run(None, {session.get_inputs()[0].name: x.numpy()})
        torch.testing.assert_close(torch.from_numpy(answer), lenet()(x), rtol=0, atol=1e-4)


@NEEDS_ONNX
def test_a_file_that_computes_something_else_is_not_kept(file, monkeypatch):
    monkeypatch.setattr(onnx, "_difference", lambda answers, expected: 2e-4)
    with pytest.raises(engines.EngineError, match=r"model.onnx was not written: outputs .* differ .* by 2.0e-04"):
        export(file, Path("model.onnx"))
    assert sorted(path.name for path in Path().iterdir()) == ["model.cut"]


@pytest.mark.parametrize(
    ("answers", "expected", "difference"),
    [
        ([[1.0, 2.0]], [[1.0, 2.5]], 0.5),
        ([[1.0], [3.0]], [[1.0], [1.0]], 2.0),
        ([[1.0, 2.0]], [[1.0]], float("inf")),
        ([], [], float("inf")),
    ],
)
def test_the_difference_is_the_largest_of_all_outputs(answers, expected, difference):
    assert onnx._difference([*map(torch.tensor, answers)], [*map(torch.tensor, expected)]) == difference


def test_a_network_with_thresholds_is_not_exported():
    sibling = secateur.build_sibling(nn.Sequential(nn.Linear(3, 2)))
    with pytest.raises(ValueError, match=r'"0\.weight" is read through LearnedThreshold: make the model plain first'):
        export_onnx(sibling, torch.randn(1, 3), "model.onnx")


def test_a_missing_package_is_named_with_its_extra(file, command, monkeypatch):
    def refuse(package):
        raise engines.EngineError(f"{package} cannot be imported: pip install secateur[onnx]")

    monkeypatch.setattr(onnx, "require_package", refuse)
    code, _, complained = command("export", "model.cut", "model.onnx")
    assert (code, sentence(complained)) == (1, "onnxruntime cannot be imported: pip install secateur[onnx]")


def test_a_network_of_others_is_exported_from_python(command):
    secateur.save(nn.Linear(3, 2), "other.cut", architecture=("torch.nn:Linear", {"in_features": 3, "out_features": 2}))
    code, _, complained = command("export", "other.cut", "other.onnx")
    assert code == 1
    assert "names a torch.nn:Linear, and ONNX needs one of ours" in complained


@pytest.mark.parametrize(
    ("target", "code", "said"),
    [
        ("model.tflite", 2, "model.tflite has to end in .onnx, .safetensors or .pt, which says what is written"),
        ("folder.pt", 1, "folder.pt is a directory, a pipe or a device: name a file to write"),
    ],
)
def test_a_target_that_cannot_be_written_is_refused(file, command, target, code, said):
    Path("folder.pt").mkdir()
    ended, _, complained = command("export", "model.cut", target)
    assert (ended, sentence(complained)) == (code, said)


def made_run(tmp_path):
    """A finished run of LeNet-300-100 whose file is that of a real network."""
    file = FileResult(bytes=20_000, dense_bytes=1_066_440)
    result = made_result(file=file, errors={"dense": 1.6, "pruned": 2.0, "file": 2.0})
    run = write_made_run(tmp_path, result, test=EvaluationResult(errors={"dense": 1.5, "file": 1.9}, images=10_000))
    sizes = {"classes": "10", "input_shape": "1 28 28", **Scaling().as_text()}
    save_model(run.model, lenet(), result.job, sizes)
    secateur.save(lenet(), run.file, codec="rans", metadata=describe_inputs(Scaling(), "digits", tuple("0123456789")))
    return run


def test_a_hub_folder_has_a_card_with_the_numbers_of_the_run(tmp_path, command):
    run = made_run(tmp_path / "runs")
    assert command("export", str(run.path), "hub", "--hub") == (0, "hub\n", "")
    folder = Path("hub")
    assert sorted(path.name for path in folder.iterdir()) == [
        "README.md",
        "config.json",
        "model.cut",
        "model.safetensors",
    ]
    card = (folder / "README.md").read_text()
    result = run.read_result()
    for number in (f"{result.kept:,} of {result.weights:,}", f"{result.ratio:.1f}×", "20,000 bytes", "53.3× smaller"):
        assert number in card
    assert "1.60 % dense → 2.00 % pruned" in card
    assert "1.50 % dense → 1.90 % pruned" in card
    assert "digits, 1,200 images" in card
    assert "secateur prune lenet-300-100 --data digits --rho 0.3 --epochs 2" in card
    assert card.startswith("---\nlibrary_name: secateur\n")
    config = json.loads((folder / "config.json").read_text())
    assert (config["network"], config["classes"], config["input_shape"]) == ("lenet-300-100", 10, [1, 28, 28])
    assert secateur.load(folder / "model.cut").state_dict().keys() == load_file(folder / "model.safetensors").keys()


def test_an_unknown_dense_error_is_left_out_of_the_card(tmp_path):
    run = write_made_run(tmp_path, made_result())
    assert "| error on 300 validation images | 2.00 % |" in model_card(run)


def test_nothing_is_left_of_a_hub_folder_that_fails(tmp_path):
    run = made_run(tmp_path / "runs")
    run.file.write_bytes(run.file.read_bytes()[:-1])
    with pytest.raises(secateur.FormatError):
        write_hub_folder(run, Path("hub"))
    assert [path.name for path in Path().iterdir()] == ["runs"]


def test_a_hub_folder_needs_a_run_and_a_new_name(file, tmp_path, command):
    code, _, complained = command("export", "model.cut", "hub", "--hub")
    assert (code, sentence(complained)) == (1, "model.cut is not a run: the model card needs the numbers of one")
    Path("full").mkdir()
    Path("full/mine").write_text("")
    code, _, complained = command("export", str(made_run(tmp_path / "runs").path), "full", "--hub")
    assert (code, sentence(complained)) == (1, "full exists: name a new folder, or delete it")
