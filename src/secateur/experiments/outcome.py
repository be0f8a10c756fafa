"""What comes of a network while a job is carried out, and the files in which that is left."""

from __future__ import annotations

from collections.abc import Collection

import torch
from torch import nn

from secateur import networks
from secateur.encode.container import open_archive
from secateur.experiments.directory import RunDirectory
from secateur.experiments.models import load_model, save_model
from secateur.experiments.reference import trained_reference
from secateur.experiments.versions import versions
from secateur.experiments.workload import Workload
from secateur.files import GivenArchitecture, encoded, load, save
from secateur.functions.computed import is_small
from secateur.functions.threshold import learned_thresholds
from secateur.job import Job
from secateur.measure import Answers, count
from secateur.results import FileResult, LayerResult, RunError, RunResult, StageResult, figure, last, write
from secateur.weights.reading import copied, settle

DENSE, FILE = "dense", "file"  # the forms of a network before it is pruned, and read back from its file


class Outcome:
    """The forms that a network has had, each with its error, and the stages that it was trained in."""

    def __init__(
        self,
        job: Job,
        directory: RunDirectory,
        workload: Workload,
        architecture: GivenArchitecture | None,
        trust: Collection[str],
    ) -> None:
        self.job, self.directory, self.workload = job, directory, workload
        self.architecture, self.trust = architecture, trust
        self.errors: dict[str, float] = {}
        self.top5_errors: dict[str, float] = {}
        self.kept: dict[str, int] = {}
        self.answers: dict[str, Answers | None] = {}
        self.stages: list[StageResult] = []
        self.thresholds: dict[str, tuple[float, ...]] = {}

    def evaluate(self, form: str, network: nn.Module) -> None:
        """Evaluate a form of the network on validation data."""
        found = self.workload.evaluate(network)
        self.errors[form], self.answers[form] = found.error, found.answers
        if found.answers is not None and found.answers.top5_error is not None:
            self.top5_errors[form] = found.answers.top5_error
        if form != FILE:  # it has the weights of the form before
            self.kept[form] = count(network).prunable.kept

    def add_stage(self, result: StageResult, model: nn.Module) -> None:
        """Take note of a stage, and of the thresholds that its network has learned."""
        self.stages.append(result)
        for name, function in learned_thresholds(model).items():
            self.thresholds[name] = tuple(function.threshold.flatten().tolist())

    def file_size(self, network: nn.Module) -> int:
        """Return the size of the file that a network would be written to."""
        coding = self.job.coding
        return len(
            encoded(
                network,
                codec=coding.codec,
                metadata=self._metadata(),
                architecture=self.architecture,
                sort_units=coding.sort_units,
            )
        )

    def refuse_guessing(self) -> None:
        """Fail when a trained network does no better than an answer that ignores its input."""
        reached = last(self.errors)
        if sum(stage.epochs for stage in self.stages) and reached >= self.workload.guessing_error:
            raise RunError(
                f"{self.directory.path}: after training the network is wrong on {reached:.1f} % of the validation "
                "images, no better than guessing: lower the learning rate or rho, prune less, or train for more epochs"
            )

    def leave(self, finished: nn.Module) -> None:
        """Write the finished network, its file, its answers and its result into the directory."""
        directory, coding = self.directory, self.job.coding
        plain = settle(finished) if is_small(finished) else finished
        save_model(directory.model, plain, self.job, self.workload.sizes)
        size = save(
            finished,
            directory.file,
            codec=coding.codec,
            metadata=self._metadata(last(self.errors)),
            architecture=self.architecture,
            sort_units=coding.sort_units,
        )
        is_built = networks.name_of(plain) is not None or networks.is_import_path(self.job.network)
        model = None if is_built else copied(plain)
        self.evaluate(FILE, load(directory.file, model, trust=self.trust))
        self._write_answers()
        file = FileResult(bytes=size, dense_bytes=4 * count(finished).whole.weights)
        write(directory.result, self._result(finished, file))

    def _metadata(self, error: float = 10.0) -> dict[str, str]:
        """Return what the file says about its network; the default error is a placeholder of the usual length."""
        return {
            **self.workload.metadata,
            "run": self.directory.path.name,
            f"validation {self.workload.measure}": figure(error, self.workload.measure),
            "secateur": versions()["secateur"],
        }

    def _write_answers(self) -> None:
        answers = self.answers[FILE]
        if answers is None:
            return
        dense = None if self.job.is_dense else self.answers.get(DENSE) or self._reference_answers()
        described = self.workload.describe(answers, dense)
        if described is not None:
            write(self.directory.answers, described)

    def _reference_answers(self) -> Answers | None:
        """Return the answers of the dense network that was trained alongside; None if there is none to read."""
        other = trained_reference(self.job, self.directory)
        try:
            return None if other is None else self.workload.evaluate(load_model(other.model, self.trust)).answers
        except RunError:
            return None

    def _result(self, model: nn.Module, file: FileResult) -> RunResult:
        totals = count(model)
        with open_archive(self.directory.file) as archive:
            sizes = {record.name: record.length for record in archive.records}
        return RunResult(
            job=self.job,
            errors=self.errors,
            weights=totals.prunable.weights,
            kept=totals.prunable.kept,
            layers=tuple(
                LayerResult(
                    name=tensor.name,
                    shape=tuple(tensor.shape),
                    weights=tensor.weights,
                    kept=tensor.kept,
                    bytes=sizes.get(tensor.name, 0),
                )
                for tensor in totals.prunable.tensors
            ),
            kept_by_form=self.kept,
            thresholds=self.thresholds,
            parameters=totals.whole.weights,
            parameters_kept=totals.whole.kept,
            stages=tuple(self.stages),
            file=file,
            training_images=len(self.workload.training),
            validation_images=self.workload.validation_samples,
            measure=self.workload.measure,
            top5_errors=self.top5_errors,
            threads=torch.get_num_threads(),
            versions=versions(),
        )
