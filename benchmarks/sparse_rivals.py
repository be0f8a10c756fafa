"""A sparse network compared with engines that run it dense: measured in turns, printed as a row, saved as JSON."""

import argparse
import json
import math
import platform
import re
import statistics
import time
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

import torch
from torch import Tensor, nn

import secateur
from secateur.atomic import write_atomically
from secateur.experiments.versions import versions
from secateur.measure import compare_latency
from secateur.measure.engines import Engine, Run, prepare, prepare_all, require_same_answer
from secateur.measure.latency import calls_per_turn, median_interval, turn

CLOCKS = {"wall": time.perf_counter, "cpu": time.thread_time}
TOLERANCE = 1e-4  # of the largest answer

Row = dict[str, object]
Times = dict[str, list[float]]  # of each rival, turn by turn


def parser(description: str | None, repeats: int, engines: Sequence[str] = ("onnxruntime",)) -> argparse.ArgumentParser:
    """Return the flags that all of these benchmarks share; `engines` is the default of one of them."""
    flags = argparse.ArgumentParser(description=description)
    flags.add_argument("--only", default="", help="a regular expression: measure only the rows whose names match")
    flags.add_argument("--repeats", type=int, default=repeats, help="turns of each rival, in each pass")
    flags.add_argument(
        "--passes",
        type=int,
        default=1,
        help="how often to measure the whole table: the load of a shared machine changes within seconds",
    )
    flags.add_argument(
        "--clock",
        choices=CLOCKS,
        default="wall",
        help="cpu: CPU time of the calling thread, for rows of one thread on a busy machine",
    )
    flags.add_argument(
        "--engines",
        nargs="*",
        choices=["onnxruntime", "openvino", "compile"],
        default=list(engines),
        help="engines besides eager torch; none if no name is given",
    )
    flags.add_argument("--save", type=Path, help="write the table as JSON, after every row")
    flags.add_argument("--add", action="store_true", help="keep the rows of that file and measure the missing ones")
    return flags


def processor() -> str:
    """Return the model name of the processor, if the system knows it."""
    path = Path("/proc/cpuinfo")
    lines = path.read_text().splitlines() if path.exists() else []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.processor() or platform.machine())


class Table:
    """Rows, each with its target: printed, and saved on request, as soon as they are measured.

    `names` are those of all rows that the whole table has, where a report should say which of them are missing.
    """

    def __init__(self, options: argparse.Namespace, names: Sequence[str] = ()) -> None:
        self.options = options
        self.names = list(names)
        self.rows: dict[str, Row] = {}
        # For the rows of this process, from all passes so far.
        self._times: dict[str, Times] = {}
        self._plans: dict[str, list[float]] = {}
        self._limits: dict[str, list[float]] = {}
        self.about = {
            "secateur": versions()["secateur"],
            "torch": torch.__version__,
            "cpu": torch.backends.cpu.get_cpu_capability(),
            "machine": platform.machine(),
            "processor": processor(),
        }
        self.versions: dict[str, str] = {}
        self.missing: dict[str, str] = {}
        if options.add:
            self._continue()
        self._kept = frozenset(self.rows)
        self._has_printed = False

    def _continue(self) -> None:
        """Start with the rows in the file, if they were measured with the same versions on the same machine."""
        path = self.options.save
        if path is None:
            raise SystemExit("--add needs a file to add to: name it with --save")
        if not path.exists():
            return
        saved = json.loads(path.read_text())
        for name, ours in self.about.items():
            self._require_same(name, saved.get(name), ours)
        self.rows, self.versions, self.missing = saved["rows"], saved["engines"], saved["missing"]

    def _require_same(self, name: str, saved: str | None, ours: str) -> None:
        if saved != ours:
            path = self.options.save
            raise SystemExit(f"{path} was measured with {name} {saved}, this is {ours}: start again without --add")

    def wants(self, name: str) -> bool:
        """Return whether a row was requested and is not measured yet."""
        return name not in self._kept and re.search(self.options.only, name) is not None

    def engines(self, model: nn.Module, x: Tensor) -> dict[str, Engine]:
        """Prepare the dense rivals, and remember why one is not available."""
        found, missing = prepare_all(model, x, self.options.engines)
        for name, engine in found.items():
            self._require_same(name, self.versions.setdefault(name, engine.version), engine.version)
        self.missing = {name: why for name, why in (self.missing | missing).items() if name not in found}
        return found

    def measure(
        self,
        name: str,
        model: nn.Module,
        x: Tensor,
        *,
        at_least: float,
        engines: Mapping[str, Engine],
        limit: float | None = None,
        or_share_of_limit: float = math.inf,
        plan_s_at_most: float = math.inf,
        by_interval: bool = False,
        repeats: int | None = None,
        **facts: object,
    ) -> Row:
        """Compile `model`, check its answer, time it in turns with its rivals, and add the row.

        The target is a speed-up of `at_least`, or a share of the limit; with `by_interval`, the upper end of its
        interval counts. If the target is twice the speed of eager torch or more, the network must also be faster than
        ONNX Runtime. `facts` are saved with the row, and so is everything that decides whether the target is reached.
        """
        start = time.perf_counter()
        fast = secateur.compile_sparse(model, x)
        plan_s = time.perf_counter() - start
        eager, sparse = prepare("eager", model, x), prepare("eager", fast, x)
        check(name, sparse.run(x), eager.run(x))
        runs = {"eager": eager.run, "sparse": sparse.run, **{rival: engine.run for rival, engine in engines.items()}}
        repeats, threads = repeats or self.options.repeats, torch.get_num_threads()
        row = self.compare(name, runs, x, "sparse", repeats=repeats, threads=threads, clock=self.options.clock)
        # Over several passes: the longest planning time, and the median of the measured limits.
        plans, limits = self._plans.setdefault(name, []), self._limits.setdefault(name, [])
        plans.append(plan_s)
        limits += [] if limit is None else [limit]
        limit, plan_s = statistics.median(limits) if limits else None, max(plans)
        row |= {"at_least": at_least, "limit": limit, "plan_s": plan_s, **facts}
        row["keeps_layers"] = [type(each) for each in fast.modules()] == [type(each) for each in model.modules()]
        wanted = at_least
        if limit is not None and or_share_of_limit < math.inf:
            row["or_share_of_limit"] = or_share_of_limit
            wanted = min(at_least, or_share_of_limit * limit)
        row["by_interval"] = by_interval
        row["reached"] = (row["interval"][1] if by_interval else row["speedup"]) >= wanted
        if plan_s_at_most < math.inf:
            row["plan_s_at_most"] = plan_s_at_most
            row["reached"] &= plan_s <= plan_s_at_most
        if at_least >= 2 and "onnxruntime" in engines:
            row["reached"] &= row["over"]["onnxruntime"]["ratio"] > 1
        return self.add(name, row)

    def compare(
        self, name: str, runs: Mapping[str, Run], x: Tensor, ours: str, *, repeats: int, threads: int, clock: str
    ) -> Row:
        """Time `runs` in turns, and return how many times as fast `ours` is as each of the others.

        Ratios are taken within a turn, and the median over the turns of all passes counts, with its 95 % interval. The
        row says how it was measured: how many turns, of how many calls, on how many threads at most, by which clock.
        """
        new, calls = take_turns(runs, x, repeats, clock)
        before = self._times.get(name, {})
        times = self._times[name] = {rival: before.get(rival, []) + own for rival, own in new.items()}
        over = {}
        for rival, theirs in times.items():
            if rival != ours:
                ratios = [their / our for their, our in zip(theirs, times[ours], strict=True)]
                over[rival] = {"ratio": statistics.median(ratios), "interval": median_interval(ratios)}
        base = next(iter(runs))
        return {
            "ms": {rival: statistics.median(own) for rival, own in times.items()},
            "speedup": over[base]["ratio"],
            "interval": over[base]["interval"],
            "over": over,
            "repeats": len(times[ours]),
            "passes": self.rows[name]["passes"] + 1 if before else 1,
            "calls_per_turn": calls,
            "threads": threads,
            "clock": clock,
        }

    def add(self, name: str, row: Row) -> Row:
        """Add a row that holds `speedup`, `interval`, `at_least` and `reached`; print it and save the table."""
        if not self._has_printed:
            print(f"{'':44}{'eager ms':>10}{'sparse ms':>10}{'speed-up':>10}{'95 % interval':>18}{'target':>10}"
                  f"{'over ORT':>10}{'limit':>8}{'plan s':>8}")  # fmt: skip
            self._has_printed = True
        self.rows[name] = row
        self._save()
        low, high = row["interval"]
        times, over = row.get("ms", {}), row.get("over", {}).get("onnxruntime")
        columns = [
            f"{times['eager']:10.3f}" if "eager" in times else f"{'':10}",
            f"{times['sparse']:10.3f}" if "sparse" in times else f"{'':10}",
            f"{row['speedup']:9.2f}×{f'{low:.2f} … {high:.2f}':>18}{row['at_least']:9.2f}×",
            f"{over['ratio']:9.2f}×" if over else f"{'–':>10}",
            f"{row['limit']:7.1f}×" if row.get("limit") else f"{'–':>8}",
            f"{row['plan_s']:8.2f}" if "plan_s" in row else f"{'':8}",
        ]
        print(f"{name:44}{''.join(columns)}{'' if row['reached'] else '  missed'}", flush=True)
        return row

    def _save(self) -> None:
        """Write all rows, atomically: an interrupted run keeps its rows."""
        if self.options.save:
            content = {"rows": self.rows, "engines": self.versions, "missing": self.missing, **self.about}
            content |= {"names": self.names} if self.names else {}
            write_atomically(self.options.save, (json.dumps(content, indent=1, ensure_ascii=False) + "\n").encode())

    def finish(self) -> None:
        """Print how many rows reach their target, and which rivals were not available."""
        print(f"{sum(row['reached'] for row in self.rows.values())} of {len(self.rows)} rows reach their target")
        for name, reason in self.missing.items():
            print(f"{name} was not measured: {reason}")


def check(name: str, answer: Tensor, expected: Tensor) -> None:
    """Exit if the answer is wrong: it is not worth timing."""
    try:
        require_same_answer(answer, expected, TOLERANCE)
    except ValueError as error:
        raise SystemExit(f"{name}: {error}") from error


def keep_signal_(model: nn.Module, x: Tensor) -> nn.Module:
    """Scale each convolution and linear layer so that its outputs on `x` have a standard deviation of 1.

    Behind some twenty layers of random weights and zeros, what is left of the input is too small to change the output:
    any answer would be right, and engines that do not treat denormals as zeros would be slow.
    """

    def scale(layer: nn.Module, _: object, output: Tensor) -> Tensor:
        deviation = output.std()
        for parameter in layer.parameters():
            parameter.div_(deviation)
        return output / deviation

    layers = [layer for layer in model.modules() if isinstance(layer, nn.Conv2d | nn.Linear)]
    hooks = [layer.register_forward_hook(scale) for layer in layers]
    with torch.no_grad():
        model(x)
    for hook in hooks:
        hook.remove()
    return model


def take_turns(runs: Mapping[str, Run], x: Tensor, repeats: int, clock: str) -> tuple[Times, dict[str, int]]:
    """Time `runs` in turns; return the milliseconds of a call in each turn, and the number of calls per turn."""
    with torch.inference_mode():  # once, because entering it in every call would slow down a small network
        calls = {name: calls_per_turn(partial(run, x), CLOCKS[clock]) for name, run in runs.items()}
        turns = {name: turn(partial(run, x), calls[name]) for name, run in runs.items()}
        found = compare_latency(turns, repeats=repeats, warmup=3, clock=CLOCKS[clock], calls=calls)
    return {name: list(comparison.latency.times_ms) for name, comparison in found.items()}, calls
