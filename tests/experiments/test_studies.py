"""Summaries over seeds, on runs written by hand, and the runs of studies on handwritten digits."""

import math
from dataclasses import replace
from pathlib import Path

import pytest

from secateur import data, literature
from secateur.budget import Budget
from secateur.experiments import presets
from secateur.experiments.presets import preset
from secateur.experiments.studies import (
    curve,
    curve_summary,
    decay,
    epochs,
    error_increase,
    rival,
    sensitivity,
    sensitivity_summary,
    together,
    together_summary,
)
from secateur.experiments.studies.comparison import standings
from secateur.experiments.studies.decay_summary import DecayStudy, summarize_decay
from secateur.experiments.studies.error_increase_summary import (
    ErrorIncreaseStudy,
    Swept,
    error_increase_path,
    error_increases,
)
from secateur.experiments.studies.grid import Places, jobs, publish_run, run_missing
from secateur.experiments.studies.published import read_runs, result_path
from secateur.experiments.studies.searches import EpochSearch, QualitySearch, epoch_search_path
from secateur.experiments.studies.summaries import (
    largest_layers_prune_most,
    layer_sizes,
    mean_std,
    summarize,
    summarize_files,
)
from secateur.methods import Budgeted, FewValues, Han2015, Manessi2018
from secateur.results import (
    EvaluationResult,
    FileResult,
    LayerResult,
    PublishedRun,
    RunError,
    RunResult,
    StageResult,
    read,
    write,
)
from secateur.train.recipe import Recipe

NETWORK = "lenet-300-100"


def published(results: Path, job, error: float, kept: int = 1, file_bytes: int | None = None, **errors: float) -> None:
    """Publish a run whose finished network has this test error."""
    final = job.methods[-1].leaves if file_bytes is None else "file"
    layers = (("fc1.weight", 1000, kept), ("fc2.weight", 100, 20 + job.seed), ("fc3.weight", 10, 5))
    result = RunResult(
        job=job,
        errors={final: error},
        weights=100,
        kept=kept,
        layers=tuple(LayerResult(name=n, shape=(size,), weights=size, kept=left) for n, size, left in layers),
        stages=(
            StageResult(name="train", epochs=3, steps=30, seconds=60),
            StageResult(name="fine-tune", epochs=1, steps=10, seconds=30 * job.seed),
        ),
        file=None if file_bytes is None else FileResult(bytes=file_bytes, dense_bytes=400),
        training_images=55_000,
    )
    test = EvaluationResult(errors={**errors, final: error}, images=10_000)
    write(result_path(results, job), PublishedRun(result=result, test=test))


@pytest.fixture
def results(tmp_path):
    for seed, error, kept in ((0, 1.5, 10), (1, 1.7, 20), (2, 1.9, 30)):
        published(tmp_path, preset("paper", NETWORK, seed=seed), error, kept, raw=error + 1)
    for seed, error in ((0, 1.4), (1, 1.8), (2, 1.7), (3, 9.9)):
        published(tmp_path, preset("paper", NETWORK, seed=seed).reference(), error)
    return tmp_path


# Statistics


def test_mean_and_deviation_are_those_of_a_sample():
    assert mean_std([1, 2, 3, 4]) == pytest.approx((2.5, math.sqrt(5 / 3)))
    assert mean_std([7])[0] == 7
    assert math.isnan(mean_std([7])[1])
    assert mean_std([1, math.nan, 3])[0] == 2
    assert all(map(math.isnan, mean_std([])))


def test_a_row_sums_up_the_seeds(results):
    row = summarize(results, "paper", NETWORK)
    assert (row.seeds, row.dense_seeds, row.label, row.steps) == (3, 4, "manessi2018", 40)
    assert row.error == pytest.approx((1.7, 0.2))
    assert row.raw_error == pytest.approx((2.7, 0.2))
    assert row.kept == pytest.approx((20, 10))
    assert row.ratio == pytest.approx((55 / 9, mean_std([10, 5, 10 / 3])[1]))
    assert row.layers["fc1.weight"] == pytest.approx((98, 1))
    assert row.layers["fc3.weight"] == (50, 0)
    assert row.seconds == pytest.approx((90, 30))
    assert row.training_images == 55_000


def test_differences_are_paired_by_seed_and_have_a_standard_error(results):
    # +0.1, −0.1, +0.2: the dense seed 3 has no partner.
    expected = (0.2 / 3, math.sqrt(((0.1 - 1 / 15) ** 2 + (0.1 + 1 / 15) ** 2 + (0.2 - 1 / 15) ** 2) / 2 / 3))
    row = summarize(results, "paper", NETWORK)
    assert row.difference == pytest.approx(expected)
    assert row.raw_difference == pytest.approx((expected[0] + 1, expected[1]))


def test_without_seeds_there_is_no_row_and_without_partners_no_difference(tmp_path):
    assert summarize(tmp_path, "paper", NETWORK) is None
    assert summarize_files(tmp_path, "paper", NETWORK) is None
    published(tmp_path, preset("paper", NETWORK), 1.5)
    row = summarize(tmp_path, "paper", NETWORK)
    assert all(math.isnan(value) for value in (*row.difference, *row.dense_error))


def test_a_run_that_starts_from_a_dense_network_is_compared_with_that_one(tmp_path):
    for seed in (0, 1):
        published(tmp_path, preset("han2015", NETWORK, seed=seed), 2.0 + seed, dense=1.5)
    row = summarize(tmp_path, "han2015", NETWORK)
    assert row.dense_error == (1.5, 0)
    assert row.difference == pytest.approx((1.0, 0.5))


def test_files_have_the_error_of_their_networks_before_coding_and_of_the_dense_network(results):
    for seed in (0, 1):
        whole = preset("paper", NETWORK, seed=seed, to_file=True)
        published(results, whole, 2.0, kept=10, file_bytes=20, pruned=1.6, shared=2.0)
    row = summarize_files(results, "paper", NETWORK)
    assert (row.codec, row.files.seeds, row.files.ratio, row.files.bits_per_weight_kept) == ("huffman", 2, 20, 16)
    assert row.files.error == (2.0, 0)
    assert row.files.error_pruned == pytest.approx((1.6, mean_std([1.5, 1.7])[1]))
    assert row.dense_error == summarize(results, "paper", NETWORK).dense_error
    assert row.errors == {"pruned": (1.6, 0), "shared": (2.0, 0), "file": (2.0, 0)}


def test_a_damaged_result_is_named(tmp_path):
    path = tmp_path / NETWORK / "paper" / "manessi2018-seed00.json"
    path.parent.mkdir(parents=True)
    for content in ("{", "{}", "[1]"):
        path.write_text(content)
        with pytest.raises(RunError, match=r"manessi2018-seed00\.json is damaged"):
            summarize(tmp_path, "paper", NETWORK)


def test_presets_stand_side_by_side_with_what_their_search_has_cost(results):
    for seed in (0, 1):
        published(results, preset("han2015", NETWORK, seed=seed), 2.0, dense=1.5)
    found = EpochSearch(
        rule="", chosen_epochs=5, job=preset("paper", NETWORK), steps=300, seconds=9.0, versions={}, history=()
    )
    write(epoch_search_path(results, NETWORK), found)
    rows = [(each.row.preset, each.row.label, each.search_steps) for each in standings(results, NETWORK)]
    assert rows == [("paper", "manessi2018", 300), ("han2015", "han2015", None)]


def test_the_order_of_layers_by_size_is_compared_with_that_by_share_pruned(results):
    row = summarize(results, "paper", NETWORK)
    assert largest_layers_prune_most(row, {"fc1.weight": 1000, "fc2.weight": 100, "fc3.weight": 10})
    assert not largest_layers_prune_most(row, {"fc1.weight": 1, "fc2.weight": 100, "fc3.weight": 10})
    assert layer_sizes(NETWORK) == {"fc1.weight": 235_200, "fc2.weight": 30_000, "fc3.weight": 1_000}


# Runs


@pytest.fixture
def digits(monkeypatch):
    """Presets of one epoch on digits."""
    tiny = presets.Preset(
        method=Manessi2018(rho=0.2), recipe=Recipe(epochs=1), few_values=FewValues(levels=6, quantize_epochs=1)
    )
    han = replace(
        tiny, method=Han2015(quality=0.8, rounds=2, retrain_epochs=1), recipe=Recipe(epochs=2, batch_size=100)
    )
    quick = replace(tiny, method=Budgeted(budget=Budget(ratio=10)), recipe=Recipe(epochs=3, optimizer="sgd", lr=0.1))
    made = {"paper": tiny, "han2015": han, "quick": quick, "best": quick}
    monkeypatch.setattr(presets, "_PRESETS", {name: {NETWORK: each} for name, each in made.items()})
    monkeypatch.setattr(presets.preset, "__kwdefaults__", presets.preset.__kwdefaults__ | {"data": "digits"})
    monkeypatch.setattr(literature, "paper_data", lambda network: "digits")


def places(root: Path) -> Places:
    return Places(root / "results", root / "runs")


def test_what_is_missing_is_run_and_what_is_published_is_not(tmp_path, digits):
    wanted = jobs("paper", NETWORK, [0])
    names = [path.name for path in run_missing(wanted, places(tmp_path), workers=1)]
    assert names == ["manessi2018-seed00.json", "dense-seed00.json"]
    assert list(run_missing(wanted, places(tmp_path), workers=1)) == []
    row = summarize(tmp_path / "results", "paper", NETWORK)
    error, reference = (
        read_runs(tmp_path / "results", NETWORK, "paper", label)[0].test_error() for label in ("manessi2018", "dense")
    )
    assert row.difference[0] == pytest.approx(error - reference)


def test_a_published_run_holds_configuration_versions_time_and_history(tmp_path, digits):
    [job, _] = jobs("paper", NETWORK, [2])
    run = read(PublishedRun, publish_run(job, places(tmp_path)))
    assert run.result.job == job
    assert run.result.versions["python"]
    assert run.result.seconds > 0
    assert (run.test.images, run.seed) == (297, 2)
    assert [point.epoch for point in run.history] == [1]


def test_workers_of_their_own_give_the_same_result(tmp_path):
    tiny = replace(preset("paper", NETWORK, data="digits").reference(), recipe=Recipe(epochs=1))
    for workers, place in ((1, tmp_path / "here"), (2, tmp_path / "there")):
        assert len(list(run_missing([tiny], places(place), workers=workers))) == 1
    here, there = sorted(tmp_path.glob("*/runs/*/model.safetensors"))
    assert here.read_bytes() == there.read_bytes()


def test_the_sensitivity_study_reads_no_test_image(tmp_path, digits, monkeypatch):
    asked = []
    load = data.load
    monkeypatch.setattr(
        data, "load", lambda name, split, *rest, **more: asked.append(split) or load(name, split, *rest)
    )
    monkeypatch.setattr(sensitivity, "QUANTILES", (0.0, 0.1))
    wanted = sensitivity.sensitivity_jobs(NETWORK, [0])
    paths = run_missing(
        wanted,
        places(tmp_path),
        workers=1,
        work=sensitivity.publish_sensitivity,
        path=sensitivity.sensitivity_path,
    )
    assert [path.name for path in paths] == ["manessi2018-p=0-seed00.json", "manessi2018-p=0.1-seed00.json"]
    assert set(asked) == {"train"}
    found = sensitivity_summary.sensitivity(tmp_path / "results", NETWORK)
    assert [each.name for each in found[:3]] == ["p = 0", "p = 0.1", "γ = 1e-05"]


def test_the_decay_study_trains_each_decay_once(tmp_path, digits, monkeypatch):
    monkeypatch.setattr(decay, "_LEVELS", (4, 6))
    [path] = decay.run_decay_study(NETWORK, [0], places(tmp_path))
    study = read(DecayStudy, path)
    assert [(file.lambda_wd, file.levels) for file in study.files] == [(0.0, 4), (0.0, 6), (1e-4, 4), (1e-4, 6)]
    assert len({file.errors["pruned"] for file in study.files[:2]}) == 1
    rows = summarize_decay(tmp_path / "results", NETWORK)
    assert [(row.lambda_wd, row.levels, row.files.seeds) for row in rows] == [
        (f.lambda_wd, f.levels, 1) for f in study.files
    ]
    assert list(decay.run_decay_study(NETWORK, [0], places(tmp_path))) == []


def test_the_search_for_epochs_chooses_the_fewest_past_the_ratio(tmp_path, digits, monkeypatch):
    monkeypatch.setattr(epochs, "_EPOCHS", {NETWORK: 3})
    monkeypatch.setattr(epochs, "_RATIO", 1.0)
    found = read(EpochSearch, epochs.search_epochs(NETWORK, places(tmp_path)))
    assert (found.chosen_epochs, len(found.history), found.steps) == (1, 3, 30)


@pytest.mark.parametrize("path", sorted((Path(__file__).parents[2] / "results").glob("*/paper/search.json")), ids=str)
def test_the_papers_epochs_are_those_that_the_published_search_chose(path):
    search = read(EpochSearch, path)
    assert preset("paper", search.job.network).recipe.epochs == search.chosen_epochs


@pytest.mark.parametrize("path", sorted((Path(__file__).parents[2] / "results").glob("*/han2015/search.json")), ids=str)
def test_the_quality_is_the_one_that_the_published_search_chose(path):
    search = read(QualitySearch, path)
    method = preset("han2015", search.job.network).methods[0]
    assert {"quality": method.quality, "rounds": method.rounds} == search.chosen


# The search for Han et al.'s quality


def search(tmp_path, monkeypatch, tolerated):
    monkeypatch.setattr(rival, "_QUALITIES", (0.3, 0.8))
    monkeypatch.setattr(rival, "_MOST_ROUNDS", 2)
    monkeypatch.setattr(rival, "_TOLERATED", tolerated)
    return read(QualitySearch, rival.search_quality(NETWORK, places(tmp_path)))


def test_the_search_chooses_the_fewest_weights_that_cost_no_more_than_tolerated(digits, tmp_path, monkeypatch):
    found = search(tmp_path, monkeypatch, 2.0)
    good = [tried for tried in found.history if tried.error <= found.dense.error + 2.0]
    best = min(good, key=lambda tried: tried.kept)
    assert found.chosen == {"quality": best.quality, "rounds": best.rounds}


def test_the_search_counts_the_dense_network_once_and_all_that_was_tried(digits, tmp_path, monkeypatch):
    found = search(tmp_path, monkeypatch, 100.0)
    assert (found.dense.steps, len(found.history)) == (24, 4)  # two epochs of 1,200 images; two qualities, two rounds
    assert found.steps == 24 + 4 * 12
    assert [tried.steps for tried in found.history] == [36, 48, 36, 48]


def test_a_quality_that_has_lost_too_much_is_given_up(digits, tmp_path, monkeypatch):
    with pytest.raises(RunError, match="no quality of"):
        search(tmp_path, monkeypatch, -100.0)
    tried = sorted(path.name for path in (tmp_path / "runs").glob("*/quality*.jsonl"))
    assert tried == ["quality=0.3-round=1-fc.jsonl", "quality=0.8-round=1-fc.jsonl"]


def test_the_rivals_that_learn_together_have_the_bytes_of_one_after_the_other(tmp_path, digits, monkeypatch):
    monkeypatch.setattr(together, "RATIO", 10.0)
    [job] = together.together_jobs(NETWORK, [0])
    together.publish_together(job, places(tmp_path))
    first, rate, plain = together_summary.together(tmp_path / "results", NETWORK)
    assert [way.label for way in (first, rate, plain)] == ["budget+few-values", "joint-rate", "joint-no-rate"]
    assert first.kept[0] <= 266_200 // 10
    for way in (rate, plain):
        assert way.size_bytes[0] == pytest.approx(first.size_bytes[0], rel=0.03)
        assert way.estimate_off < 0.03
        assert set(way.layer_bits) == {"fc1.weight", "fc2.weight", "fc3.weight"}


def test_a_curve_of_alexnet_is_run_on_imagenette_by_its_quick_preset():
    dense, pruned = curve.curve_jobs("alexnet", [0])
    assert (dense.data, dense.preset, dense.label) == ("imagenette", "quick", "dense")
    assert pruned.methods[1].budget.ratio == 12


@pytest.mark.parametrize(
    ("workers", "rounds"),
    [
        (1, [[(0, 1), (0, 3), (0, 4), (1, 1), (1, 3), (1, 4)]]),
        (2, [[(0, 1), (1, 1)], [(0, 3), (1, 3)], [(0, 4), (1, 4)]]),
    ],
)
def test_one_worker_finishes_a_seed_of_a_curve_before_the_next(workers, rounds):
    wanted = curve.curve_jobs("resnet-20", range(2))
    found = curve.in_rounds(wanted, workers)
    assert [[(job.seed, len(job.methods)) for job in part] for part in found] == rounds


def test_networks_of_a_curve_continue_from_the_one_before(tmp_path, digits, monkeypatch):
    chosen = curve_summary.Curve(ratios={5.0: 8, 10.0: 6}, data="digits")
    for module in (curve, curve_summary):
        monkeypatch.setattr(module, "CURVES", {NETWORK: chosen})
    wanted = curve.curve_jobs(NETWORK, [0])
    assert [job.label for job in wanted] == ["dense", "dense+budget+few-values", "dense+budget+budget+few-values"]
    for job in wanted:
        curve.publish_point(job, places(tmp_path))
    first, second = curve_summary.curve(tmp_path / "results", NETWORK)
    assert [point.kept[0] for point in (first, second)] == [53_240, 26_620]
    assert second.epochs == (*first.epochs, 6)
    assert first.dense_error[0] == second.dense_error[0]
    runs = sorted((tmp_path / "runs").iterdir())
    assert len({(run / "train.checkpoint.safetensors").read_bytes() for run in runs}) == 1
    dense = read_runs(tmp_path / "results", NETWORK, "curve", "dense", "digits")[0]
    assert dense.test_error() == first.dense_error[0]
    assert first.difference[0] == pytest.approx(first.pruned_error[0] - first.dense_error[0])
    assert first.pruned_shares.keys() == {"fc1.weight", "fc2.weight", "fc3.weight"}


def test_a_curve_has_a_dense_network_that_was_trained_for_as_long(tmp_path, digits, monkeypatch):
    monkeypatch.setattr(curve_summary, "CURVES", {NETWORK: curve_summary.Curve(ratios={5.0: 3}, data="digits")})
    job = curve_summary.longer_job(NETWORK, 0)
    short = replace(job, recipe=replace(job.recipe, epochs=2))
    assert curve_summary.longer(tmp_path / "results", NETWORK) is None
    run = curve.publish_point(short, places(tmp_path))
    assert job.recipe.epochs == preset("best", NETWORK).recipe.epochs + 3
    assert run.name == "dense-seed00.json"
    run.rename(curve_summary.curve_path(tmp_path / "results", job))
    found = curve_summary.longer(tmp_path / "results", NETWORK)
    assert (found.epochs, found.seeds, found.weights) == (2, 1, 266_200)
    assert 0 < found.error[0] < 100


def allowed(ratio, error, *swept):
    return ErrorIncreaseStudy(
        job=preset("quick", NETWORK),
        increase=0.3,
        dense_error=1.2,
        error=error,
        ratio=ratio,
        swept=tuple(Swept(ratio=each, error=its) for each, its in swept),
        seconds=1.0,
    )


@pytest.mark.parametrize(
    ("study", "is_kept", "best"),
    [
        (allowed(50, 1.5, (57, 1.6), (66, 1.7)), True, 50),
        (allowed(50, 1.4, (57, 1.5), (66, 1.7)), True, 57),
        (allowed(50, 1.4, (57, 1.6), (66, 1.5)), True, 66),
        (allowed(50, 1.52, (57, 1.6)), False, 50),
    ],
)
def test_a_sweep_finds_the_largest_ratio_that_the_error_allows(study, is_kept, best):
    assert study.is_kept == is_kept
    assert study.best_ratio == best


def test_a_budget_of_error_is_swept_at_larger_ratios_than_it_reached(tmp_path, digits, monkeypatch):
    monkeypatch.setattr(error_increase, "_LARGER", (1.5,))
    [job] = error_increase.error_increase_jobs(NETWORK, [0])
    path = error_increase.publish_error_increase(job, places(tmp_path))
    [study] = error_increases(tmp_path / "results", NETWORK)
    assert path == error_increase_path(tmp_path / "results", job)
    assert study.swept[0].ratio == pytest.approx(1.5 * study.ratio, rel=0.01)
    assert study.dense_error > 0
