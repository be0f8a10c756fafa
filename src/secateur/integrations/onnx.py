"""A plain network as an ONNX file that was run by ONNX Runtime, and compared with torch, before it is kept."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from importlib import import_module
from os import PathLike
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn

from secateur.atomic import require_file, write_atomically
from secateur.measure.engines import EngineError, require_package, silence
from secateur.weights.tensors import tensors

LARGEST_DIFFERENCE = 1e-4  # between an output of ONNX Runtime and torch's, absolute


def export_onnx(
    model: nn.Module,
    example: Tensor | Mapping[str, Tensor],
    path: str | PathLike[str],
    *,
    any_batch: bool = False,
) -> float:
    """Write a plain network to an ONNX file, if ONNX Runtime gives the same outputs for `example` within 1e-4.

    Returns the largest absolute difference.

    `example` is the input, or the inputs by name, as a Hugging Face tokenizer returns them. All sizes of the file's
    inputs are those of the example; with `any_batch` the first dimension is free, and the example needs at least two
    samples. The file is dense: ONNX has no sparse layers. Training mode is left alone; what is written is the network
    in evaluation mode.
    """
    where = require_file(Path(path))
    _require_plain(model)
    runtime = require_package("onnxruntime")
    for package in ("onnx", "onnxscript"):  # needed by torch's exporter
        require_package(package)
    training = {module: module.training for module in model.modules()}
    try:
        model.eval()
        with torch.no_grad():
            expected = _tensors(model(**example) if isinstance(example, Mapping) else model(example))
        with silence(), tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "model.onnx"
            _write(model, example, file, any_batch)
            difference = _difference(_run(runtime, file, example), expected)
            content = file.read_bytes()
    finally:
        for module, mode in training.items():
            module.training = mode
    if not difference <= LARGEST_DIFFERENCE:  # nor NaN
        raise EngineError(
            f"{where.name} was not written: outputs of ONNX Runtime differ from torch's by {difference:.1e}, more than "
            f"{LARGEST_DIFFERENCE:g}"
        )
    write_atomically(where, content)
    return difference


def _require_plain(model: nn.Module) -> None:
    for tensor in tensors(model):
        if tensor.functions:
            raise ValueError(
                f'"{tensor.name}" is read through {type(tensor.functions[0]).__name__}: make the model plain first '
                "(secateur.prune, freeze or settle)"
            )


def _write(model: nn.Module, example: Tensor | Mapping[str, Tensor], file: Path, any_batch: bool) -> None:
    """Let torch write the file, whose weights are part of it."""
    free = {0: torch.export.Dim.DYNAMIC}
    options: dict[str, Any] = {"kwargs": dict(example)} if isinstance(example, Mapping) else {"args": (example,)}
    if any_batch:
        options["dynamic_shapes"] = dict.fromkeys(example, free) if isinstance(example, Mapping) else (free,)
    try:
        with torch.no_grad():
            program = torch.onnx.export(model, **options, dynamo=True, verbose=False)
        assert program is not None
        program.save(file, external_data=False)
    except RuntimeError as error:  # the base of the exporter's own errors
        raise EngineError(f"torch cannot export {type(model).__name__} to ONNX: {_first_line(error)}") from error


def _run(runtime: ModuleType, file: Path, example: Tensor | Mapping[str, Tensor]) -> list[Tensor]:
    """Return what ONNX Runtime computes for the example."""
    errors = import_module("onnxruntime.capi.onnxruntime_pybind11_state")
    kinds = (errors.Fail, errors.InvalidArgument, errors.InvalidGraph, errors.NotImplemented, errors.RuntimeException)
    options = runtime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    options.log_severity_level = 3
    try:
        session = runtime.InferenceSession(file, options, providers=["CPUExecutionProvider"])
        names = [each.name for each in session.get_inputs()]
        inputs = example if isinstance(example, Mapping) else dict(zip(names, (example,), strict=True))
        answer = session.run(None, {name: inputs[name].numpy() for name in names})
    except kinds as error:
        raise EngineError(f"ONNX Runtime cannot run the file: {_first_line(error)}") from error
    return [torch.from_numpy(each) for each in answer]


def _tensors(output: object) -> list[Tensor]:
    """Return the tensors of an output in their order: a tensor, or a tuple or mapping of them, as of Transformers."""
    if isinstance(output, Tensor):
        return [output]
    if isinstance(output, Mapping):
        return [tensor for each in output.values() for tensor in _tensors(each)]
    if isinstance(output, Sequence) and not isinstance(output, str):
        return [tensor for each in output for tensor in _tensors(each)]
    return []


def _difference(answers: list[Tensor], expected: list[Tensor]) -> float:
    """Return the largest absolute difference; infinite if the outputs are not alike."""
    if not expected or [each.shape for each in answers] != [each.shape for each in expected]:
        return float("inf")
    pairs = zip(answers, expected, strict=True)
    return max((one.double() - other.double()).abs().max().item() if one.numel() else 0.0 for one, other in pairs)


def _first_line(error: BaseException) -> str:
    return next(iter(str(error).strip().splitlines()), type(error).__name__)
