"""Tables of speed, as `benchmarks/` last measured it: sparse networks and layers.

What a note says about the measurement (turns, clock, targets) comes from the rows of its table.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from secateur.report.tables.benchmarks import read_benchmark
from secateur.report.tables.grid import Grid

Rows = dict[str, dict[str, Any]]  # by name, as `benchmarks/sparse_rivals.py` writes them

_SWEPT, _THREADED = "never slower: ", ": 2 threads over 1"
_CONVOLUTION = re.compile(r"(?P<shape>(?:VGG|ResNet) .+), (?P<density>\d+%)")
_CASE = re.compile(r"(?P<network>.+), (?P<density>\d+)%, batch (?P<batch>\d+)")


# Dense kernels with vectors twice as long give other ratios, so machines with AVX-512 have files of their own.
LEVELS = {"": "Speed", "-avx512": "Speed with AVX-512"}
_WIDTHS = {"": "speed-up, AVX2", "-avx512": "speed-up, AVX-512"}


def speed_tables(results: Path, level: str = "") -> tuple[Grid, ...]:
    """Show how much faster sparse networks and layers are, and which rows miss their target.

    `level`, one of `LEVELS`, is the end of the names of the benchmarks' files.
    """
    title = LEVELS[level]
    networks, layers = (read_benchmark(results, f"sparse_{name}{level}") for name in ("networks", "layers"))
    threaded = {name: row for name, row in layers["rows"].items() if name.endswith(_THREADED)}
    convolutions = {
        name: row for name, row in layers["rows"].items() if name not in threaded and _CONVOLUTION.fullmatch(name)
    }
    swept, whole = _swept(networks["rows"])
    single = {name: row for name, row in layers["rows"].items() if name not in threaded | convolutions}
    return (
        _speed_grid(f"{title}: whole networks", whole, networks, _AMDAHL),
        _speed_grid(f"{title}: linear layers", single, layers, "The limit is that of the bytes read, at batch 1."),
        _convolution_grid(f"{title}: convolutions", convolutions, layers),
        _thread_grid(f"{title}: two threads", threaded, layers),
        _sweep_grid(f"{title}: is any network ever slower?", swept, networks),
    )


def pruned_speeds(results: Path) -> Grid:
    """Show how fast networks run that were pruned on photographs, from their files."""
    measured = read_benchmark(results, "pruned_networks")
    return _speed_grid("Speed: networks pruned on photographs", measured["rows"], measured, _AMDAHL)


def deployed_speeds(results: Path) -> Grid:
    """Show networks that people run on CPUs, next to the fastest dense engine of each row, and what is not measured."""
    measured = read_benchmark(results, "deployed_networks")
    rows: Rows = measured["rows"]
    engines = list(dict.fromkeys(name for row in rows.values() for name in row["ms"] if name != "sparse"))
    header = (
        "network",
        *(f"{name} ms" for name in engines),
        "sparse ms",
        "speed-up",
        "95 % interval",
        "target",
        "memory",
    )
    names = dict.fromkeys([*measured.get("names", ()), *rows])
    lines = tuple(_deployed_line(name, rows.get(name), [*engines, "sparse"]) for name in names)
    busy = " CPU time was taken on a busy machine." if any(row["clock"] == "cpu" for row in rows.values()) else ""
    missing = "".join(f" Not measured: {engine} ({why})." for engine, why in measured.get("missing", {}).items())
    note = (
        f"{_conditions(rows, measured, over='the fastest dense engine of the row')} {_reached(rows)}. Memory: bytes of "
        "all weights as they are read ÷ those of the dense network; in brackets with the plain form that is kept to "
        "copy, save and export the compiled network. Weights are random; EfficientNet-Lite0 and MobileNet-V2 have "
        "zeros in 1×1 convolutions and the last layer, the others in all convolutions and linear layers. "
        f"A dash is what is not measured.{busy}{missing}"
    )
    return Grid("Speed: networks that people run on CPUs", header, lines, note)


def _deployed_line(name: str, row: dict[str, Any] | None, engines: list[str]) -> tuple[str, ...]:
    if row is None:
        return (name, *["–"] * len(engines), "not measured", "–", "–", "–")
    return (
        name,
        *(f"{row['ms'][engine]:.3g}" if engine in row["ms"] else "–" for engine in engines),
        _result(row),
        _interval(row),
        _target(row),
        f"{row['read_memory']:.2f} ({row['held_memory']:.2f})",
    )


def network_speeds(results: Path) -> Grid:
    """Show in a small table how much faster whole networks are, with a column for each vector width measured."""
    whole, swept = {}, {}
    for level in LEVELS:
        swept[level], whole[level] = _swept(read_benchmark(results, f"sparse_networks{level}")["rows"])
    shown = {level: title for level, title in _WIDTHS.items() if whole[level]}
    header = ("network", "batch", *shown.values())
    rows = []
    for name in dict.fromkeys(name for level in shown for name in whole[level]):
        network, _, batch = name.partition(", batch ")
        found = (whole[level].get(name) for level in shown)
        rows.append((network, batch, *(_times(row["speedup"]) if row else "–" for row in found)))
    note = (
        "Speed-up of `compile_sparse` over dense eager torch: whole networks, one CPU thread, medians. "
        f"{_sweep_sentence(swept)}[All networks and layers](docs/results.md), with the speed-ups we aim at."
    )
    return Grid("Speed", header, tuple(rows), note)


def _sweep_sentence(swept: dict[str, Rows]) -> str:
    rows = next((rows for rows in swept.values() if rows), None)
    if rows is None:
        return ""
    return f"In a sweep of small networks over densities and batch sizes, {_sweep_result(rows)}. "


def _swept(rows: Rows) -> tuple[Rows, Rows]:
    """Return the rows of the sweep, without its name, and the others."""
    swept = {name.removeprefix(_SWEPT): row for name, row in rows.items() if name.startswith(_SWEPT)}
    return swept, {name: row for name, row in rows.items() if not name.startswith(_SWEPT)}


_AMDAHL = (
    "The limit is Amdahl's, with layers that have zeros at no time at all; operations fused with such a layer can "
    "exceed it."
)


def _speed_grid(title: str, rows: Rows, measured: dict[str, Any], limit: str) -> Grid:
    header = (
        "one thread",
        "dense ms",
        "sparse ms",
        "speed-up",
        "95 % interval",
        "target",
        "over ONNX Runtime",
        "limit",
        "planned in",
    )
    lines = tuple(
        (
            f"{name}, {row['kept']:,} weights" if "kept" in row else name,
            *(f"{row['ms'][engine]:.3g}" for engine in ("eager", "sparse")),
            _result(row),
            _interval(row),
            _target(row),
            _times(_over_onnxruntime(row)),
            _times(row.get("limit")),
            f"{row['plan_s']:.1f} s" if "plan_s" in row else "–",
        )
        for name, row in rows.items()
    )
    return Grid(title, header, lines, f"{_conditions(rows, measured)} {_targets_reached(rows)} {limit}")


def _convolution_grid(title: str, rows: Rows, measured: dict[str, Any]) -> Grid:
    """Give each shape a row, and each density a column."""
    cells: dict[str, Rows] = {}
    for name, row in rows.items():
        parts = _CONVOLUTION.fullmatch(name)
        assert parts is not None
        cells.setdefault(parts["shape"], {})[parts["density"]] = row
    densities = sorted({density for by_density in cells.values() for density in by_density}, key=_percent)
    target = {
        density: next(_target(each[density]) for each in cells.values() if density in each) for density in densities
    }
    header = ("convolution, batch 1, one thread", *(f"{_percent(density)} % left" for density in densities))
    lines = [("target", *target.values())] if cells else []
    for shape, by_density in cells.items():
        lines.append((shape, *(_result(by_density[d]) if d in by_density else "–" for d in densities)))
    note = f"{_conditions(rows, measured)} {_targets_reached(rows)}"
    return Grid(title, header, tuple(lines), note)


def _thread_grid(title: str, rows: Rows, measured: dict[str, Any]) -> Grid:
    lines = tuple(
        (name.removesuffix(_THREADED), _result(row), _interval(row), _target(row), _times(row.get("limit")))
        for name, row in rows.items()
    )
    header = ("sparse, two threads over one", "speed-up", "95 % interval", "target", "limit")
    note = f"{_conditions(rows, measured, over='one thread')} {_targets_reached(rows)}"
    return Grid(title, header, lines, note)


def _sweep_grid(title: str, rows: Rows, measured: dict[str, Any]) -> Grid:
    """Give each network a row: its worst density and batch size, and those that miss."""
    by_network: dict[str, Rows] = {}
    densities, batches = set(), set()
    for name, row in rows.items():
        parts = _CASE.fullmatch(name)
        assert parts is not None
        by_network.setdefault(parts["network"], {})[f"{parts['density']}%, batch {parts['batch']}"] = row
        densities.add(int(parts["density"]))
        batches.add(int(parts["batch"]))
    lines = []
    for network, cases in by_network.items():
        worst = min(cases, key=lambda case: float(cases[case]["speedup"]))
        missed = [case for case, row in cases.items() if not row["reached"]]
        lines.append(
            (
                network,
                str(len(cases)),
                f"{cases[worst]['speedup']:.2f}× ({worst})",
                _interval(cases[worst]),
                str(sum(row["keeps_layers"] for row in cases.values())),
                "; ".join(missed) or "none",
            )
        )
    header = ("network", "densities and batch sizes", "slowest", "95 % interval", "keep their layers", "missed")
    possible = len(by_network) * len(densities) * len(batches)
    note = (
        f"Densities of {_listed(densities)} % and batch sizes of {_listed(batches)}: {len(rows)} of the {possible} "
        f"combinations with a network were measured, and {_sweep_result(rows)}. {_conditions(rows, measured)}"
    )
    return Grid(title, header, tuple(lines), note)


def _sweep_result(rows: Rows) -> str:
    """Say how many cases of the sweep reach their target, and how many do by the median alone."""
    least = " or ".join(f"{target:g}×" for target in sorted({row["at_least"] for row in rows.values()}))
    by_median = sum(row["speedup"] >= row["at_least"] for row in rows.values())
    return (
        f"{_reached(rows, f'reach {least}')} by the upper end of the 95 % interval of the median, "
        f"{by_median} by the median itself"
    )


def _reached(rows: Rows, what: str = "reach their target") -> str:
    return f"{sum(row['reached'] for row in rows.values())} of {len(rows)} {what}"


def _targets_reached(rows: Rows) -> str:
    """Say how many rows reach their target, and that a high one includes ONNX Runtime where that was measured."""
    is_rival = any(row["at_least"] >= 2 and _over_onnxruntime(row) is not None for row in rows.values())
    rival = "; a target of 2× or more also requires being faster than ONNX Runtime" if is_rival else ""
    return f"{_reached(rows)}, the speed-up we aim at{rival}."


def _result(row: dict[str, Any]) -> str:
    """Write a speed-up, in bold if it misses its target."""
    text = _times(row["speedup"])
    if row["reached"]:
        return text
    over = _over_onnxruntime(row)
    is_fast = row["speedup"] >= row["at_least"]
    why = ": ONNX Runtime is faster" if is_fast and over is not None and over <= 1 else ""
    return f"**{text}, missed{why}**"


def _target(row: dict[str, Any]) -> str:
    """Write everything that a row must reach."""
    text = _times(row["at_least"])
    if "or_share_of_limit" in row:
        text += f" or {100 * row['or_share_of_limit']:g} % of the limit"
    if "plan_s_at_most" in row:
        text += f", planned in {row['plan_s_at_most']:g} s"
    return text


def _over_onnxruntime(row: dict[str, Any]) -> float | None:
    ratio: float | None = row.get("over", {}).get("onnxruntime", {}).get("ratio")
    return ratio


def _interval(row: dict[str, Any]) -> str:
    low, high = row["interval"]
    return f"{low:.2f} … {high:.2f}"


def _times(ratio: float | None) -> str:
    if ratio is None:
        return "–"
    return f"{ratio:.{1 if ratio >= 10 else 2}f}×"


def _percent(share: str) -> int:
    return int(share.removesuffix("%"))


def _listed(values: Iterable[int], last: str = "and") -> str:
    """Write whole numbers as a list in words, from the smallest to the largest."""
    *others, largest = [str(value) for value in sorted(set(values))] or ["none"]
    return f"{', '.join(others)} {last} {largest}" if others else largest


def _conditions(rows: Rows, measured: dict[str, Any], over: str = "dense eager torch") -> str:
    """Say how rows were measured, from the rows themselves and the versions in their file."""
    clocks = {"cpu": "CPU time of the calling thread", "wall": "wall clock"}
    passes = max((row.get("passes", 1) for row in rows.values()), default=1)
    several = f" in up to {passes} passes" if passes > 1 else ""
    told = [f"medians of {_listed((row['repeats'] for row in rows.values()), 'or')} turns{several}"]
    told += [clocks[clock] for clock in sorted({row["clock"] for row in rows.values()})]
    told += [f"torch {measured['torch']}"] if "torch" in measured else []
    rivals = {"onnxruntime": "ONNX Runtime", "openvino": "OpenVINO"}
    told += [
        f"{rival} {measured['engines'][name]}"
        for name, rival in rivals.items()
        if any(name in row.get("over", {}) for row in rows.values())
    ]
    told += [str(measured[fact]) for fact in ("cpu", "processor") if fact in measured]
    return f"Ratios over {over}, in turns in one process: {', '.join(told)}."
