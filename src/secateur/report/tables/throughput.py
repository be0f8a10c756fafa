"""One table of speeds besides those of networks: photographs, features, products of signs, runs at a time."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from secateur.report.tables.benchmarks import read_benchmark
from secateur.report.tables.grid import Grid

_CROPS = {
    "alexnet": "photographs read and varied as AlexNet's",
    "resized": "photographs read, random resized crops",
    "centre": "photographs read, centre crops",
}
_EXTRACTED = {
    "decoded ÷ loop": ("features of decoded pictures, AlexNet", "a plain loop"),
    "sparse ÷ decoded": ("features of decoded pictures, compiled", "the dense network"),
    "from files ÷ loop": ("features of pictures in files, AlexNet", "a plain loop over decoded ones"),
}


def throughput_table(results: Path) -> Grid:
    """Show what was measured next to the simple way of doing the same, and what is wanted at least."""
    rows = (*_reading(results), *_extraction(results), *_signs(results), *_jobs(results))
    header = ("measured", "compared with", "speed", "ratio", "wanted")
    note = "Two cores, except for signs, which are one thread. Photographs are JPEG files of 500×375 pixels."
    return Grid("Throughput", header, rows, note if rows else "")


def _reading(results: Path) -> Iterator[tuple[str, ...]]:
    measured = read_benchmark(results, "image_reading")
    for crop, what in _CROPS.items():
        if crop in measured["rows"]:
            row = measured["rows"][crop]
            speed, wanted = f"{row['images_per_s']:,.0f} images/s", f"{measured['at_least']:.2f}×"
            yield what, "Pillow's decode and resize in one process", speed, f"{row['ratio']:.2f}×", wanted


def _extraction(results: Path) -> Iterator[tuple[str, ...]]:
    measured = read_benchmark(results, "feature_extraction")
    for name, ratio in measured.get("ratios", {}).items():
        what, rival = _EXTRACTED[name]
        speed = measured["rows"][name.partition(" ÷ ")[0]]["images_per_s"]
        wanted = f"{measured['at_least'][name]:.2f}×" if name in measured["at_least"] else "–"
        yield what, rival, f"{speed:,.0f} images/s", f"{ratio:.2f}×", wanted


def _signs(results: Path) -> Iterator[tuple[str, ...]]:
    measured = read_benchmark(results, "xnor")
    if "times_us" in measured:
        what = f"product of packed signs, {measured['size']} × {measured['size']}, batch {measured['batch']}"
        times = measured["times_us"]
        for name, ending in (("packed", ""), ("with packing", ", inputs packed anew")):
            ratio = times["dense float"] / times[name]
            yield what + ending, "torch's product of floats", f"{times[name]:.0f} µs", f"{ratio:.1f}×", "10.0×"


def _jobs(results: Path) -> Iterator[tuple[str, ...]]:
    for name, row in read_benchmark(results, "compare_jobs")["rows"].items():
        speed, wanted = f"{row['two_s']:.0f} s", f"{row['at_least']:.2f}×"
        yield f"a grid of `secateur compare`: {name}", "one run at a time", speed, f"{row['speedup']:.2f}×", wanted
