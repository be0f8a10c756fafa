"""A grid on a cluster: every result is collected once, and the tasks of a worker that dies are done by another."""

import os
import signal
import sys
from collections import deque
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace

import pytest

from secateur.experiments.studies import compare_runs, on_ray
from secateur.experiments.studies.compare import Comparison, Failure, planned
from secateur.experiments.studies.compare_runs import run_entries
from secateur.experiments.studies.compare_summary import read_points
from secateur.experiments.studies.grid import Places
from secateur.experiments.studies.on_ray import run_on_ray

DIGITS = Comparison(network="lenet-300-100", data="digits", epochs=4)


class RayError(Exception):
    pass


class FakeRay:
    """Ray as far as we use it, in this process: tasks end in the reverse order, one of them with an exception."""

    exceptions = SimpleNamespace(RayError=RayError)

    def __init__(self):
        self.calls, self.tasks = [], {}

    def init(self, **settings):
        self.calls.append(settings["address"])

    def shutdown(self):
        self.calls.append("shutdown")

    def remote(self, **settings):
        self.calls.append(settings)
        return lambda work: SimpleNamespace(remote=lambda *arguments: self._start(work, arguments))

    def _start(self, work, arguments):
        self.tasks[len(self.tasks)] = work, arguments
        return len(self.tasks) - 1

    def wait(self, pending, num_returns):
        return [pending[-1]], pending[:-1]

    def get(self, done):
        work, arguments = self.tasks.pop(done)
        if done == 1:
            raise RayError("the worker died too often")
        return work(*arguments)


def test_results_are_collected_once_and_a_lost_task_is_raised_after_the_others(tmp_path, monkeypatch):
    ray = FakeRay()
    monkeypatch.setitem(sys.modules, "ray", ray)
    monkeypatch.setattr(
        on_ray, "carried_out", lambda entry, runs, data_root: Failure(job=entry.job, reason=str(runs), versions={})
    )
    places = Places(tmp_path / "results", tmp_path / "runs")
    entries, _ = planned(DIGITS, ["budget"], [5], [0, 1], places.results)
    compare_runs.publish(entries[0], Failure(job=entries[0].job, reason="earlier", versions={}), places)
    written, found = [], run_on_ray(entries, places, "head:6379")
    with pytest.raises(RayError, match="died too often"):
        deque(map(written.append, found))
    assert [path.name for path in written] == ["budget-5x-seed01.json", "budget-5x-seed00.json"]
    assert ray.calls == ["head:6379", {"num_cpus": 1, "max_retries": 5}, "shutdown"]
    dense, budget = read_points(DIGITS, places.results)
    assert [failure.reason for failure in dense.failures.values()] == ["earlier"]
    assert budget.failures[0].reason == str(tmp_path / "runs")


def test_without_ray_the_remedy_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ModuleNotFoundError, match=r"pip install 'secateur\[ray\]'"):
        next(run_on_ray([], Places(None, Path("runs")), "auto"))


def busy_workers(raylet):
    """Return the processes below a raylet that carry out a task: Ray sets their titles."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):  # it has ended since
            parent = int(stat.read_text().rpartition(")")[2].split()[1])
            if parent == raylet and b"ray::_carried_out" in stat.with_name("cmdline").read_bytes():
                found.append(int(stat.parent.name))
    return found


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # Ray's own
@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="finds Ray's workers in /proc")
def test_two_workers_of_which_one_is_killed_midway_finish_the_grid(tmp_path):
    pytest.importorskip("ray", reason="the extra ray is not installed")
    from ray.cluster_utils import Cluster

    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 2, "include_dashboard": False})
    raylet = cluster.head_node.all_processes["raylet"][0].process.pid
    places = Places(tmp_path / "results", tmp_path / "runs")
    entries, _ = planned(DIGITS, ["budget"], [5], [0, 1], places.results)
    written, killed = [], []
    try:
        for path in run_on_ray(entries, places, cluster.address):
            written.append(path)
            if not killed:
                killed = busy_workers(raylet)[:1]
                for worker in killed:
                    os.kill(worker, signal.SIGKILL)
    finally:
        cluster.shutdown()
    assert killed
    assert sorted(written) == sorted(entry.path(places.results) for entry in entries)
    here = Places(tmp_path / "here", tmp_path / "runs here")
    assert len(list(run_entries(entries, here, workers=1))) == len(entries)
    errors = [[point.error.value for point in read_points(DIGITS, each.results)] for each in (places, here)]
    assert errors[0] == errors[1]
