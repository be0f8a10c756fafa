"""How much the paper's rules of thumb for γ and p matter, evaluated on validation images."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import torch

from secateur.experiments.directory import RunDirectory
from secateur.experiments.images import load_images
from secateur.experiments.models import load_stage
from secateur.experiments.presets import preset
from secateur.experiments.runner import run
from secateur.experiments.studies.grid import Places
from secateur.experiments.studies.published import read_history, result_path
from secateur.experiments.studies.sensitivity_summary import CUTOFFS, QUANTILES, STUDY, quantile, sibling_method
from secateur.job import Job
from secateur.measure import count
from secateur.prune import prune
from secateur.results import CutResult, PublishedRun, write


def sensitivity_jobs(network: str, seeds: Iterable[int]) -> list[Job]:
    """Return the runs of the study: the paper's settings with other initial quantiles p."""
    return [_with_quantile(preset("paper", network, seed=seed), p) for seed in seeds for p in QUANTILES]


def sensitivity_path(results: Path, job: Job) -> Path:
    """Return where a run of the study is published."""
    return result_path(results, job, study=STUDY, variant=f"p={quantile(job):g}")


def publish_sensitivity(job: Job, places: Places) -> Path:
    """Carry out a run of the study, cut it at several γ, and publish it; the test set is not read."""
    torch.set_num_threads(1)
    directory = run(job, places.runs, data_root=places.data_root, resume=True)
    cuts = cut_at(directory, CUTOFFS, places.data_root)
    found = PublishedRun(result=directory.read_result(), history=read_history(directory), cutoffs=cuts)
    return write(sensitivity_path(places.results, job), found)


def cut_at(directory: RunDirectory, cutoffs: Iterable[float], data_root: Path | None = None) -> dict[str, CutResult]:
    """Cut a finished run's sibling at several γ and evaluate each on the validation images."""
    sibling = load_stage(directory)
    images = load_images(directory.read_job(), data_root)
    found = {}
    for cutoff in cutoffs:
        plain = prune(sibling, cutoff, allow_empty=True)
        found[f"{cutoff:g}"] = CutResult(ratio=count(plain).prunable.ratio, error=images.error(plain))
    return found


def _with_quantile(job: Job, p: float) -> Job:
    method = sibling_method(job)
    return replace(job, methods=(replace(method, sibling=replace(method.sibling, init_quantile=p)),))
