"""A folder for the Hugging Face Hub: the network of a run, and a model card whose numbers come from the run."""

from __future__ import annotations

import json
import math
import os
import shutil
from collections.abc import Mapping
from pathlib import Path

from secateur.atomic import write_atomically
from secateur.data import DATA_SETS
from secateur.encode.container import open_archive
from secateur.encode.convert import read_safetensors, unpack
from secateur.experiments.directory import RunDirectory
from secateur.experiments.reference import Reference, find_reference
from secateur.job import Job
from secateur.networks import modules_of
from secateur.report.commands import command
from secateur.report.wording import Wording, wording
from secateur.results import RunError, RunResult

_LOADING = """```python
import secateur
from huggingface_hub import hf_hub_download

{}
```"""


def write_hub_folder(run: RunDirectory, target: Path) -> Path:
    """Write model.safetensors, model.cut, config.json and README.md to a new folder, all of them or none."""
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise ValueError(f"{target} exists: name a new folder, or delete it")
    if not run.job.exists():
        raise RunError(f"{run.path} is not a run: the model card needs the numbers of one")
    result = run.read_result()
    where = target.resolve()
    partial = where.with_name(f".{where.name}.{os.getpid()}.partial")
    try:
        partial.mkdir(parents=True)
        write_atomically(partial / "model.cut", run.file.read_bytes())
        unpack(run.file, partial / "model.safetensors")
        config = json.dumps(_config(result.job, read_safetensors(run.model)[1]), indent=2, ensure_ascii=False)
        write_atomically(partial / "config.json", (config + "\n").encode())
        write_atomically(partial / "README.md", model_card(run).encode())
        partial.replace(where)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return target


def model_card(run: RunDirectory) -> str:
    """Return the README.md of a run's network: what it is, what it costs and how it was made."""
    result = run.read_result()
    job = result.job
    lines = [
        _front_matter(job),
        f"# {job.network}, pruned {result.ratio:.1f}×\n",
        f"{result.kept:,} of {result.weights:,} weights are left. Pruned with secateur while it was trained.\n",
        _table({**_sizes(result), **_errors(run, result)}),
        "\n## Use\n",
        _loading(job, run.file),
        "\n`model.safetensors` holds the same weights as dense tensors" + _scaled(job) + ".\n",
        "## Training\n",
        _table(_training(result)),
        "" if job.is_given else f"\n    {_repeated(job)}\n",
    ]
    return "\n".join(lines)


def _loading(job: Job, file: Path) -> str:
    """Return how the network is loaded; one that is not ours has to be trusted, or a model to be given."""
    found = 'hf_hub_download("USER/REPOSITORY", "model.cut")'
    modules = modules_of(job.network)
    if job.is_given:
        with open_archive(file) as archive:
            architecture = archive.architecture
            modules = () if architecture is None else modules_of(architecture.name)
            if architecture is None:
                return _LOADING.format(f"secateur.load({found}, model)  # fills a model of the same class")
    trust = "".join(f', trust=["{module}"]' for module in modules)
    return _LOADING.format(f"model = secateur.load({found}{trust})  # a plain PyTorch module")


def _scaled(job: Job) -> str:
    return "" if job.is_given else "; `config.json` says how inputs are scaled"


def _front_matter(job: Job) -> str:
    data = [f"datasets:\n- {job.data}"] if job.data in DATA_SETS else []
    return "\n".join(["---", "library_name: secateur", "tags:\n- pruning\n- pytorch", *data, "---\n"])


def _config(job: Job, header: Mapping[str, str]) -> dict[str, object]:
    """Return what is needed to build the network and to scale its inputs."""
    known = {"network", "data", "classes", "input_shape"}
    named: dict[str, object] = {"library_name": "secateur", "network": job.network, "data": _data_name(job)}
    if job.is_given:  # what its inputs are is not known
        return named
    return {
        **named,
        "classes": int(header["classes"]),
        "input_shape": [int(side) for side in header["input_shape"].split()],
        "scaling": {name: value for name, value in header.items() if name not in known},
    }


def _data_name(job: Job) -> str:
    """Return the name of the data; of a folder on this machine, without its path."""
    return job.data_name if job.is_given or job.data in DATA_SETS else Path(job.data).name


def _sizes(result: RunResult) -> dict[str, str]:
    found = {"weights kept": f"{result.kept:,} of {result.weights:,} ({result.ratio:.1f}× fewer)"}
    if result.file is not None:
        file = result.file
        found["model.cut"] = (
            f"{file.bytes:,} bytes, {file.ratio:.1f}× smaller than {file.dense_bytes:,} as 32-bit floats"
        )
    return found


def _errors(run: RunDirectory, result: RunResult) -> dict[str, str]:
    """Return the errors of the dense and of the finished network, where they are known."""
    unknown = Reference(validation=math.nan, test=math.nan, source="not known")
    dense = find_reference(result.job, run) or unknown
    words = wording(result.job, result.measure)
    images = f"{words.name} on {result.validation_images:,} validation {words.samples}"
    found = {images: _change(words, dense.validation, result.error)}
    if run.test.exists():
        test = run.read_test()
        found[f"{words.name} on {test.images:,} test {words.samples}"] = _change(words, dense.test, test.error)
    return {**found, "dense network": dense.source}


def _change(words: Wording, dense: float, pruned: float) -> str:
    after = words.amount(pruned)
    return after if math.isnan(dense) else f"{words.amount(dense)} dense → {after} pruned"


def _training(result: RunResult) -> dict[str, str]:
    job, recipe = result.job, result.job.recipe
    epochs = " + ".join(f"{stage.epochs} ({stage.name})" for stage in result.stages)
    data = _data_name(job)
    return {
        "data": data if job.is_given else f"{data}, {result.training_images:,} images",
        "method": job.label,
        "epochs": epochs or str(recipe.epochs),
        "optimizer": f"{recipe.optimizer}, lr {recipe.lr:g}, {recipe.schedule}, batch size {recipe.batch_size}",
        "weight decay": f"λ_wd = {recipe.lambda_wd:g}",
        "seed": str(job.seed),
        "versions": ", ".join(f"{name} {version}" for name, version in result.versions.items()),
    }


def _repeated(job: Job) -> str:
    """Return the command that repeats the run; of a run on a folder of this machine, without its path."""
    try:
        said = command(job)
    except ValueError:  # of a method that no command describes
        return f"secateur prune {job.network}"
    return said if job.data in DATA_SETS else said.replace(job.data, Path(job.data).name)


def _table(rows: Mapping[str, str]) -> str:
    return "\n".join(["| | |", "|---|---|", *(f"| {name} | {value} |" for name, value in rows.items())])
