"""The paper's three claims against Han et al.: fewer weights, at the same error, for less training."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from secateur.experiments import rival
from secateur.experiments.job import Job
from secateur.experiments.presets import preset_names
from secateur.experiments.reproduce import Result, mean_std, read_results
from secateur.experiments.rundir import read_published

Spread = tuple[float, float]

RIVAL = "Han et al. 2015"
_NONE = (math.nan, math.nan)


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
    """Put the rival and our presets side by side, as far as there are results; the rival comes first."""
    theirs = list(read_results(results, "han2015", network)["han2015"].values())
    found = []
    if theirs:
        search = _read(rival.search_path(results, network))
        found.append(
            _standing(
                network,
                RIVAL,
                theirs,
                dense={run["job"]["seed"]: run["test"]["error"]["dense"] for run in theirs},
                steps=theirs[0]["steps"],
                seconds=[run["seconds"] for run in theirs],
                search=(search["steps"], search["seconds"]) if search else None,
            )
        )
    for preset in preset_names():
        ours = read_results(results, preset, network)
        runs = list(ours["prune"].values())
        if runs:
            search = _read(results / network / preset / "search.json")
            images = runs[0]["training_images"]
            found.append(
                _standing(
                    network,
                    f"secateur {preset}",
                    runs,
                    dense={seed: run["test"]["error"]["final"] for seed, run in ours["dense"].items()},
                    steps=_steps(runs[0]["job"], images),
                    seconds=[sum(run["seconds"].values()) for run in runs],
                    search=(_steps(search["job"], images), sum(search["seconds"].values())) if search else None,
                )
            )
    return found


# What Deep Compression does to a network, in order; coding must change nothing.
STAGES = ("dense", "pruned", "shared", "coded")


@dataclass(frozen=True)
class AfterEachStage:
    """Test error after each stage of the rival, as far as it went, and the size of the file in the end."""

    network: str
    seeds: int
    errors: dict[str, Spread]
    size_bytes: Spread


def after_each_stage(results: Path, network: str) -> AfterEachStage | None:
    """Say whether pruning, sharing and coding interfere: a stage counts when every published seed has it."""
    runs = list(read_results(results, "han2015", network)["han2015"].values())
    if not runs:
        return None
    done = [stage for stage in STAGES if all(stage in run["test"]["error"] for run in runs)]
    sizes = [run["bytes"] for run in runs if "bytes" in run]
    return AfterEachStage(
        network=network,
        seeds=len(runs),
        errors={stage: mean_std(run["test"]["error"][stage] for run in runs) for stage in done},
        size_bytes=mean_std(sizes) if len(sizes) == len(runs) else _NONE,
    )


def _standing(
    network: str,
    method: str,
    runs: Sequence[Result],
    *,
    dense: Mapping[int, float],
    steps: int,
    seconds: Sequence[float],
    search: tuple[int, float] | None,
) -> Standing:
    errors = {run["job"]["seed"]: run["test"]["error"]["final"] for run in runs}
    differences = [errors[seed] - dense[seed] for seed in sorted(errors.keys() & dense.keys())]
    center, spread = mean_std(differences) if differences else _NONE
    return Standing(
        network=network,
        method=method,
        seeds=len(runs),
        dense_error=mean_std(dense.values()) if dense else _NONE,
        error=mean_std(errors.values()),
        difference=(center, spread / math.sqrt(len(differences) or 1)),
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
    return read_published(path) if path.exists() else None
