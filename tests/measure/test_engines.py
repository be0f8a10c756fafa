import logging
import subprocess
import sys
import warnings

import pytest
import torch
from torch import Tensor, nn

from secateur.measure import engines
from secateur.measure.engines import ENGINES, Engine, EngineError, prepare, prepare_all, require_same_answer


class Net(nn.Module):
    """A convolution, a batch norm, a skip and a linear layer: what an exporter rewrites."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(2, 2, 3, padding=1)
        self.norm = nn.BatchNorm2d(2)
        self.fc = nn.Linear(32, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc((self.norm(self.conv(x)).relu() + x).flatten(1))


@pytest.fixture
def model():
    return Net().eval()


@pytest.fixture
def x():
    return torch.randn(5, 2, 4, 4)


@pytest.mark.parametrize("name", ["eager", "onnxruntime", "openvino", pytest.param("compile", marks=pytest.mark.slow)])
def test_an_engine_answers_as_torch_does_on_other_inputs_too(name, model, x):
    if name in ("onnxruntime", "openvino"):
        pytest.importorskip(name)
    engine = prepare(name, model, x)
    other = torch.randn_like(x)
    with torch.no_grad():
        torch.testing.assert_close(engine.run(other), model(other), rtol=1e-4, atol=1e-5)
    assert not engine.run(other).requires_grad
    assert (engine.name, engine.threads) == (name, torch.get_num_threads())
    assert engine.version[0].isdigit()
    assert engine.seconds > 0
    assert engine.difference < 1e-4


@pytest.mark.slow
def test_torch_compile_takes_weights_for_constants_and_compiles_every_network_of_a_process(model, x):
    from torch._dynamo.utils import counters

    for count in range(1, 11):  # torch gives up silently after eight
        network = nn.Linear(count, 2).eval()
        before, rows = counters["stats"]["unique_graphs"], torch.randn(3, count)
        engine = prepare("compile", network, rows)
        assert counters["stats"]["unique_graphs"] == before + 1
        answer = engine.run(rows)
        with torch.no_grad():
            network.weight.zero_()
        assert torch.equal(engine.run(rows), answer)
        assert counters["stats"]["unique_graphs"] == before + 1


def test_an_unknown_engine_is_answered_with_the_nearest(model, x):
    with pytest.raises(ValueError, match=r'no engine "onnx-runtime": did you mean "onnxruntime"\?'):
        prepare("onnx-runtime", model, x)


def test_a_model_in_training_mode_is_refused(model, x):
    model.norm.train()
    with pytest.raises(ValueError, match=r"training mode.*call model.eval\(\) first"):
        prepare("eager", model, x)


def test_a_model_must_answer_with_one_tensor(x):
    with pytest.raises(TypeError, match="one tensor, got tuple"):
        prepare("eager", nn.LSTM(4, 3).eval(), x[0])


@pytest.mark.parametrize("wrong", [lambda y: y + 1, lambda y: y * float("nan"), lambda y: y[:1], lambda y: 1.01 * y])
def test_an_engine_that_answers_wrongly_is_no_engine(wrong, model, x, monkeypatch):
    monkeypatch.setitem(ENGINES, "wrong", lambda model, x: ("1", lambda x: wrong(model(x))))
    with torch.no_grad(), pytest.raises(EngineError, match="the output of wrong differs from torch's by"):
        prepare("wrong", model, x)


def test_an_engine_may_round_differently(model, x, monkeypatch):
    monkeypatch.setitem(ENGINES, "rounded", lambda model, x: ("1", lambda x: model(x).detach() * (1 + 1e-4)))
    assert prepare("rounded", model, x).difference == pytest.approx(1e-4, rel=0.05)


def test_the_difference_of_answers_that_are_zero_or_none_is_zero():
    assert prepare("eager", nn.Threshold(9, 0).eval(), torch.ones(3)).difference == 0
    assert prepare("eager", nn.ReLU().eval(), torch.ones(0, 3)).difference == 0


@pytest.mark.parametrize("package", ["onnxruntime", "onnxscript", "onnx"])
def test_a_package_that_is_missing_is_named_with_the_remedy(package, model, x, monkeypatch):
    pytest.importorskip("onnxruntime")
    monkeypatch.setitem(sys.modules, package, None)  # importing it fails now
    with pytest.raises(EngineError, match=rf"^{package} cannot be imported .*: pip install secateur\[onnx\]$"):
        prepare("onnxruntime", model, x)


def test_openvino_that_is_missing_is_told_with_the_remedy(model, x, monkeypatch):
    monkeypatch.setitem(sys.modules, "openvino", None)
    with pytest.raises(EngineError, match=r"^openvino cannot be imported .*: pip install secateur\[openvino\]$"):
        prepare("openvino", model, x)


def test_what_torch_compile_cannot_do_is_told_in_a_line(model, x, monkeypatch):
    def refuse(x):
        raise RuntimeError("no C++ compiler\nand many lines more")

    monkeypatch.setattr(torch, "compile", lambda *args, **options: refuse)
    with pytest.raises(EngineError, match=r"^torch.compile cannot run it: no C\+\+ compiler$"):
        prepare("compile", model, x)


def test_what_cannot_be_exported_is_told_in_a_line(x):
    pytest.importorskip("onnxruntime")

    class Branches(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x.sin() if x.sum() > 0 else x.cos()

    with pytest.raises(EngineError, match=r"^onnxruntime cannot run it: .+$"):
        prepare("onnxruntime", Branches().eval(), x)


def test_engines_that_cannot_be_had_are_reported_beside_the_others(model, x, monkeypatch):
    def absent(model, x):
        raise EngineError("it is not there")

    monkeypatch.setitem(ENGINES, "absent", absent)
    found, missing = prepare_all(model, x, ("eager", "absent"))
    assert {name: type(engine) for name, engine in found.items()} == {"eager": Engine}
    assert missing == {"absent": "it is not there"}


def test_silence_ends(caplog):
    with engines.silence():
        warnings.warn("unheard", stacklevel=1)
        logging.getLogger("exporter").warning("unheard")
    logging.getLogger("exporter").warning("heard")
    with pytest.warns(UserWarning, match="heard"):
        warnings.warn("heard", stacklevel=1)
    assert caplog.messages == ["heard"]


def test_an_export_says_nothing_on_the_terminal():
    pytest.importorskip("onnxruntime")
    program = (
        "import torch; from secateur.measure.engines import prepare; "
        "prepare('onnxruntime', torch.nn.Linear(3, 2).eval(), torch.ones(1, 3))"
    )
    done = subprocess.run([sys.executable, "-W", "always", "-c", program], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_the_same_answer_is_one_within_a_share_of_the_largest():
    expected = torch.tensor([0.5, -100.0])
    require_same_answer(expected + 0.09, expected)
    require_same_answer(expected + 0.9, expected, tolerance=1e-2)
    with pytest.raises(ValueError, match=r"differs from the dense one by 1\.1e-03 of the largest value"):
        require_same_answer(expected + 0.11, expected)


@pytest.mark.parametrize("answer", [torch.ones(3), torch.tensor([1.0, torch.nan])])
def test_an_answer_of_another_shape_or_without_a_number_is_not_the_same(answer):
    with pytest.raises(ValueError, match="not timed"):
        require_same_answer(answer, torch.ones(2))
