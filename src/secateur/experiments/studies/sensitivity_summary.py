"""How ratio and error depend on γ and p, over seeds: the published results of `sensitivity.py`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from secateur.experiments.presets import preset
from secateur.experiments.studies.summaries import Spread, mean_std
from secateur.job import Job
from secateur.methods import Manessi2018
from secateur.results import PublishedRun, read

CUTOFFS = (1e-5, 1e-4, 3e-4, 1e-3, 3e-3, 1e-2, 3e-2)
QUANTILES = (0.0, 0.02, 0.05, 0.1, 0.2)
STUDY = "sensitivity"


@dataclass(frozen=True)
class Setting:
    """One setting of the study, evaluated on validation images."""

    name: str
    seeds: int
    ratio: Spread
    error: Spread


def sensitivity(results: Path, network: str) -> list[Setting]:
    """Summarise the study: p from separate runs, γ from cutting the runs with the paper's p at other values."""
    runs = [read(PublishedRun, path) for path in sorted((results / network / STUDY).glob("*.json"))]
    settings = []
    for p in QUANTILES:
        chosen = [each.result for each in runs if quantile(each.result.job) == p]
        if chosen:
            ratios, errors = mean_std(each.ratio for each in chosen), mean_std(each.error for each in chosen)
            settings.append(Setting(f"p = {p:g}", len(chosen), ratios, errors))
    usual = [each for each in runs if quantile(each.result.job) == quantile(preset("paper", network))]
    for cutoff in CUTOFFS if usual else ():
        cuts = [each.cutoffs[f"{cutoff:g}"] for each in usual]
        ratios, errors = mean_std(cut.ratio for cut in cuts), mean_std(cut.error for cut in cuts)
        settings.append(Setting(f"γ = {cutoff:g}", len(cuts), ratios, errors))
    return settings


def sibling_method(job: Job) -> Manessi2018:
    """Return the method of a run of the study."""
    method = job.methods[0]
    assert isinstance(method, Manessi2018)
    return method


def quantile(job: Job) -> float:
    """Return the quantile p of |w| at which the thresholds of a run start."""
    return sibling_method(job).sibling.init_quantile
