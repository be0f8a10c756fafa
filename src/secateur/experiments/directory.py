"""The files of a run; no other module knows their names."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from secateur.job import Job
from secateur.results import AnswersResult, EvaluationResult, RunError, RunResult, SpeedResult, read
from secateur.train.journal import Journal


@dataclass(frozen=True)
class RunDirectory:
    """A directory that holds one run; every file in it is written atomically."""

    path: Path

    @property
    def job(self) -> Path:
        """The job: every setting of the run."""
        return self.path / "job.json"

    @property
    def model(self) -> Path:
        """The finished network, plain tensors under the original names."""
        return self.path / "model.safetensors"

    @property
    def file(self) -> Path:
        """The finished network, coded."""
        return self.path / "model.cut"

    @property
    def result(self) -> Path:
        """The result, evaluated on validation images."""
        return self.path / "result.json"

    @property
    def test(self) -> Path:
        """Errors on test images, written by `evaluate` after the run."""
        return self.path / "test.json"

    @property
    def answers(self) -> Path:
        """How the finished network answers the validation images, class by class."""
        return self.path / "answers.json"

    @property
    def speed(self) -> Path:
        """The measured speed of the network."""
        return self.path / "speed.json"

    @property
    def page(self) -> Path:
        """The report page."""
        return self.path / "report.html"

    @property
    def events(self) -> Path:
        """The directory of TensorBoard events."""
        return self.path / "tensorboard"

    def journal(self, stage: str) -> Journal:
        """Return where a stage keeps its checkpoint and its log."""
        return Journal(checkpoint=self.path / f"{stage}.checkpoint.safetensors", log=self.path / f"{stage}.jsonl")

    def logs(self) -> list[Path]:
        """Return the logs of all stages, the earliest first."""
        return sorted(self.path.glob("*.jsonl"), key=lambda path: (path.stat().st_mtime_ns, path.name))

    def checkpoints(self) -> list[Path]:
        """Return the checkpoints of all stages."""
        return sorted(self.path.glob("*.checkpoint.safetensors"))

    @property
    def is_finished(self) -> bool:
        """Whether the run has ended with a result and a file."""
        return self.result.exists() and self.file.exists()

    @property
    def has_started(self) -> bool:
        """Whether a checkpoint to resume from exists."""
        return bool(self.checkpoints())

    def sweep(self) -> None:
        """Remove partial files of a process that was killed while writing."""
        for partial in self.path.glob(".*.partial"):
            partial.unlink(missing_ok=True)

    def read_job(self) -> Job:
        """Return the job of the run."""
        return read(Job, self.job)

    def read_result(self) -> RunResult:
        """Return the result of the run."""
        return read(RunResult, self.result)

    def read_test(self) -> EvaluationResult:
        """Return the errors on test images."""
        return read(EvaluationResult, self.test)

    def read_answers(self) -> AnswersResult:
        """Return how the finished network answers the validation images."""
        return read(AnswersResult, self.answers)

    def read_speed(self) -> SpeedResult:
        """Return the measured speed of the network."""
        return read(SpeedResult, self.speed)


def newest_finished(root: Path) -> RunDirectory:
    """Return the run below `root` that was finished last."""
    found = [run for run in _runs(root) if run.is_finished]
    if not found:
        raise RunError(f"there is no finished run in {root}: start one with secateur compress lenet-300-100")
    return max(found, key=lambda run: run.result.stat().st_mtime_ns)


def newest_begun(root: Path) -> RunDirectory:
    """Return the run below `root` that was started or resumed last, finished or not."""
    found = list(_runs(root))
    if not found:
        raise RunError(f"there is no run in {root}: start one with secateur compress lenet-300-100")
    return max(found, key=lambda run: run.job.stat().st_mtime_ns)


def _runs(root: Path) -> Iterator[RunDirectory]:
    return (run for run in map(RunDirectory, root.glob("*")) if run.job.exists())
