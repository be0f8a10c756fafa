"""Dense engines to compare with: eager torch, torch.compile, ONNX Runtime and OpenVINO."""

import logging
import tempfile
import time
import warnings
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from types import FunctionType, ModuleType

import torch
from torch import Tensor, nn

from secateur.nearest import require_one_of

Run = Callable[[Tensor], Tensor]

# Allowed difference between engines, relative to the largest output: they add in different orders, and some convolve by
# transforms.
TOLERANCE = 1e-3


class EngineError(RuntimeError):
    """An engine cannot run a network: it is missing, fails, or computes another output. The text is one sentence."""


@dataclass(frozen=True, kw_only=True)
class Engine:
    """A network prepared by one engine for inputs of one shape, without gradients."""

    name: str
    version: str
    threads: int
    run: Run
    seconds: float  # to prepare it
    difference: float  # the largest from torch's output on the example, relative to the largest output


def prepare(name: str, model: nn.Module, example_input: Tensor) -> Engine:
    """Prepare `model` for inputs like `example_input`, and compare the engine's output with torch's.

    `name` is one of `ENGINES`. The engine uses as many threads as torch does now, so set those first; an `Engine`
    with one thread runs in the calling thread. The model must be in evaluation mode, and weights that
    change later may or may not be noticed. Raises `EngineError` if the engine cannot be had.
    """
    require_one_of("engine", name, ENGINES)
    if any(module.training for module in model.modules()):
        raise ValueError("the model is in training mode, which only torch supports: call model.eval() first")
    expected = _without_gradients(model)(example_input)
    if not isinstance(expected, Tensor):
        raise TypeError(f"the model must return one tensor, got {type(expected).__name__}")
    start = time.perf_counter()
    version, run = ENGINES[name](model, example_input)
    answer = run(example_input)
    seconds = time.perf_counter() - start
    difference = _difference(answer, expected)
    if not difference <= TOLERANCE:  # nor NaN
        raise EngineError(f"the output of {name} differs from torch's by {difference:.1e} of the largest value")
    threads = torch.get_num_threads()
    return Engine(name=name, version=version, threads=threads, run=run, seconds=seconds, difference=difference)


def prepare_all(
    model: nn.Module, example_input: Tensor, names: Collection[str] | None = None
) -> tuple[dict[str, Engine], dict[str, str]]:
    """Return the engines that run `model`, by name, and for each of the others the reason in one sentence."""
    found, missing = {}, {}
    for name in ENGINES if names is None else names:
        try:
            found[name] = prepare(name, model, example_input)
        except EngineError as error:
            missing[name] = str(error)
    return found, missing


def require_same_answer(answer: Tensor, expected: Tensor, tolerance: float = TOLERANCE) -> None:
    """Raise a ValueError if sparse and dense outputs differ by more than a share of the largest value."""
    difference = _difference(answer, expected)
    if not difference <= tolerance:  # nor NaN
        raise ValueError(
            f"the output of the sparse network differs from the dense one by {difference:.1e} of the largest value: "
            "not timed"
        )


def _eager(model: nn.Module, example_input: Tensor) -> tuple[str, Run]:
    return torch.__version__, _without_gradients(model)


def _compiled(model: nn.Module, example_input: Tensor) -> tuple[str, Run]:
    def call(x: Tensor) -> Tensor:
        answer: Tensor = model(x)
        return answer

    # Its own code object, because torch counts recompilations per code object. All networks share `nn.Module.__call__`,
    # so torch would run the ninth and later ones of a process uncompiled, and only log that.
    own = FunctionType(call.__code__.replace(), call.__globals__, closure=call.__closure__)
    with silence():
        run = _without_gradients(torch.compile(own, dynamic=False))
        config = import_module("torch._inductor.config")
        try:
            # Freezing turns weights into constants: batch norms are folded and matrices packed once. As an option of
            # torch.compile it has no effect (torch 2.13): the front end reads the global configuration at first call.
            with config.patch(freezing=True):
                run(example_input)
        except RuntimeError as error:  # the base of torch.compile's own errors
            raise EngineError(f"torch.compile cannot run it: {_first_line(error)}") from error
    return torch.__version__, run


def _onnx_runtime(model: nn.Module, example_input: Tensor) -> tuple[str, Run]:
    runtime = require_package("onnxruntime")
    for package in ("onnx", "onnxscript"):  # needed by torch's exporter
        require_package(package)
    errors = import_module("onnxruntime.capi.onnxruntime_pybind11_state")
    kinds = (errors.Fail, errors.InvalidArgument, errors.InvalidGraph, errors.NotImplemented, errors.RuntimeException)
    options = runtime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    options.inter_op_num_threads = 1
    options.log_severity_level = 3
    # Its threads would spin while they wait for work, also while a rival is timed.
    options.add_session_config_entry("session.force_spinning_stop", "1")
    with silence(), tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "network.onnx"
        try:
            with torch.no_grad():
                program = torch.onnx.export(model, (example_input,), dynamo=True, verbose=False)
            assert program is not None
            program.save(path)
            session = runtime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
        except (RuntimeError, *kinds) as error:
            raise EngineError(f"onnxruntime cannot run it: {_first_line(error)}") from error
    (name,) = (each.name for each in session.get_inputs())

    def run(x: Tensor) -> Tensor:
        return torch.from_numpy(session.run(None, {name: x.numpy()})[0])

    return str(runtime.__version__), run


def _openvino(model: nn.Module, example_input: Tensor) -> tuple[str, Run]:
    openvino = require_package("openvino", extra="openvino")
    settings = {
        "INFERENCE_NUM_THREADS": torch.get_num_threads(),
        "NUM_STREAMS": 1,
        "INFERENCE_PRECISION_HINT": "f32",  # the others compute in float32, too
    }
    with silence():
        try:
            with torch.no_grad():
                converted = openvino.convert_model(torch.export.export(model, (example_input,)))
            compiled = openvino.compile_model(converted, "CPU", settings)
        except RuntimeError as error:  # the base of torch's errors and of OpenVINO's
            raise EngineError(f"openvino cannot run it: {_first_line(error)}") from error
    request = compiled.create_infer_request()

    def run(x: Tensor) -> Tensor:
        request.infer([x.numpy()], share_inputs=True)
        # A copy: the next call overwrites it.
        return torch.from_numpy(request.get_output_tensor(0).data.copy())

    return str(openvino.__version__).partition("-")[0], run


ENGINES: dict[str, Callable[[nn.Module, Tensor], tuple[str, Run]]] = {
    "eager": _eager,
    "compile": _compiled,
    "onnxruntime": _onnx_runtime,
    "openvino": _openvino,
}


def _without_gradients(call: Run) -> Run:
    def run(x: Tensor) -> Tensor:
        if torch.is_inference_mode_enabled():  # entering it again takes 2 µs
            return call(x)
        with torch.inference_mode():
            return call(x)

    return run


def _difference(answer: Tensor, expected: Tensor) -> float:
    if answer.shape != expected.shape:
        return float("inf")
    largest = max(expected.abs().max().item(), torch.finfo(torch.float32).tiny) if expected.numel() else 1.0
    return (answer - expected).abs().max().item() / largest if expected.numel() else 0.0


def require_package(package: str, extra: str = "onnx") -> ModuleType:
    """Import a package of an extra; an EngineError says how to install it."""
    try:
        with silence():
            return import_module(package)
    except ImportError as error:
        raise EngineError(f"{package} cannot be imported ({error}): pip install secateur[{extra}]") from error


@contextmanager
def silence() -> Iterator[None]:
    """Silence warnings and logs of exporters: deprecations and missing optional packages."""
    disabled = logging.root.manager.disable
    logging.disable(max(disabled, logging.WARNING))
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(disabled)


def _first_line(error: BaseException) -> str:
    return next(iter(str(error).strip().splitlines()), type(error).__name__)
