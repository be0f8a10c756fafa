"""The paper's three claims against Han et al.: fewer weights, at the same error, for less training."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from secateur.experiments import rival
from secateur.experiments.job import Job
from secateur.experiments.reproduce import Result, mean_std, read_results

Spread = tuple[float, float]


@dataclass(frozen=True)
class Standing:
    """How one method did on one network; differences are paired by seed, with their standard error."""

    network: str
    method: str
    seeds: int
    dense_error: Spread
    error: Spread
    difference: Spread
    kept: Spread
    ratio: Spread
    steps: int
    seconds: Spread
    search_steps: int | None
    search_seconds: float | None


def standings(results: Path, network: str) -> list[Standing]:
    """Put the rival and the paper's preset side by side, as far as there are results."""
    theirs, ours = read_results(results, "han2015", network), read_results(results, "paper", network)
    found = []
    if theirs["han2015"]:
        runs = list(theirs["han2015"].values())
        search = _read(rival.search_path(results, network))
        found.append(
            _standing(
                network,
                "Han et al. 2015",
                runs,
                dense=[run["test"]["error"]["dense"] for run in runs],
                steps=runs[0]["steps"],
                seconds=[run["seconds"] for run in runs],
                search=(search["steps"], search["seconds"]) if search else None,
            )
        )
    paired = sorted(ours["prune"].keys() & ours["dense"].keys())
    if paired:
        runs = [ours["prune"][seed] for seed in paired]
        search = _read(results / network / "paper" / "search.json")
        images = runs[0]["training_images"]
        found.append(
            _standing(
                network,
                "secateur paper",
                runs,
                dense=[ours["dense"][seed]["test"]["error"]["final"] for seed in paired],
                steps=_steps(runs[0]["job"], images),
                seconds=[sum(run["seconds"].values()) for run in runs],
                search=(_steps(search["job"], images), sum(search["seconds"].values())) if search else None,
            )
        )
    return found


def _standing(
    network: str,
    method: str,
    runs: Sequence[Result],
    *,
    dense: Sequence[float],
    steps: int,
    seconds: Sequence[float],
    search: tuple[int, float] | None,
) -> Standing:
    errors = [run["test"]["error"]["final"] for run in runs]
    center, spread = mean_std(error - reference for error, reference in zip(errors, dense, strict=True))
    return Standing(
        network=network,
        method=method,
        seeds=len(runs),
        dense_error=mean_std(dense),
        error=mean_std(errors),
        difference=(center, spread / math.sqrt(len(runs))),
        kept=mean_std(run["kept"] for run in runs),
        ratio=mean_std(run["ratio"] for run in runs),
        steps=steps,
        seconds=mean_std(seconds),
        search_steps=search[0] if search else None,
        search_seconds=search[1] if search else None,
    )


def _steps(job: Result, images: int) -> int:
    read = Job.from_json(job)
    return (read.train.epochs + read.train.fine_tune_epochs) * rival.steps_per_epoch(read, images)


def _read(path: Path) -> Result | None:
    return dict(json.loads(path.read_text())) if path.exists() else None
