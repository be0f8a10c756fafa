"""What the paper's AlexNet recipe does and costs, from what `benchmarks/` last measured."""

from __future__ import annotations

from pathlib import Path

from secateur.report.tables.benchmarks import read_benchmark
from secateur.report.tables.grid import Grid


def thresholds_table(results: Path) -> Grid:
    """Compare how far thresholds moved with the closed form, as `benchmarks/alexnet_thresholds.py` measured it."""
    found = read_benchmark(results, "alexnet_thresholds")
    rows = tuple(
        (
            name.removesuffix(".weight"),
            f"{row['thresholds']:,}",
            f"{row['weights']:,}",
            f"{row['measured']:.3g}",
            f"{row['predicted']:.3g}",
            f"{row['whole_run']:.2g}",
        )
        for name, row in found["rows"].items()
    )
    steps = found.get("steps", 0)
    header = ("layer", "thresholds", "weights", f"t after {steps} steps", "closed form", "after the whole run, at most")
    note = (
        f"Preset paper on Imagenette, {steps} steps of {found.get('batch_size', 0)} images, means over the thresholds "
        f"of a layer{' (in bf16)' if found.get('precision') == 'bf16' else ''}. The last column: on ImageNet with "
        "1,000 classes, if the speed stayed as it begins."
    )
    return Grid("Thresholds of AlexNet under the paper's recipe", header, rows, note)


def alexnet_cost_table(results: Path) -> Grid:
    """Show what the paper's AlexNet run takes, as `benchmarks/alexnet_cost.py` reckons it."""
    found = read_benchmark(results, "alexnet_cost")
    title, header = "Cost of the paper's AlexNet run", ("", "step ms", "of it exchange", "images a second", "hours")
    rows = tuple(
        (
            name,
            f"{row['step_ms']:,.1f}",
            f"{row['exchange_ms']:.1f}",
            f"{row['images_per_second']:,.0f}",
            f"{row['hours']:,.1f}",
        )
        for name, row in found["rows"].items()
    )
    if not rows:
        return Grid(title, header, ())
    speeds = [f"{speed / 1e9:g} GB/s ({gpus})" for gpus, speed in found["bandwidth_bytes_per_second"].items()]
    gflop, peak = found["training_flops_per_image"] / 1e9, found["gpu_flops_per_second"] / 1e12
    note = (
        f"{found['steps']:,} steps of {found['batch_size']} images ({found['epochs']} epochs), for the pruned network "
        "and again for the dense one. Here: measured, one thread, float32. On paper: "
        f"{gflop:.2f} GFLOP an image forward and backward, at {found['utilisation']:.0%} of {peak:g} TFLOP/s a GPU, "
        f"times the {found['sibling_over_plain']:.2f} that the sibling takes here; gradients of "
        f"{found['all_reduced_bytes'] / 1e6:.0f} MB are all-reduced in a ring at {' and '.join(speeds)} after the "
        "backward pass. Pictures have to be read at that pace."
    )
    return Grid(title, header, rows, note)
