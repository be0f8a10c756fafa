"""How the number of epochs of the paper preset was chosen: one long run, evaluated on validation images.

The learning rate is constant, so every epoch of one long run is the end of a shorter one.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import torch

from secateur.experiments.presets import preset
from secateur.experiments.runner import run
from secateur.experiments.studies.grid import Places
from secateur.experiments.studies.published import read_history
from secateur.experiments.studies.searches import EpochSearch, epoch_search_path
from secateur.results import write

_EPOCHS = {"lenet-300-100": 70, "lenet-5": 36}
_RATIO = 20.5


def search_epochs(network: str, places: Places) -> Path:
    """Publish the search for the paper preset's epochs: the fewest that prune past 20×, with room for other seeds."""
    path = epoch_search_path(places.results, network)
    if path.exists():
        return path
    torch.set_num_threads(1)
    job = preset("paper", network)
    job = replace(job, recipe=replace(job.recipe, epochs=_EPOCHS[network]))
    directory = run(job, places.runs, data_root=places.data_root, resume=True)
    result, history = directory.read_result(), read_history(directory)
    found = EpochSearch(
        rule=f"the fewest epochs with a ratio of at least {_RATIO}, on validation images, seed 0",
        chosen_epochs=next(point.epoch for point in history if point.ratio >= _RATIO),
        job=job,
        steps=result.steps,
        seconds=result.seconds,
        versions=result.versions,
        history=history,
    )
    return write(path, found)
