"""How much faster is a product of signs on packed bits than one of floats of the same shape?

One thread, 1024 × 1024, batch 64. Inputs are packed anew at every call in "with packing", as between two layers.

    python benchmarks/xnor.py [--save results.json]
"""  # noqa: D400 - it asks a question

import argparse
import json
import platform
from pathlib import Path

import torch
from torch.utils.benchmark import Timer

from secateur import native
from secateur.run.xnor import PackedSigns, pack

SIZE, BATCH = 1024, 64


def main() -> None:
    """Print the table, and save it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--save", type=Path)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    weight, x = torch.randn(SIZE, SIZE).sign(), torch.randn(BATCH, SIZE).sign()
    signs, packed = PackedSigns(weight), pack(x)
    assert torch.equal(signs(packed), x @ weight.T)
    names = {"x": x, "weight": weight, "signs": signs, "packed": packed, "pack": pack}
    statements = {"dense float": "x @ weight.T", "packed": "signs(packed)", "with packing": "signs(pack(x))"}
    times_us = {
        name: Timer(statement, globals=names, num_threads=1).blocked_autorange(min_run_time=2).median * 1e6
        for name, statement in statements.items()
    }
    for name, time_us in times_us.items():
        print(f"{name:14} {time_us:9.1f} µs {times_us['dense float'] / time_us:7.1f}×")
    result = {
        "batch": BATCH,
        "size": SIZE,
        "times_us": times_us,
        "speedup": times_us["dense float"] / times_us["packed"],
        "native": native.is_available(),
        "torch": torch.__version__,
        "machine": platform.processor() or platform.machine(),
        "threads": 1,
    }
    if arguments.save is not None:
        arguments.save.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
