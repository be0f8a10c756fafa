"""What does learning thresholds cost? A training step of the sibling and one of the plain network (one thread).

Both are complete steps: forward, loss, penalty, backward, fused Adam with weight decay, or for AlexNet SGD with
momentum, as the paper trains it. They take turns in one process, and the ratio is the median over the turns. Memory is
the peak of a fresh process that does nothing else. Freed memory is kept by the process, as in our training loop.
"""

import argparse
import json
import platform
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional

import secateur
from secateur import networks
from secateur.measure import compare_latency, count
from secateur.memory import keep_freed_memory

CASES = {
    "LeNet-300-100, batch 128": (lambda: networks.build("lenet-300-100", seed=0), (128, 1, 28, 28)),
    "LeNet-5, batch 128": (
        lambda: networks.build("lenet-5", seed=0).to(memory_format=torch.channels_last),
        (128, 1, 28, 28),
    ),
    "Linear 9216→4096, batch 64": (lambda: nn.Linear(9216, 4096), (64, 9216)),
    "AlexNet, batch 32": (
        lambda: networks.build("alexnet", seed=0).to(memory_format=torch.channels_last),
        (32, 3, 227, 227),
    ),
}
LIMITS = {
    "LeNet-300-100, batch 128": 1.40,
    "LeNet-5, batch 128": 1.08,
    "Linear 9216→4096, batch 64": 1.45,
    "AlexNet, batch 32": 1.15,
}
LARGE = tuple(CASES)[2:]  # whose memory is measured; the last one is timed a fifth as often


def training_step(model: nn.Module, shape: tuple[int, ...]) -> Callable[[], None]:
    """Return a function that takes one step on fixed random data."""
    inputs, has_thresholds = torch.rand(shape), bool(secateur.learned_thresholds(model))
    with torch.no_grad():
        labels = torch.arange(shape[0]) % model(inputs).shape[1]
    groups = secateur.parameter_groups(model, lr=1e-3, lambda_wd=1e-4)
    is_photograph = shape[1:] == (3, 227, 227)
    inputs = inputs.to(memory_format=torch.channels_last) if is_photograph else inputs
    optimizer = (
        torch.optim.SGD(groups, momentum=0.9, fused=True) if is_photograph else torch.optim.Adam(groups, fused=True)
    )

    def step() -> None:
        loss = functional.cross_entropy(model(inputs), labels)
        if has_thresholds:
            loss = loss + secateur.penalty(model)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def peak_bytes(case: str, kind: str) -> int:
    """Return the peak resident memory of a fresh process that takes five steps."""
    out = subprocess.run([sys.executable, __file__, "--peak", case, kind], capture_output=True, text=True, check=True)
    return int(out.stdout)


def print_peak(case: str, kind: str) -> None:
    torch.set_num_threads(1)
    make, shape = CASES[case]
    model = make()
    step = training_step(secateur.build_sibling(model) if kind == "sibling" else model, shape)
    keep_freed_memory()  # when training begins, as our loop does: what building has freed goes back to the system
    for _ in range(5):
        step()
    # Not getrusage: its maximum is inherited from the process that started this one.
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    print(int(status["VmHWM"].split()[0]) * 1024)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--peak", nargs=2, metavar=("CASE", "KIND"))
    parser.add_argument("--repeats", type=int, default=60)
    parser.add_argument(
        "--only", help="run the cases whose name has this in it, and leave the others as they were saved"
    )
    parser.add_argument("--save", type=Path, help="write the table as JSON")
    options = parser.parse_args()
    if options.peak:
        print_peak(*options.peak)
        return
    torch.set_num_threads(1)
    keep_freed_memory()
    torch.set_flush_denormal(True)
    rows = {}
    if options.only and options.save and options.save.exists():
        rows = json.loads(options.save.read_text())["rows"]
    print(f"{'':28}{'plain ms':>10}{'sibling ms':>12}{'ratio':>8}{'95 % interval':>18}{'limit':>8}")
    chosen = {case: entry for case, entry in CASES.items() if (options.only or "") in case}
    for case, (make, shape) in chosen.items():
        rivals = {
            "plain": training_step(make(), shape),
            "sibling": training_step(secateur.build_sibling(make()), shape),
        }
        is_slow = case == LARGE[-1]
        found = compare_latency(rivals, repeats=options.repeats // (5 if is_slow else 1), warmup=3 if is_slow else 5)
        plain, sibling = found["plain"].latency.median_ms, found["sibling"].latency.median_ms
        ratio, (low, high) = found["sibling"].time_ratio, found["sibling"].interval
        rows[case] = {"plain_ms": plain, "sibling_ms": sibling, "ratio": ratio, "interval": [low, high]}
        print(f"{case:28}{plain:10.2f}{sibling:12.2f}{ratio:8.3f}{f'{low:.3f} … {high:.3f}':>18}{LIMITS[case]:8.2f}")
    for case in (case for case in LARGE if case in chosen):
        plain, sibling = peak_bytes(case, "plain"), peak_bytes(case, "sibling")
        make, _ = CASES[case]
        weights = 4 * count(make()).prunable.weights
        rows[case]["extra_peak_over_weight_bytes"] = (sibling - plain) / weights
        print(
            f"peak memory, {case}: {plain / 1e6:.0f} MB plain, {sibling / 1e6:.0f} MB sibling: "
            f"+{(sibling - plain) / weights:.2f} × the pruned weights' bytes (limit 1.10)"
        )
    if options.save:
        facts = {
            "torch": torch.__version__,
            "threads": 1,
            "cpu": torch.backends.cpu.get_cpu_capability(),
            "machine": platform.machine(),
        }
        options.save.parent.mkdir(parents=True, exist_ok=True)
        options.save.write_text(json.dumps({"rows": rows, **facts}, indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
