"""Tables of codecs, from what `benchmarks/` last measured."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from secateur.report.tables.benchmarks import read_benchmark
from secateur.report.tables.grid import Grid


def coder_table(results: Path) -> Grid:
    """Compare the codec `context` with NNCodec, as `benchmarks/context_nncodec.py` last measured it."""
    measured = read_benchmark(results, "context_nncodec")
    totals: dict[str, list[int]] = {}
    for entry in measured.get("sums", ()):
        seeds, theirs, ours = totals.get(name := f"{_run(entry['network'])[0]}, {entry['method']}", (0, 0, 0))
        totals[name] = [seeds + 1, theirs + entry["nncodec"], ours + entry["context"]]
    rows = tuple(
        (name, str(seeds), f"{theirs / seeds:,.0f}", f"{ours / seeds:,.0f}", f"{100 * (1 - ours / theirs):.1f} %")
        for name, (seeds, theirs, ours) in totals.items()
    )
    ratios = _range(entry["speed_ratio"] for entry in measured.get("speed", ()))
    speeds = " … ".join(f"{value:.2f}" for value in ratios)
    note = (
        "Bytes of the weights of pruned networks, the same levels for both; NNCodec 2.1.3 (ISO NNC) at the best of "
        f"several settings for each tensor, means over seeds. {_larger(measured)} At 3 % density `context` decodes at "
        f"{speeds} of its speed."
    )
    header = ("weights, levels", "seeds", "NNCodec", "context", "smaller by")
    return Grid("The codec context compared with NNCodec", header, rows, note)


def large_file_table(results: Path) -> Grid:
    """Show how long AlexNet's weights take to encode and decode, as `benchmarks/rans_alexnet.py` last measured it."""
    measured = read_benchmark(results, "rans_alexnet")
    title, header = "A large file: AlexNet's weights", ("form", "bytes", "smaller by", "encode, s", "decode, s")
    if not measured.get("rows"):
        return Grid(title, header, ())
    dense, limits, memory = measured["fp32_bytes"], measured["limits"], measured["memory"]
    rows = tuple(
        (name, f"{row['bytes']:,}", f"{dense / row['bytes']:.1f}×", f"{row['encode_s']:.2f}", f"{row['decode_s']:.2f}")
        for name, row in measured["rows"].items()
    )
    peak = max(memory[way]["peak_over_fp32"] for way in ("encode", "decode"))
    note = (
        f"61 million weights with the zeros of the paper's table 2, 32 levels, {measured['threads']} threads. The "
        f"targets are {limits['encode']:g} s to encode and {limits['decode']:g} s to decode; at its peak a process "
        f"uses {peak:.2f} times the memory of the dense weights (target: {limits['peak']:g})."
    )
    return Grid(title, header, rows, note)


def _run(name: str) -> tuple[str, str]:
    """Shorten the name of a run to its network with preset, and its seed."""
    network, _, settings = name.partition("-mnist")
    preset = "paper" if "alpha" not in settings else "best-augmented" if "augment" in settings else "best"
    return f"{network} {preset}", f"seed {name.rpartition('=')[2]}"


def _larger(measured: dict[str, Any]) -> str:
    lost = measured.get("larger_above_2_kB", [])
    if not lost:
        return "Smaller on every tensor above 2 kB."
    names = "; ".join(f"{', '.join(_run(each['network']))}, {each['method']}, {each['tensor']}" for each in lost)
    return f"Smaller on every tensor above 2 kB except {names}."


def _range(values: Iterable[float]) -> tuple[float, ...]:
    found = sorted(values)
    return (found[0], found[-1]) if found else ()
