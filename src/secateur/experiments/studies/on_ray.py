"""Carries out the runs of a comparison as tasks of a Ray cluster, on as many machines as it has.

Every machine needs secateur and fetches the data itself. A task returns its result to the process that started it,
which alone writes to the published results, so that nothing but the network is shared. A task whose worker or machine
dies is started again elsewhere; where machines share the folder of runs, it continues from its last checkpoint.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from secateur.experiments.studies.compare import Entry, Failure
from secateur.experiments.studies.compare_runs import carried_out, publish
from secateur.experiments.studies.grid import Places
from secateur.results import PublishedRun

_RETRIES = 5  # of a task whose worker has died; one that raises an exception is not tried again


def run_on_ray(entries: Sequence[Entry], places: Places, address: str) -> Iterator[Path]:
    """Carry out the runs that are not published yet on the cluster at an address, and yield the path of each result.

    A failure is raised after the other tasks have ended.
    """
    ray = _ray()
    places = replace(places, runs=places.runs.resolve())  # a worker has a working directory of its own
    missing = [entry for entry in entries if not entry.is_published(places.results)]
    ray.init(address=address, log_to_driver=False, configure_logging=False)
    failures = []
    try:
        start = ray.remote(num_cpus=1, max_retries=_RETRIES)(_carried_out)
        pending = {start.remote(entry, places): entry for entry in missing}
        while pending:
            [done], _ = ray.wait(list(pending), num_returns=1)
            entry = pending.pop(done)
            try:
                yield publish(entry, ray.get(done), places)
            except ray.exceptions.RayError as failure:  # raised by the task, or its workers died too often
                failures.append(failure)
        if failures:
            raise failures[0]
    finally:
        ray.shutdown()


def _carried_out(entry: Entry, places: Places) -> PublishedRun | Failure:
    return carried_out(entry, places.runs, places.data_root)


def _ray() -> Any:
    try:
        import ray  # the extra "ray"; slow to import
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError("runs on a cluster need Ray: pip install 'secateur[ray]'") from error
    return ray
