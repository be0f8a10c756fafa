"""Does `secateur compare --jobs 2` take half of the time of `--jobs 1`? A small grid of runs, one thread each.

Wall time of the whole grid in turns, results written, with the start of the processes and the import of torch. The
networks must be the same, whichever process trained them. Needs an otherwise idle machine of two cores.
"""

import argparse
import json
import os
import statistics
import tempfile
import time
from pathlib import Path

from secateur.experiments.studies.compare import Comparison, planned
from secateur.experiments.studies.compare_runs import run_entries
from secateur.experiments.studies.compare_summary import read_points
from secateur.experiments.studies.grid import Places
from secateur.experiments.versions import versions

AT_LEAST, METHODS, RATIOS = 1.7, ("budget", "gradual-magnitude"), (10, 30)


def seconds(comparison: Comparison, seeds: int, workers: int) -> tuple[float, list[float]]:
    """Run the whole grid in a folder of its own; return the wall time and the errors of its points."""
    with tempfile.TemporaryDirectory() as folder:
        places = Places(Path(folder) / "results", Path(folder) / "runs")
        entries, _ = planned(comparison, METHODS, RATIOS, range(seeds), places.results)
        started = time.perf_counter()
        assert len(list(run_entries(entries, places, workers=workers))) == len(entries)
        took = time.perf_counter() - started
        return took, [point.error.value for point in read_points(comparison, places.results)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--network", default="lenet-300-100")
    parser.add_argument("--data", default="mnist")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--seeds", type=int, default=4)
    parser.add_argument("--turns", type=int, default=1)
    parser.add_argument("--save", type=Path)
    arguments = parser.parse_args()
    comparison = Comparison(network=arguments.network, data=arguments.data, epochs=arguments.epochs)
    times: dict[int, list[float]] = {1: [], 2: []}
    for _ in range(arguments.turns):
        found = {}
        for workers in times:
            took, found[workers] = seconds(comparison, arguments.seeds, workers)
            times[workers].append(took)
            print(f"{workers} at a time: {took:.1f} s", flush=True)
        assert found[1] == found[2], "two processes found other errors than one"
    one, two = (statistics.median(each) for each in times.values())
    print(f"two processes: {one / two:.2f}× of at least {AT_LEAST}")
    if arguments.save:
        name = f"{arguments.network}, {arguments.data}, {arguments.seeds} seeds, {arguments.epochs} epochs"
        row = {"one_s": one, "two_s": two, "speedup": one / two, "at_least": AT_LEAST, "reached": one / two >= AT_LEAST}
        load = os.getloadavg()[0] if hasattr(os, "getloadavg") else None
        content = {"rows": {name: row}, "turns": arguments.turns, "load": load, "versions": versions()}
        arguments.save.write_text(json.dumps(content, indent=1) + "\n")


if __name__ == "__main__":
    main()
