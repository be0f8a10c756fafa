"""Runs the missing results of a table, one process per run."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from functools import partial
from multiprocessing import active_children, get_context
from pathlib import Path
from typing import TypeVar

import torch

from secateur import literature
from secateur.experiments.directory import RunDirectory
from secateur.experiments.evaluate import evaluate
from secateur.experiments.presets import preset
from secateur.experiments.runner import run
from secateur.experiments.studies.published import read_history, result_path
from secateur.job import Job
from secateur.results import PublishedRun, write
from secateur.train.processes import is_main_process, join_processes, process_count, wait_for_all


@dataclass(frozen=True)
class Places:
    """Where results, runs and data sets are kept."""

    results: Path
    runs: Path
    data_root: Path | None = None


Task = TypeVar("Task")


def jobs(
    preset_name: str, network: str, seeds: Iterable[int], *, data: str | None = None, to_file: bool = False
) -> list[Job]:
    """Return the run of every seed and, unless the whole pipeline is run, the dense reference of every seed.

    They are trained on the paper's data unless others are given.
    """
    data = data or literature.paper_data(network) or "mnist"
    wanted = [preset(preset_name, network, data=data, seed=seed, to_file=to_file) for seed in seeds]
    return wanted if to_file else [*wanted, *(job.reference() for job in wanted)]


def publish_run(job: Job, places: Places) -> Path:
    """Carry out a job with one thread, evaluate it on the test set and publish it."""
    torch.set_num_threads(1)
    directory = run(job, places.runs, data_root=places.data_root, resume=True)
    path = result_path(places.results, job)
    if is_main_process():
        write(path, to_publish(directory, places.data_root))
    wait_for_all()
    return path


def to_publish(directory: RunDirectory, data_root: Path | None = None) -> PublishedRun:
    """Return the published form of a finished run, and evaluate the run on the test set for it."""
    return PublishedRun(
        result=directory.read_result(), test=evaluate(directory, data_root=data_root), history=read_history(directory)
    )


def run_missing(
    wanted: Sequence[Job],
    places: Places,
    *,
    workers: int,
    work: Callable[[Job, Places], Path] = publish_run,
    path: Callable[[Path, Job], Path] = result_path,
) -> Iterator[Path]:
    """Do the work for each job whose result is not published yet, and yield the path of each new result.

    Processes of torchrun do it together, one job after the other.
    """
    join_processes()
    missing = [job for job in wanted if not path(places.results, job).exists()]
    wait_for_all()  # before the first process writes: all of them must have seen the same files
    return in_processes(missing, partial(_at, places, work), workers=workers)


def _at(places: Places, work: Callable[[Job, Places], Path], job: Job) -> Path:
    return work(job, places)


def in_processes(tasks: Sequence[Task], work: Callable[[Task], Path], *, workers: int) -> Iterator[Path]:
    """Do the work for each task in processes of their own, and yield what it returns, in the order in which they end.

    A failure is raised after the other tasks have ended.
    """
    if workers == 1 or process_count() > 1:
        yield from map(work, tasks)
        return
    # Workers ignore Ctrl-C; this process handles it and ends them. A run can be killed at any moment.
    pool = ProcessPoolExecutor(workers, get_context("spawn"), signal.signal, (signal.SIGINT, signal.SIG_IGN))
    others = set(active_children())
    failures = []
    try:
        futures = [pool.submit(work, task) for task in tasks]
        for future in as_completed(futures):
            failure = future.exception()
            if failure is None:
                yield future.result()
            else:
                failures.append(failure)
        if failures:
            raise failures[0]
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
        for worker in set(active_children()) - others:
            worker.terminate()
