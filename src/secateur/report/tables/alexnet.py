"""AlexNet trained here, and what the paper's recipe for it does and costs by what `benchmarks/` last measured."""

from __future__ import annotations

from pathlib import Path

from secateur import literature
from secateur.experiments.studies.summaries import summarize
from secateur.report.tables.benchmarks import read_benchmark
from secateur.report.tables.grid import Grid, spread
from secateur.report.tables.paper import TABLE1_HEADER, table1_row

_NETWORK, _PRESET, _DATA = "alexnet", "quick", "imagenette"
_LARGEST = {"fc6", "fc7"}  # which the paper found to be pruned most


def imagenette_tables(results: Path) -> list[Grid]:
    """Show AlexNet from random weights on Imagenette: what is left of it, and the share pruned of every layer."""
    row = summarize(results, _PRESET, _NETWORK, data=_DATA)
    layers_header = ("layer", "weights", "the paper, ILSVRC-2012, %", f"preset {_PRESET}, Imagenette, %")
    title, layers_title = "AlexNet on Imagenette", "AlexNet on Imagenette: share of the weights pruned, by layer"
    if row is None:
        return [Grid(title, TABLE1_HEADER, ()), Grid(layers_title, layers_header, ())]
    note = (
        f"Pictures of 227×227 pixels, 10 classes, {row.training_images:,} pictures to learn from; errors are top-1, on "
        "test pictures. Both networks start from random weights and are trained for the same number of epochs."
    )
    paper = literature.paper_layers(_NETWORK, literature.paper_data(_NETWORK) or "")
    printed = {} if paper is None else paper.pruned
    layers = tuple(
        (name.removesuffix(".weight"), f"{weights:,}", f"{printed[name]:.1f}" if printed else "–", spread(share, 1))
        for (name, weights), share in zip(row.layer_weights.items(), row.layers.values(), strict=True)
    )
    by_share = sorted(row.layers, key=lambda name: row.layers[name][0])
    most = [name.removesuffix(".weight") for name in by_share[-len(_LARGEST) :]]
    if set(most) == _LARGEST:
        verdict = "fc6 and fc7 are pruned most, as the paper found."
    else:
        verdict = f"{' and '.join(most)} are pruned most; in the paper fc6 and fc7."
    return [Grid(title, TABLE1_HEADER, (table1_row(row),), note), Grid(layers_title, layers_header, layers, verdict)]


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
        "and again for the dense one. Here: measured with 32 images, one thread, float32. On paper: "
        f"{gflop:.2f} GFLOP an image forward and backward, at {found['utilisation']:.0%} of {peak:g} TFLOP/s a GPU, "
        f"{found['memory_passes']} passes over the weights and their like for θ and SGD at "
        f"{found['memory_bytes_per_second'] / 1e9:,.0f} GB/s; gradients of "
        f"{found['all_reduced_bytes'] / 1e6:.0f} MB are all-reduced in a ring at {' and '.join(speeds)} after the "
        "backward pass. Pictures have to be read at that pace."
    )
    return Grid(title, header, rows, note)
