"""From a pruned run to one small file: drop dead units, quantise, train the few values, sort units, encode.

The steps of the pipeline after the cut, each judged on validation images, so that one sees what it costs.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Annotated, Literal

import torch
from torch import nn
from typing_extensions import Doc

from secateur import data
from secateur.encode import load, save
from secateur.encode.convert import read_inputs
from secateur.encode.units import without_dead_units
from secateur.experiments.job import Job, load_images, load_model, run, short, versions
from secateur.experiments.rundir import RunDirectory, RunError
from secateur.measure import count, error_rate
from secateur.quantize import QuantizeConfig, coded_bits, freeze, quantize
from secateur.quantize.network import require_levels
from secateur.train.loop import Observer, Record, fit, is_main_process, wait_for_all


@dataclass(frozen=True, kw_only=True)
class Compression:
    """How a pruned network becomes a file; the defaults are Deep Compression's weight sharing, with our coder."""

    quantizer: Annotated[
        Literal["shared", "uniform", "none"], Doc("values shared by k-means, a grid with a learned step, or all values")
    ] = "shared"
    levels: Annotated[int, Doc("values besides zero per linear layer (uniform: the largest level)")] = 32
    conv_levels: Annotated[int, Doc("the same for convolutions")] = 256
    bias_levels: Annotated[int | None, Doc("values per bias vector (none: biases stay as they are)")] = None
    quantize_epochs: Annotated[int, Doc("passes over the training images that train the shared values")] = 5
    quantize_lr: Annotated[float, Doc("learning rate of the shared values and steps")] = 1e-3
    lambda_rate: Annotated[float, Doc("weight of the estimated bits in the loss (uniform): what a bit may cost")] = 0.0
    sort_units: Annotated[bool, Doc("sort hidden units, which keeps the function and makes the file smaller")] = True
    codec: Annotated[str, Doc("smallest, huffman, rans, context or raw")] = "smallest"

    @property
    def name(self) -> str:
        """A readable name, which is also the directory of the file: what differs from the defaults."""
        changed = [
            f"{entry.name}={short(getattr(self, entry.name))}"
            for entry in fields(self)
            if getattr(self, entry.name) != entry.default
        ]
        return "-".join(["compressed", *changed])

    def __post_init__(self) -> None:
        for name in ("levels", "conv_levels"):
            require_levels(name, getattr(self, name))
        if self.lambda_rate and self.quantizer != "uniform":
            raise ValueError(f'lambda_rate needs quantizer="uniform": levels of "{self.quantizer}" have no gradient')
        for name in ("lambda_rate", "quantize_lr", "quantize_epochs"):
            if not (math.isfinite(getattr(self, name)) and getattr(self, name) >= 0):
                raise ValueError(f"{name} must be ≥ 0 and finite, got {getattr(self, name)}")

    def rules(self) -> tuple[QuantizeConfig, Mapping[str | type[nn.Module], QuantizeConfig | int | None]]:
        """Return what `quantize` needs to know, and its exceptions for convolutions."""
        method: Literal["shared", "uniform"] = "uniform" if self.quantizer == "uniform" else "shared"
        linear = QuantizeConfig(method=method, levels=self.levels, bias_levels=self.bias_levels)
        return linear, {nn.Conv2d: replace(linear, levels=self.conv_levels)}


def compress(
    job: Job,
    compression: Compression,
    root: Path,
    *,
    data_root: Path | None = None,
    resume: bool = False,
    observer: Observer | None = None,
) -> tuple[RunDirectory, RunDirectory]:
    """Prune as `job` says and write the result as a .cut file; return the run's directory, and the file's inside of it.

    What is done already is not done again. Reads training files only.
    """
    pruned = run(job, root, data_root=data_root, resume=resume, observer=observer)
    directory = pruned.inside(compression.name)
    if directory.file_record.exists() and directory.packed.exists():
        if directory.read(directory.file_record)["compression"] != asdict(compression):
            raise RunError(f"{directory.path} holds a file with other settings, of an older version: move it away")
        return pruned, directory
    if is_main_process():
        directory.test.unlink(missing_ok=True)  # it would speak of another file
        directory.sweep()
    model, scaling = load_model(pruned.model)
    # As in the run itself: convolutions train faster with the channels of a pixel side by side.
    model = model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]  # not in torch's stubs
    images, validation, _ = load_images(job, model, data_root)
    inputs, labels = scaling(validation.images), validation.labels
    errors: Record = {"pruned": error_rate(model, inputs, labels)}
    seconds = 0.0

    model = without_dead_units(model)
    if compression.quantizer != "none":
        config, exceptions = compression.rules()
        has_convolutions = any(isinstance(module, nn.Conv2d) for module in model.modules())
        quantize(model, config, layers=exceptions if has_convolutions else {})
        errors["quantized"] = error_rate(model, inputs, labels)
        if compression.quantize_epochs:
            seconds = fit(
                model,
                images,
                replace(
                    job.train,
                    fine_tune_epochs=compression.quantize_epochs,
                    fine_tune_lr=compression.quantize_lr,
                    schedule="cosine",
                ),
                phase="quantize",
                seed=job.seed,
                measure=lambda model: _progress(model, inputs, labels),
                journal=directory.journal("quantize"),
                observer=observer,
                cost=(lambda model: compression.lambda_rate * coded_bits(model)) if compression.lambda_rate else None,
            )
        model = freeze(model, half_codebook=True)
        errors["trained"] = error_rate(model, inputs, labels)
    header = {
        "data": job.data,
        "mean": repr(scaling.mean),
        "std": repr(scaling.std),
        "run": job.name,
        "compression": compression.name,
        "validation error %": f"{error_rate(model, inputs, labels):.2f}",
        "secateur": versions()["secateur"],
    }
    if is_main_process():
        sort_units, totals = compression.sort_units, count(model)
        size = save(model, directory.packed, codec=compression.codec, metadata=header, sort_units=sort_units)
        errors["decoded"] = error_rate(load(directory.packed), inputs, labels)
        directory.write(
            directory.file_record,
            {
                "job": asdict(job),
                "compression": asdict(compression),
                "bytes": size,
                "fp32_bytes": 4 * totals.whole.weights,
                "kept": totals.prunable.kept,
                "prunable": totals.prunable.weights,
                "validation": errors,
                "seconds": {"quantize": seconds},
                "threads": torch.get_num_threads(),
                "versions": versions(),
            },
        )
    wait_for_all()
    return pruned, directory


def evaluate_file(directory: RunDirectory, *, data_root: Path | None = None) -> Record:
    """Read the test set, once, and write the error of the network in a .cut file beside it."""
    if directory.test.exists():
        return directory.read(directory.test)
    record = directory.read(directory.file_record)
    model, scaling, data_set = load_file(directory.packed)
    test = data.load(data_set, "test", data_root)
    error = error_rate(model, scaling(test.images), test.labels)
    answer = {"error": {"decoded": error}, "test_images": len(test.labels), "bytes": record["bytes"]}
    directory.write(directory.test, answer)
    return answer


def load_file(path: Path) -> tuple[nn.Module, data.Scaling, str]:
    """Return the network of a .cut file that a run wrote, the scaling its inputs need, and its data set's name."""
    scaling, data_set = read_inputs(path)
    return load(path), scaling, data_set


def _progress(model: nn.Module, inputs: torch.Tensor, labels: torch.Tensor) -> Record:
    with torch.no_grad():
        return {"error": error_rate(model, inputs, labels), "coded_bytes": coded_bits(model).item() / 8}
