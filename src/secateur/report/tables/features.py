"""AlexNet on features of its pretrained convolutions: the columns of table 1 and the rows of table 2."""

from __future__ import annotations

from math import isnan
from pathlib import Path

import torch

from secateur import networks
from secateur.experiments.studies.feature_summary import NETWORK, FeatureStudy, feature_paths
from secateur.report.tables.grid import Grid
from secateur.results import PublishedRun, read
from secateur.sibling import targets

# What the paper calls the layers of AlexNet, in torchvision's order.
_AS_PRINTED = {
    **{f"features.{index}.weight": f"conv{number}" for number, index in enumerate((0, 3, 6, 8, 10), start=1)},
    **{f"classifier.{index}.weight": f"fc{number}" for number, index in enumerate((1, 4, 6), start=6)},
}


def feature_tables(results: Path, study: FeatureStudy) -> list[Grid]:
    """Show the dense and the pruned linear layers and the whole network, and how much each layer keeps."""
    runs = {name: read(PublishedRun, path) for name, path in feature_paths(results, study).items() if path.exists()}
    header = (
        "trained",
        "top-1 error %",
        "top-5 error %",
        "weights",
        "weights kept",
        "ratio",
        "whole network",
        "minutes",
    )
    rows = tuple(_row(name, run) for name, run in runs.items())
    note = (
        f"On the test pictures of {study.data}, seed {study.seed}. The linear layers are trained on features of the "
        "pretrained convolutions, whose weights count in the last two rows and in the ratio of the whole network. "
        "Layers that are not pruned from random weights continue the dense ones for as many epochs again, and from one "
        f"ratio to the next for {study.further_epochs}. Deep Compression continues the dense ones too, and its layers "
        "have 32 values."
    )
    layers = tuple(
        (
            f"{name}: {_AS_PRINTED.get(layer.name, layer.name)}",
            f"{layer.weights:,}",
            f"{100 * (1 - layer.kept / layer.weights):.1f}",
        )
        for name, run in runs.items()
        if run.result.ratio > 1
        for layer in run.result.layers
    )
    return [
        Grid("AlexNet on features of its pretrained convolutions", header, rows, note),
        Grid("AlexNet on features: share of the weights pruned, by layer", ("layer", "weights", "pruned %"), layers),
    ]


def _row(name: str, run: PublishedRun) -> tuple[str, ...]:
    found = run.result
    errors = ("–" if isnan(error) else f"{error:.2f}" for error in (run.test_error(), run.test_top5_error()))
    fixed = 0 if found.job.network == NETWORK else _convolution_weights()
    whole = (fixed + found.weights) / (fixed + found.kept)
    size = f"{found.weights:,}", f"{found.kept:,}", f"{found.ratio:.1f}×", f"{whole:.1f}×"
    return name, *errors, *size, f"{found.seconds / 60:.0f}"


def _convolution_weights() -> int:
    with torch.device("meta"):
        model = networks.build(NETWORK)
    return sum(target.weights for target in targets(model.get_submodule("features")))
