"""What does the paper's AlexNet run on ImageNet cost? Steps, images per second here and, on paper, on 8 and 64 GPUs.

Here: CPU seconds of one thread, so that other work on the machine does not count, as medians of plain and sibling in
turns; a step of the paper's 128 images counts as four of 32. On paper: a step takes the FLOPs of its images (forward,
and twice that backward), shared by the GPUs at an assumed speed; then, on every GPU, the time to move the weights and
what belongs to them through memory for θ and the optimizer; then the gradients are all-reduced in a ring, of which
nothing is hidden behind the backward pass. The batch of the paper's recipe stays as it is, so that many GPUs wait for
each other most of the time; and the pictures have to be read at that pace.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import time
from pathlib import Path
from typing import Any

import torch
from training_step import CASES, training_step

import secateur
from secateur import networks
from secateur.experiments.presets import settings
from secateur.measure import count_flops
from secateur.memory import keep_freed_memory

TRAINING_IMAGES = 1_281_167 - 5_000  # without those for validation
FLOPS_PER_SECOND = 312e12  # of one GPU in bf16, as an A100's data sheet says
UTILISATION = 0.3
BANDWIDTH = {8: 300e9, 64: 25e9}  # bytes a second out of each GPU: NVLink inside one machine, 200 Gb/s between machines
MEMORY_BANDWIDTH = 1.555e12  # bytes a second of one GPU, as the same data sheet says
# Of all weights in a step: θ reads them and writes what the layers read; its derivatives read weights and gradients and
# write gradients; SGD reads weights, gradients and momentum, and writes weights and momentum.
MEMORY_PASSES = 2 + 3 + 5
BATCH = 32  # of the steps that are measured
WARMUP = 3  # steps, after which no more memory is taken from the system


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--turns", type=int, default=7, help="steps of each network that are measured")
    parser.add_argument("--save", type=Path, help="write the table as JSON")
    options = parser.parse_args()
    recipe = settings("paper", "alexnet").recipe
    model = networks.build("alexnet", seed=0)
    flops = 3 * count_flops(model, torch.zeros(1, 3, 227, 227)).flops
    sibling = secateur.build_sibling(model)
    reduced = 4 * sum(parameter.numel() for parameter in sibling.parameters())
    plain, with_thresholds, overhead = step_seconds(options.turns)
    steps, steps_here = recipe.steps(TRAINING_IMAGES), recipe.batch_size / BATCH

    rows: dict[str, dict[str, Any]] = {}
    for name, seconds, exchange in (
        ("one thread here, plain", steps_here * plain, 0.0),
        ("one thread here, sibling", steps_here * with_thresholds, 0.0),
        *(on_paper(flops * recipe.batch_size, reduced, gpus) for gpus in BANDWIDTH),
    ):
        rows[name] = {
            "step_ms": 1e3 * seconds,
            "exchange_ms": 1e3 * exchange,
            "images_per_second": recipe.batch_size / seconds,
            "hours": steps * seconds / 3600,
        }
    facts = {
        "epochs": recipe.epochs,
        "steps": steps,
        "batch_size": recipe.batch_size,
        "training_flops_per_image": flops,
        "all_reduced_bytes": reduced,
        "sibling_over_plain": overhead,
        "gpu_flops_per_second": FLOPS_PER_SECOND,
        "utilisation": UTILISATION,
        "memory_bytes_per_second": MEMORY_BANDWIDTH,
        "memory_passes": MEMORY_PASSES,
        "bandwidth_bytes_per_second": {str(gpus): speed for gpus, speed in BANDWIDTH.items()},
        "torch": torch.__version__,
        "machine": platform.machine(),
    }
    print(f"{steps:,} steps of {recipe.batch_size} images, {flops / 1e9:.2f} GFLOP an image, {reduced / 1e6:.0f} MB")
    print(f"{'':28}{'step ms':>10}{'exchange ms':>13}{'images/s':>11}{'hours':>10}")
    for name, row in rows.items():
        numbers = (
            f"{row['step_ms']:10.2f}{row['exchange_ms']:13.2f}{row['images_per_second']:11,.0f}{row['hours']:10,.1f}"
        )
        print(f"{name:28}{numbers}")
    if options.save:
        options.save.parent.mkdir(parents=True, exist_ok=True)
        options.save.write_text(json.dumps({"rows": rows, **facts}, indent=1, ensure_ascii=False) + "\n")


def step_seconds(turns: int) -> tuple[float, float, float]:
    """Return the CPU seconds of a step of the plain network and of the sibling, and the median of their ratio."""
    torch.set_num_threads(1)
    keep_freed_memory()
    torch.set_flush_denormal(True)
    make, shape = CASES["AlexNet, batch 32"]
    steps = training_step(make(), shape), training_step(secateur.build_sibling(make()), shape)
    taken = []
    for _ in range(turns + WARMUP):
        pair = []
        for step in steps:
            started = time.process_time()
            step()
            pair.append(time.process_time() - started)
        taken.append(pair)
    pairs = taken[WARMUP:]
    plain, sibling = (statistics.median(column) for column in zip(*pairs, strict=True))
    return plain, sibling, statistics.median(second / first for first, second in pairs)


def on_paper(flops: float, reduced: int, gpus: int) -> tuple[str, float, float]:
    """Return the seconds of a step on GPUs, and the part of them that gradients take to be all-reduced."""
    compute = flops / gpus / (UTILISATION * FLOPS_PER_SECOND)
    memory = MEMORY_PASSES * reduced / MEMORY_BANDWIDTH
    exchange = 2 * (gpus - 1) / gpus * reduced / BANDWIDTH[gpus]
    return f"{gpus} GPUs, on paper", compute + memory + exchange, exchange


if __name__ == "__main__":
    main()
