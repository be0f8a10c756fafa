"""The numbers of the paper's figures, against closed forms and against the networks they were counted in."""

import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn

from secateur.experiments.models import load_model
from secateur.experiments.presets import preset
from secateur.experiments.runner import run
from secateur.experiments.studies import figures
from secateur.experiments.studies.figures import (
    describe_weights,
    hard_views,
    histogram,
    run_gathering,
    share_near,
    smooth_views,
)
from secateur.experiments.studies.gathering import GatheringStudy, TrainedWeights, Views, figure_path, gathering
from secateur.experiments.studies.grid import Places
from secateur.results import read

ROOT = Path(__file__).parents[2]


def sigmoid(x):
    return 1 / (1 + math.exp(-x))


def at(view, place):
    index = view.at.index(place)
    return view.value[index], view.slope[index]


# The numbers


def test_figure_1_shows_the_formula_of_the_paper():
    by_x, by_t = smooth_views().views
    for x in (-3.0, -2.0, -1.9, 0.0, 1.5, 2.0, 2.2, 4.0):
        expected = max(x - 2, 0) + 2 * sigmoid(10 * (x - 2)) - max(-x - 2, 0) - 2 * sigmoid(10 * (-x - 2))
        assert at(by_x, x)[0] == pytest.approx(expected, abs=1e-6)
    for t in (0.0, 1.0, 1.9, 2.0, 2.1, 4.0):
        expected = max(2 - t, 0) + t * sigmoid(10 * (2 - t)) - t * sigmoid(10 * (-2 - t))
        assert at(by_t, t)[0] == pytest.approx(expected, abs=1e-6)


def test_the_slopes_of_figure_1_are_differences_of_its_values_away_from_the_jumps():
    for view in smooth_views().views:
        places, values, slopes = view.at, view.value, view.slope
        for i in range(1, len(places) - 1):
            if abs(abs(places[i]) - 2) > 0.05:
                assert (values[i + 1] - values[i - 1]) / 0.04 == pytest.approx(slopes[i], abs=0.03)


def test_figure_2_is_the_identity_outside_the_threshold_and_zero_inside():
    by_x, by_t = hard_views().views
    assert all(at(by_x, x) == ((x, 1) if abs(x) >= 2 else (0, 0)) for x in by_x.at)
    assert all(at(by_t, t) == (2 if t <= 2 else 0, 0) for t in by_t.at)


def test_weights_within_a_tenth_of_the_threshold_count_as_near():
    assert share_near(torch.tensor([0.5, -0.46, 0.54, 0.44, -0.56, 1.0, 0.0, 0.5]), 0.5) == 0.5


def test_a_histogram_counts_every_weight_in_the_bin_it_belongs_to():
    counts = histogram(torch.tensor([-2.0, -1.0, -0.005, 0.0, 0.009, 0.999, 7.0]))
    assert (len(counts), sum(counts)) == (200, 7)
    assert (counts[0], counts[99], counts[100], counts[199]) == (2, 1, 2, 2)


def networks(*shares):
    """Figure 3 in small: for every seed the share near the threshold with decay and without."""
    entries = [
        TrainedWeights(
            lambda_wd=decay,
            seed=seed,
            threshold=0.1,
            weights=10,
            kept=5,
            near=share,
            near_mapped=share,
            within_20_percent=share,
            median=1.1,
            survivors=(),
            cut=(),
        )
        for seed, pair in enumerate(shares)
        for decay, share in zip((1e-4, 0.0), pair, strict=True)
    ]
    return GatheringStudy(
        job=preset("paper", "lenet-300-100"), layer="fc1.weight", bin=0.01, versions={}, networks=tuple(entries)
    )


def test_the_gathering_is_a_mean_with_its_standard_error_paired_by_seed():
    found = gathering(networks((0.5, 0.2), (0.7, 0.3)))
    assert found.seeds == 2
    assert found.with_decay == pytest.approx((0.6, 0.1))
    assert found.without_decay == pytest.approx((0.25, 0.05))
    assert found.difference == pytest.approx((0.35, 0.05))


@pytest.mark.parametrize(
    ("shares", "appears"),
    [(((0.5, 0.2), (0.7, 0.3)), True), (((0.5, 0.2), (0.3, 0.4)), False), (((0.1, 0.2), (0.1, 0.2)), False)],
)
def test_the_gathering_appears_when_the_difference_is_above_twice_its_error(shares, appears):
    found = gathering(networks(*shares))
    assert found.appears is appears
    assert ("does not show" in found.sentence) is not appears


def test_one_seed_is_no_proof_of_a_gathering():
    assert not gathering(networks((0.9, 0.1))).appears


def test_figure_3_without_a_network_says_how_to_get_one():
    with pytest.raises(ValueError, match="reproduce figure3 --seeds 5"):
        gathering(networks())


def test_the_published_numbers_of_figures_1_and_2_are_what_the_code_computes():
    for figure, compute in (("figure1", smooth_views), ("figure2", hard_views)):
        assert read(Views, figure_path(ROOT / "results", figure)) == compute(), f"reproduce {figure}"


# From runs to numbers


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Figure 3 of two seeds of a very short training: where it is published, and the job of the first seed."""
    root = tmp_path_factory.mktemp("figure3")
    short = preset("paper", "lenet-300-100", data="digits")
    [method] = short.methods
    short = replace(short, methods=(replace(method, rho=0.2),), recipe=replace(short.recipe, epochs=1))
    places = Places(results=root / "results", runs=root / "runs")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(figures, "preset", lambda name, network, *, seed=0: replace(short, seed=seed))
        assert len(list(run_gathering(range(2), places))) == 2
        once = figure_path(places.results, "figure3").read_bytes()
        patch.setattr(figures, "run", None)  # nothing is trained again
        assert list(run_gathering(range(2), places)) == []
        assert figure_path(places.results, "figure3").read_bytes() == once
    return places, short


def test_figure_3_counts_the_weights_of_the_networks_that_were_trained(trained):
    places, job = trained
    study = read(GatheringStudy, figure_path(places.results, "figure3"))
    assert [(entry.lambda_wd, entry.seed) for entry in study.networks] == [(1e-4, 0), (1e-4, 1), (0.0, 0), (0.0, 1)]
    directory = run(job, places.runs)
    layer = load_model(directory.model).fc1
    assert isinstance(layer, nn.Linear)
    kept = int((layer.weight != 0).sum())
    entry = study.networks[0]
    assert describe_weights(directory) == entry
    assert (entry.kept, sum(entry.survivors)) == (kept, kept)
    assert sum(entry.survivors) + sum(entry.cut) == entry.weights == 235_200


def test_the_published_figure_3_has_five_seeds_of_the_settings_in_the_paper():
    study = read(GatheringStudy, figure_path(ROOT / "results", "figure3"))
    [method] = study.job.methods
    assert gathering(study).seeds == 5
    assert (method.sibling.alpha, method.cutoff) == (100, 1e-3)
    assert all(sum(entry.survivors) == entry.kept for entry in study.networks)
