"""The files of a run: the only place that spells their names."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from secateur.atomic import write_atomically
from secateur.train.loop import Journal


@dataclass(frozen=True)
class RunDirectory:
    """A directory that holds one run; everything in it is written whole or not at all."""

    path: Path

    @property
    def job(self) -> Path:
        """What was asked for."""
        return self.path / "job.json"

    @property
    def model(self) -> Path:
        """The finished network, plain tensors under the original names."""
        return self.path / "model.safetensors"

    @property
    def packed(self) -> Path:
        """The finished network, coded."""
        return self.path / "model.cut"

    @property
    def result(self) -> Path:
        """What came out, judged on validation images."""
        return self.path / "result.json"

    @property
    def test(self) -> Path:
        """Errors on test images, written by an evaluation after the run."""
        return self.path / "test.json"

    @property
    def file_record(self) -> Path:
        """How the file was made, and what each step cost, judged on validation images."""
        return self.path / "file.json"

    @property
    def speed(self) -> Path:
        """How fast the network runs, as a benchmark of it has measured."""
        return self.path / "speed.json"

    @property
    def page(self) -> Path:
        """The report to look at."""
        return self.path / "report.html"

    @property
    def events(self) -> Path:
        """What TensorBoard reads."""
        return self.path / "tensorboard"

    def inside(self, name: str) -> RunDirectory:
        """Return a directory inside of this one, for what is made out of the run."""
        return RunDirectory(self.path / name)

    def compressed(self) -> list[RunDirectory]:
        """Return the directories inside of this one that hold a finished file."""
        return [RunDirectory(path.parent) for path in sorted(self.path.glob(f"*/{self.file_record.name}"))]

    def journal(self, stage: str) -> Journal:
        """Where a phase, or a stage of a method with more of them, keeps its checkpoint and its log."""
        return Journal(checkpoint=self.path / f"{stage}.checkpoint.safetensors", log=self.path / f"{stage}.jsonl")

    @property
    def has_started(self) -> bool:
        """Whether a checkpoint to resume from exists."""
        return self.journal("train").checkpoint.exists()

    def sweep(self) -> None:
        """Remove what a process that was killed while it wrote has left."""
        for partial in self.path.glob(".*.partial"):
            partial.unlink(missing_ok=True)

    def write(self, path: Path, content: Any) -> None:
        """Write JSON."""
        write_atomically(path, (json.dumps(content, indent=2, ensure_ascii=False) + "\n").encode())

    def read(self, path: Path) -> dict[str, Any]:
        """Read JSON; a file that is missing or broken is one sentence."""
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
            lost = [field for field in _FIELDS[path.name] if field not in content]
            if lost:
                raise ValueError(f"no {lost[0]} in it")
            return dict(content)
        except (FileNotFoundError, NotADirectoryError):
            raise RunError(
                f"{path} does not exist: the run is not finished, or this is not a run's directory"
            ) from None
        except (TypeError, ValueError) as error:
            raise RunError(f"{path} is damaged ({error}): delete the directory and run again") from error


# What a reader of each file relies on.
_FIELDS = {
    "job.json": ("network", "sibling", "train"),
    "result.json": ("job", "prunable", "kept", "layers", "parameters", "parameters_kept", "validation", "seconds"),
    "test.json": ("error", "test_images"),
    "file.json": ("job", "compression", "bytes", "fp32_bytes", "validation"),
    "speed.json": ("dense_ms", "sparse_ms", "batch", "threads", "layers"),
}


def publish(path: Path, content: Any) -> Path:
    """Write a result that is kept with the project, and return its path."""
    write_atomically(path, (json.dumps(content, indent=1, ensure_ascii=False) + "\n").encode())
    return path


def read_published(path: Path) -> dict[str, Any]:
    """Read a published result; one that is damaged is named."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(content, dict) or not content:
            raise ValueError("there is nothing in it")
        return content
    except ValueError as error:
        raise RunError(f"{path} is damaged ({error}): restore it, or delete it and run again") from error


def newest_finished(root: Path) -> RunDirectory:
    """Return the run below `root` that was finished last."""
    results = list(root.glob(f"*/{RunDirectory(root).result.name}"))
    if not results:
        raise RunError(f"there is no finished run in {root}: secateur prune lenet-300-100 makes one")
    return RunDirectory(max(results, key=lambda path: path.stat().st_mtime_ns).parent)


def newest_begun(root: Path) -> RunDirectory:
    """Return the run below `root` that was begun or went on last, finished or not."""
    found = [path for path in root.glob("*") if RunDirectory(path).job.exists()]
    if not found:
        raise RunError(f"there is no run in {root}: secateur prune lenet-300-100 begins one")
    return RunDirectory(max(found, key=lambda path: path.stat().st_mtime_ns))


class RunError(Exception):
    """A run that cannot be used: unfinished, damaged, or another one than expected."""
