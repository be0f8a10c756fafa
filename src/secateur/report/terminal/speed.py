"""What is printed about speed: the time of every layer, dense and sparse, and the limits of the machine."""

from __future__ import annotations

from collections.abc import Iterator

from rich import box
from rich.console import Console
from rich.table import Table

from secateur.report.ratios import times
from secateur.run.bench import BatchSpeed, Bench, GroupSpeed, LayerSpeed, Machine

_ENGINES = {"compile": "torch.compile", "onnxruntime": "ONNX Runtime", "openvino": "OpenVINO"}
_KINDS = ("too dense", "too small", "not faster")  # reasons that every layer has its own numbers for
_NAMED = 3  # of the layers that stay dense for one reason, before the others are counted


def print_subject(console: Console, source: str, network: str, density: float | None, repeats: int) -> None:
    """Print what is going to be timed, and a warning if its weights are random."""
    name = source if source == network else f"{source}, {network}"
    _say(console, f"{name}: medians of {repeats} turns, in milliseconds")
    if density is not None:
        _say(console, f"Random weights, {100 * density:.3g} % of them kept in random places: nothing here was trained.")


def print_batch(console: Console, speed: BatchSpeed, dense_bytes: int) -> None:
    """Print one batch size: every layer, the whole network, other engines, the ceiling and the memory."""
    fastest = min(speed.engines_ms, key=lambda name: speed.engines_ms[name], default=None)
    if fastest is not None and speed.engines_ms[fastest] < speed.sparse_ms:
        name, ms = _ENGINES.get(fastest, fastest), speed.engines_ms[fastest]
        _say(console, f"Dense {name} is faster here: {_ms(ms)} ms, sparse {_ms(speed.sparse_ms)} ms")
    console.print(layer_table(speed))
    for line in _rivals(speed):
        _say(console, line)
    if any(group.kernel is not None for group in speed.groups):
        _say(console, _ceiling(speed))
        saved = f"{times(dense_bytes / speed.sparse_bytes)} less" if speed.sparse_bytes else "nothing"
        _say(
            console,
            f"Weights: {dense_bytes:,} bytes dense, {speed.sparse_bytes:,} sparse ({saved}); "
            f"{speed.held_bytes:,} with the copy that is saved",
        )
    else:
        _say(console, "No layer gains by running sparse: the network keeps its own layers")
    for line in _stays_dense(speed):
        _say(console, line)
    for name, reason in speed.missing.items():
        _say(console, f"Without {_ENGINES.get(name, name)}: {reason}")


def print_limits(console: Console, found: Bench) -> None:
    """Print what the columns mean, and what the limits come from."""
    groups = [group for speed in found.speeds for group in speed.groups]
    notes = ["", "whole network: the speed-up is the median of ratios within a turn, not the ratio of medians"]
    notes.append(_machine(found.machine))
    if any(group.limit is not None for group in groups):
        notes.append("limit: share of it that a sparse call reaches; b: by bytes read, f: by FLOPs")
    if any(len(group.layers) > 1 for group in groups):
        notes.append("└ in one call: the layers above are joined; each was also timed as a call of its own")
    if any(group.kernel is None and group.sparse_ms is not None for group in groups):
        notes.append("(time): the best sparse way of a layer that stays dense, as it does not win by 1.1×")
    for note in notes:
        _say(console, note)


def layer_table(speed: BatchSpeed) -> Table:
    """Return the time of every layer, dense and sparse."""
    title = f"batch {speed.batch}, planned in {speed.plan_s:.1f} s"
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("layer", overflow="fold")
    for heading in ("kept", "dense", "sparse", "faster"):
        table.add_column(heading, justify="right", overflow="fold")
    table.add_column("kernel", overflow="fold")
    table.add_column("limit", justify="right", overflow="fold")
    for group in speed.groups:
        for row in _rows(group):
            table.add_row(*row)
    dense_ms, sparse_ms = speed.other_ms
    table.add_row("everything else", "", _ms(dense_ms), _ms(sparse_ms))
    faster = times(speed.speedup)
    table.add_row("whole network", "", _ms(speed.dense_ms), _ms(speed.sparse_ms), faster, style="bold")
    return table


def _stays_dense(speed: BatchSpeed) -> Iterator[str]:
    """Yield a line for each reason why layers stay dense."""
    by_reason: dict[str, list[str]] = {}
    for name, reason in speed.stays_dense.items():
        kind, _, rest = reason.partition(":")
        by_reason.setdefault(kind if kind in _KINDS else reason, []).append(
            f"{name}{f' ({rest.strip()})' * (kind in _KINDS)}"
        )
    for reason, names in by_reason.items():
        others = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
        yield f"Dense, {reason}: {', '.join(names[:_NAMED])}{others}"


def _rows(group: GroupSpeed) -> Iterator[tuple[str, ...]]:
    """Yield a row for each layer, and one for the call that runs several layers at once."""
    alone = len(group.layers) == 1
    result = ("dense", "") if group.kernel is None else (group.kernel, _achieved(group))
    for layer in group.layers:
        kept = f"{layer.kept / layer.weights:.1%}" if layer.weights else "–"
        measured = _dense_ms(layer) if group.kernel is None else _both_ms(layer.dense_ms, layer.sparse_ms)
        yield layer.name, kept, *measured, *(result if alone else ("", ""))
    if not alone:
        yield "└ in one call", "", *_both_ms(group.dense_ms, group.sparse_ms), *result


def _dense_ms(layer: LayerSpeed) -> tuple[str, str, str]:
    return _ms(layer.dense_ms), "" if layer.sparse_ms is None else f"({_ms(layer.sparse_ms)})", ""


def _both_ms(dense_ms: float, sparse_ms: float | None) -> tuple[str, str, str]:
    if not sparse_ms:
        return _ms(dense_ms), "–", "–"
    return _ms(dense_ms), _ms(sparse_ms), times(dense_ms / sparse_ms)


def _achieved(group: GroupSpeed) -> str:
    share = group.achieved
    return "–" if share is None or group.limit is None else f"{share:.0%} {group.limit.by[0]}"


def _rivals(speed: BatchSpeed) -> Iterator[str]:
    low, high = speed.interval
    yield (
        f"Sparse {_ms(speed.sparse_ms)} ms; torch eager {_ms(speed.dense_ms)} ms: "
        f"{times(speed.speedup)} (95 % interval {times(low)} to {times(high)})"
    )
    for name, ms in speed.engines_ms.items():
        yield f"{_ENGINES.get(name, name)}, dense, {_ms(ms)} ms: {times(ms / speed.sparse_ms)}"


def _ceiling(speed: BatchSpeed) -> str:
    def words(ceiling: float | None) -> str:
        return "none, nothing else takes time" if ceiling is None else times(ceiling)

    return (
        f"Amdahl's ceiling, if the layers that run sparse took no time: {words(speed.ceiling)}; "
        f"if what was fused with them, activations and poolings, took none either: {words(speed.fused_ceiling)}"
    )


def _machine(machine: Machine) -> str:
    (small, fast), (large, slow) = machine.read_gbs[0], machine.read_gbs[-1]
    return (
        f"Limits are what dense torch reaches here on {machine.threads} thread{'s' * (machine.threads > 1)}: "
        f"{machine.gflops:.0f} GFLOP/s, and reading {fast:.0f} GB/s of {small >> 20} MB or {slow:.0f} GB/s of "
        f"{large >> 20} MB"
    )


def _ms(value: float) -> str:
    """Write a time in at most six characters, with three digits or more."""
    digits = next((digits for bound, digits in ((1, 4), (10, 3), (100, 2)) if value < bound), 1)
    return f"{value:.{digits}f}"


def _say(console: Console, line: str) -> None:
    """Print a sentence, in lines of the terminal's width."""
    console.print(line, highlight=False, markup=False)
