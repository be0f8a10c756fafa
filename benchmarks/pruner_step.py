"""What does a budget cost? The pruner's part of a training step (one thread).

A step is complete: forward, loss, backward, fused SGD. `Pruner.step` is timed next to it in the same process, over
whole intervals between two updates, as in a long training; the share is that of the medians over the turns. Times are
CPU times, which other processes change least.
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional

import secateur
from secateur import networks
from secateur.experiments.versions import versions

CASES = {
    "LeNet-300-100, batch 128": (lambda: networks.build("lenet-300-100", seed=0), (128, 1, 28, 28)),
    "Linear 9216→4096, batch 64": (lambda: nn.Linear(9216, 4096), (64, 9216)),
}
LIMITS = {"LeNet-300-100, batch 128": 0.03, "Linear 9216→4096, batch 64": 0.01}
LONG, INTERVAL = 1_000_000, 50  # steps of the training, and between two updates


def timed(work: Callable[[], None], times: int) -> float:
    """Return the milliseconds of CPU time of so many calls."""
    started = time.process_time()
    for _ in range(times):
        work()
    return 1000 * (time.process_time() - started)


def measure(make: Callable[[], nn.Module], shape: tuple[int, ...], turns: int, steps: int) -> tuple[float, float]:
    """Return the milliseconds of a step and those of the pruner per step, medians over the turns."""
    model, inputs = make(), torch.rand(shape)
    pruner = secateur.Pruner(model, secateur.Budget(ratio=20), steps=LONG)
    next(iter(secateur.learned_thresholds(model).values())).counts[0] = LONG // 4  # half of the way to the budget
    pruner.advance(LONG // 4, LONG)
    labels = torch.arange(shape[0]) % model(inputs).shape[1]
    optimizer = torch.optim.SGD(secateur.parameter_groups(model, lr=1e-3, lambda_wd=1e-4), momentum=0.9, fused=True)

    def step() -> None:
        optimizer.zero_grad()
        functional.cross_entropy(model(inputs), labels).backward()
        optimizer.step()

    timed(step, 3)
    whole, own = [], []
    for _ in range(turns):
        whole.append(timed(step, steps) / steps)
        own.append(timed(pruner.step, INTERVAL) / INTERVAL)
    return statistics.median(whole), statistics.median(own)


def main() -> None:
    """Measure every case, print a table and write it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--turns", type=int, default=15)
    parser.add_argument("--steps", type=int, default=10, help="training steps of a turn")
    parser.add_argument("--save", type=Path, help="write the table as JSON")
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)
    rows = {}
    print(f"{'':28}{'step ms':>10}{'pruner ms':>12}{'share':>8}{'limit':>8}")
    for case, (make, shape) in CASES.items():
        step, own = measure(make, shape, options.turns, options.steps)
        rows[case] = {"step_ms": step, "pruner_ms": own, "share": own / step}
        print(f"{case:28}{step:10.2f}{own:12.3f}{own / step:8.2%}{LIMITS[case]:8.0%}")
    if options.save:
        content = {"rows": rows, "turns": options.turns, "threads": 1, "versions": versions()}
        options.save.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
