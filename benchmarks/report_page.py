"""How long does it take to write the page of a run, how much memory, and how large is the page? (one thread).

Runs like those of `secateur compress`, with random weights: LeNet-300-100, and a network of AlexNet's shapes with 61
million weights at the sparsities of the paper's table 2; 220 epochs of history, a checkpoint and a .cut file each. A
page is written by a fresh process that has imported the library, but not Bokeh. Memory is the peak of that process
minus its memory before. Rival: reading the run's two weight files whole, as any page would that does not read them
piece by piece.

Limits: 3 s for LeNet-300-100; 10 s and 300 MB above the model for 61 million weights; 1.5 MB a page.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import safetensors.torch
import torch
from rans_alexnet import LAYERS as ALEXNET
from rans_alexnet import resident_bytes

from secateur.encode import to_bytes
from secateur.experiments.directory import RunDirectory
from secateur.experiments.presets import run_name
from secateur.experiments.versions import versions
from secateur.job import Job
from secateur.methods import FewValues, Manessi2018
from secateur.results import FileResult, LayerResult, RunResult, StageResult, write
from secateur.train.recipe import Recipe

NETWORKS = {  # shape of every weight, and the share of it that is kept
    "lenet-300-100": {"fc1": ((300, 784), 0.053), "fc2": ((100, 300), 0.162), "fc3": ((10, 100), 0.881)},
    "alexnet": ALEXNET,
}
LIMITS = {"lenet-300-100": 3.0, "alexnet": 10.0}  # seconds
EPOCHS, FINE_TUNE = 160, 60


def write_run(root: Path, network: str) -> RunDirectory:
    """Write the files of a finished run of `network`, with random pruned weights."""
    methods = (Manessi2018(fine_tune_epochs=FINE_TUNE), FewValues())
    job = Job(network=network, methods=methods, recipe=Recipe(epochs=EPOCHS))
    directory = RunDirectory(root / run_name(job))
    directory.path.mkdir()
    before, after, layers, thresholds = {}, {}, [], {}
    random = torch.Generator().manual_seed(0)
    for name, (shape, share) in NETWORKS[network].items():
        weight = torch.randn(shape, generator=random).mul_(0.05)
        threshold = 0.05 * torch.distributions.Normal(0, 1).icdf(torch.tensor(1 - share / 2)).item()
        before[f"model:{name}.parametrizations.weight.original"] = weight
        before[f"model:{name}.parametrizations.weight.0.threshold"] = torch.tensor([[threshold]])
        cut = torch.where(weight.abs() > threshold, weight.mul(64).round_().div_(64), 0.0)
        after[f"{name}.weight"] = cut
        thresholds[f"{name}.weight"] = (threshold,)
        kept = int(cut.count_nonzero())
        layers.append(LayerResult(name=f"{name}.weight", shape=tuple(shape), weights=weight.numel(), kept=kept))
    safetensors.torch.save_file(before, directory.journal("train").checkpoint)
    safetensors.torch.save_file(after, directory.model)
    directory.file.write_bytes(to_bytes(after, codec="rans"))
    stages = {"train": EPOCHS, "fine-tune": FINE_TUNE}
    for stage, epochs in stages.items():
        lines = [epoch(stage, number, thresholds if stage == "train" else {}) for number in range(1, epochs + 1)]
        directory.journal(stage).log.write_text("".join(json.dumps(line) + "\n" for line in lines))
    weights, kept = sum(layer.weights for layer in layers), sum(layer.kept for layer in layers)
    write(directory.job, job)
    result = RunResult(
        job=job,
        errors={"sibling": 1.9, "theta": 1.9, "raw": 2.0, "pruned": 1.8, "file": 1.8},
        weights=weights,
        kept=kept,
        layers=tuple(layers),
        thresholds=thresholds,
        parameters=weights,
        parameters_kept=kept,
        stages=tuple(StageResult(name=name, epochs=n, steps=430 * n, seconds=60.0) for name, n in stages.items()),
        file=FileResult(bytes=directory.file.stat().st_size, dense_bytes=4 * weights),
        training_images=55_000,
        validation_images=5_000,
        versions=versions(),
    )
    write(directory.result, result)
    return directory


def epoch(phase: str, number: int, thresholds: dict[str, tuple[float, ...]]) -> dict[str, object]:
    return {
        "phase": phase,
        "epoch": number,
        "step": number * 430,
        "loss": 30 / number,
        "loss_terms": {"task": 3 / number, "thresholds": 27 / number, "decay": 1.0},
        "error": 1.8 + 3 / number,
        "sibling_error": 1.8 + 3 / number,
        "ratio": 1 + number / 10,
        "thresholds": {name: values[0] * number / EPOCHS for name, values in thresholds.items()},
    }


def write_one(directory: RunDirectory) -> None:
    """Write the page in this process and print time, memory and size."""
    torch.set_num_threads(1)
    from secateur.report.page import write_page

    before, started, busy = resident_bytes("VmRSS"), time.perf_counter(), time.process_time()
    write_page([directory], directory.page)
    measured = {
        "seconds": time.perf_counter() - started,
        "cpu_seconds": time.process_time() - busy,
        "memory": resident_bytes("VmHWM") - before,
        "bytes": directory.page.stat().st_size,
    }
    print(json.dumps(measured))


def read_whole(directory: RunDirectory) -> None:
    """Read both weight files into memory, which is the rival, and print time and memory."""
    torch.set_num_threads(1)
    before, started = resident_bytes("VmRSS"), time.perf_counter()
    states = [
        safetensors.torch.load(path.read_bytes()) for path in (directory.journal("train").checkpoint, directory.model)
    ]
    for state in states:
        for tensor in state.values():
            tensor.abs().max()
    seconds = time.perf_counter() - started
    print(json.dumps({"seconds": seconds, "memory": resident_bytes("VmHWM") - before}))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--save", type=Path, help="write the result as JSON")
    parser.add_argument("--child", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        {"page": write_one, "whole": read_whole}[options.child[0]](RunDirectory(Path(options.child[1])))
        return
    rows = {}
    print(
        f"{'':16}{'weights':>12}{'seconds':>9}{'CPU s':>7}{'memory MB':>11}{'page MB':>9}"
        f"{'read whole: seconds':>21}{'memory MB':>11}"
    )
    with tempfile.TemporaryDirectory() as root:
        for network in NETWORKS:
            directory = write_run(Path(root), network)
            model = directory.model.stat().st_size
            found = {kind: [child(kind, directory) for _ in range(options.repeats)] for kind in ("page", "whole")}
            page, whole = (
                {key: statistics.median(each[key] for each in found[kind]) for key in found[kind][0]} for kind in found
            )
            rows[network] = {**page, "model": model, "whole": whole}
            print(
                f"{network:16}{model // 4:12,}{page['seconds']:9.2f}{page['cpu_seconds']:7.2f}"
                f"{page['memory'] / 1e6:11.0f}{page['bytes'] / 1e6:9.2f}"
                f"{whole['seconds']:21.2f}{whole['memory'] / 1e6:11.0f}"
            )
    if options.save:
        content = {"rows": rows, "limits": LIMITS, "threads": 1, "versions": versions()}
        options.save.parent.mkdir(parents=True, exist_ok=True)
        options.save.write_text(json.dumps(content, indent=1) + "\n")


def child(kind: str, directory: RunDirectory) -> dict[str, float]:
    command = [sys.executable, __file__, "--child", kind, str(directory.path)]
    return dict(json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout))


if __name__ == "__main__":
    main()
