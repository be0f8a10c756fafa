"""One protocol for all methods: equal steps and images, every result published, and differences tested in pairs."""

import math
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from made_runs import made_result

from secateur import literature, networks
from secateur.experiments import runner
from secateur.experiments.studies.compare import (
    Comparison,
    Failure,
    SettingSearch,
    fitted,
    operating_points,
    planned,
    setting_search_path,
)
from secateur.experiments.studies.compare_runs import run_entries
from secateur.experiments.studies.compare_summary import difference, next_to_published, ranking, read_points
from secateur.experiments.studies.grid import Places
from secateur.methods import METHODS, Budgeted, Dense, FewValues, Han2015, Method
from secateur.report.tables.compare import compare_tables, in_short, p_value
from secateur.results import (
    EvaluationResult,
    FileResult,
    HistoryPoint,
    PublishedRun,
    RunError,
    packed,
    read,
    unpacked,
    write,
)
from secateur.train.recipe import Recipe
from secateur.train.stage import Stage
from secateur.transfer.statistics import Mean

NETWORK = "lenet-300-100"
DIGITS = Comparison(network=NETWORK, data="digits", epochs=4)


def test_equal_errors_have_an_interval_and_no_p_value_is_written_as_zero():
    assert in_short(Mean(15.2, 0.0), 2, always=True) == "15.20 ± 0.00"
    assert in_short(Mean(26_620, 0.0), 0) == "26,620"
    assert [p_value(each) for each in (0.0, 0.0006, 0.25, math.nan)] == ["< 0.001", "0.001", "0.250", "–"]


# The protocol


@pytest.mark.parametrize("network", [NETWORK, "lenet-5"])
@pytest.mark.parametrize("name", METHODS)
def test_every_method_takes_the_same_number_of_epochs_and_half_of_them_by_the_recipe(name, network):
    model, method = networks.build(network, seed=0), METHODS[name]()
    pipeline, recipe = fitted((Dense(), method) if method.needs_trained else (method,), Recipe(), 30, model)
    assert sum(each.epochs_for(model, recipe) for each in pipeline) == 30
    assert recipe.epochs >= 15


def test_stages_of_a_methods_own_are_shortened_alike_and_refused_if_there_are_too_many():
    model = networks.build("lenet-5", seed=0)
    (method,), recipe = fitted((Han2015(rounds=2, retrain_epochs=9),), Recipe(), 20, model)
    assert (method.retrain_epochs, recipe.epochs) == (2, 12)  # two kinds of layer in two rounds
    with pytest.raises(ValueError, match="4 epochs are too few for the stages of han2015"):
        fitted((Han2015(rounds=5),), Recipe(), 4, model)


def test_a_method_with_a_budget_has_every_ratio_and_any_other_one_point():
    assert operating_points(Budgeted(), (10, 30, 10)) == [10, 30]
    assert operating_points(FewValues(), (10, 30)) == [None]


def test_what_cannot_be_run_is_left_out_with_a_reason_and_the_dense_network_is_always_in(tmp_path):
    entries, refusals = planned(DIGITS, ["budget", "han2015"], [10, 200_000], [0, 1], tmp_path)
    assert [(entry.job.label, entry.ratio, entry.job.seed) for entry in entries] == [
        ("dense", None, 0),
        ("budget", 10, 0),
        ("dense", None, 1),
        ("budget", 10, 1),
    ]
    assert [(refusal.label, refusal.ratio) for refusal in refusals] == [
        ("budget", 200_000),
        ("han2015", 10),
        ("han2015", 200_000),
    ]
    assert len({entry.path(tmp_path) for entry in entries}) == 4
    assert entries[1].path(tmp_path).relative_to(tmp_path).as_posix() == (
        "lenet-300-100-digits/compare-4-epochs/budget-10x-seed00.json"
    )


def test_settings_that_a_published_search_has_chosen_are_used_on_other_data_too(tmp_path):
    search = SettingSearch(
        rule="lowest error", chosen={"levels": 7}, steps=90, seconds=1.0, versions={}, tried=({"levels": 7},)
    )
    write(setting_search_path(tmp_path, NETWORK, "few-values"), search)
    entries, _ = planned(replace(DIGITS, epochs=None), ["few-values"], [], [0], tmp_path)
    assert entries[1].job.methods[1] == FewValues(levels=7)


def test_few_values_follow_every_method_that_does_not_leave_them(tmp_path):
    comparison = replace(DIGITS, epochs=None, few_values=True)
    entries, _ = planned(comparison, ["budget", "joint", "few-values"], [10], [0], tmp_path)
    assert [entry.job.label for entry in entries] == ["dense", "budget+few-values", "joint", "dense+few-values"]
    assert [sum(each.epochs(entry.job.recipe) for each in entry.job.methods) for entry in entries] == [30] * 4


# Runs


@dataclass(frozen=True, kw_only=True)
class Hopeless(Method):
    """Set all weights to zero, or fail."""

    name: ClassVar[str] = "hopeless"
    ratio: float = 2.0

    def with_budget(self, budget):
        return replace(self, ratio=budget.final_ratio)

    def stages(self, model, recipe):
        yield Stage(name="train", model=model, recipe=replace(recipe, epochs=recipe.epochs - 1))
        if self.ratio > 10:
            raise ValueError(f"{self.ratio:g} is too much")
        model.fc3.weight.data.zero_()
        yield Stage(name="rest", model=model, recipe=replace(recipe, epochs=1, lr=0.0), phase="fine-tune", order=3)
        return model

    def epochs(self, recipe):
        return recipe.epochs


def test_a_grid_is_run_resumed_and_shown_and_nothing_is_left_out_because_it_did_badly(tmp_path, monkeypatch):
    monkeypatch.setitem(METHODS, "hopeless", Hopeless)
    begun, train_stage = [], runner.train_stage
    monkeypatch.setattr(
        runner, "train_stage", lambda stage, *rest: begun.append(stage.first_epoch) or train_stage(stage, *rest)
    )
    results, places = tmp_path / "results", Places(tmp_path / "results", tmp_path / "runs")
    entries, _ = planned(DIGITS, ["hopeless"], [5, 20], [0], results)
    assert len(list(run_entries(entries, places, workers=1))) == 3
    assert begun == [0, 0, 3, 0]  # the dense network, both stages of one run, and the first of the other
    assert list(run_entries(entries, places, workers=1)) == []
    dense, hopeless, failed = read_points(DIGITS, results)
    assert dense.steps == hopeless.steps == 40
    assert hopeless.error.value > 80
    assert failed.failures[0].reason == "20 is too much"
    run = hopeless.runs[0]
    assert [point.epoch for point in run.history] == [1, 2, 3, 4]
    assert 100 * unpacked(run.test.wrong, 297).mean() == pytest.approx(run.test_error())
    assert run.work.macs > run.work.sparse_macs > 0
    assert not list(tmp_path.glob("runs/hopeless*/*checkpoint*"))
    errors, costs = compare_tables(DIGITS, results)
    assert [row[0] for row in errors.rows] == ["dense", "hopeless, 5×, missed", "hopeless, 20×"]
    assert "failed: 20 is too much" in errors.rows[2]
    assert costs.rows[0][1:3] == ("266,200", "1.0×")


def test_a_result_of_other_settings_is_not_taken_for_one_of_these(results):
    entries, _ = planned(MNIST, ["budget"], [20], range(4), results)
    assert [entry.is_published(results) for entry in entries[:2] + entries[-1:]] == [True, True, False]
    other = replace(entries[1], job=replace(entries[1].job, recipe=Recipe(epochs=30, lr=2e-3)))
    with pytest.raises(RunError, match=r"budget-20x-seed00\.json has other settings, or is from an older version"):
        other.is_published(results)
    failure = Failure(job=entries[0].job, reason="the loss became nan", versions={})
    write(entries[-1].failed_path(results), failure)
    with pytest.raises(RunError, match=r"failed/budget-20x-seed03\.json has other settings"):
        entries[-1].is_published(results)


# What was found


def publish(results, comparison, label, seed, wrong, ratio=None, share=0.05, images=1000):
    """Publish a run whose network gets these images wrong."""
    entries, _ = planned(comparison, [label], [ratio or 10], [seed], results)
    entry = next(each for each in entries if each.job.label == label)
    flags = np.isin(np.arange(images), list(wrong))
    test = EvaluationResult(errors={"file": 100 * flags.mean()}, images=images, wrong=packed(flags))
    file = FileResult(bytes=5000, dense_bytes=1_066_440)
    write(entry.path(results), PublishedRun(result=made_result(entry.job, share=share, file=file), test=test))


MNIST = Comparison(network=NETWORK, data="mnist")


@pytest.fixture
def results(tmp_path):
    for seed in range(3):
        publish(tmp_path, MNIST, "dense", seed, range(10 + seed), share=1.0)
        publish(tmp_path, MNIST, "budget", seed, range(20 + seed), ratio=20)
        publish(tmp_path, MNIST, "han2015", seed, range(40 + seed), share=0.08)
    return tmp_path


def test_points_are_means_with_intervals_and_differences_are_paired_by_seed_and_by_image(results):
    dense, budget, han = read_points(MNIST, results)
    assert (dense.label, budget.asked, han.asked) == ("dense", 20, 10)
    assert budget.error.value == pytest.approx(2.1)
    assert budget.error.half == pytest.approx(4.302653 * 0.1 / math.sqrt(3), rel=1e-6)
    found = difference(budget, dense)
    assert found.seeds.value == pytest.approx(1.0)
    assert found.seeds.half == pytest.approx(0, abs=1e-9)  # ten more images with every seed
    assert found.images.value == pytest.approx(1.0)
    assert 0 < found.images.p < 0.05


def test_a_method_is_worse_than_the_best_of_its_ratio_only_if_seeds_and_images_say_so(results):
    # Each seed's error is a point above, but on two images that the best network gets wrong and back again.
    for seed in range(3):
        publish_at(results, 20, "joint", seed, range(20 + seed))
        publish_at(results, 20, "manessi2018", seed, range(100, 141 + seed))
    ranked = {each.point.label: each for each in ranking(read_points(MNIST, results)) if each.point.asked == 20}
    assert list(ranked) == ["budget", "joint", "manessi2018"]
    assert (ranked["budget"].is_worse, ranked["joint"].is_worse, ranked["manessi2018"].is_worse) == (None, False, True)
    errors, *_ = compare_tables(MNIST, results)
    said = "At 20× budget is best with 2.10 %; 1 of 2 others is significantly worse, which cannot be said of joint."
    assert said in errors.note


def test_a_point_that_kept_more_than_asked_for_has_missed_it_and_is_not_the_best(results):
    for seed in range(3):
        publish(results, MNIST, "budget", seed, range(5), ratio=60)
    [missed] = [each for each in ranking(read_points(MNIST, results)) if each.point.asked == 60]
    assert not missed.point.is_met
    assert missed.to_best is None
    assert compare_tables(MNIST, results)[0].rows[3][0] == "budget, 60×, missed"


def publish_at(results, ratio, label, seed, wrong, **settings):
    """Publish a run of a method that takes no ratio as if it did."""
    publish(results, MNIST, label, seed, wrong, **settings)
    path = results / NETWORK / "compare" / f"{label}-seed{seed:02d}.json"
    path.rename(path.with_name(f"{label}-{ratio}x-seed{seed:02d}.json"))


def test_a_point_that_missed_its_ratio_is_not_worse_than_the_best_for_having_less_error(results):
    for seed in range(3):
        publish_at(results, 20, "manessi2018", seed, range(5), share=1.0)
    ranked = {each.point.label: each for each in ranking(read_points(MNIST, results)) if each.point.asked == 20}
    assert list(ranked) == ["manessi2018", "budget"]
    assert ranked["manessi2018"].to_best.seeds.value == pytest.approx(-1.6)
    assert ranked["manessi2018"].is_worse is False
    assert (
        "At 20× budget is best with 2.10 %; 0 of 1 others are significantly worse"
        in compare_tables(MNIST, results)[0].note
    )


def test_nothing_is_best_where_no_method_has_reached_the_ratio(results):
    for seed in range(3):
        publish(results, MNIST, "budget", seed, range(5), ratio=60)
        publish_at(results, 60, "manessi2018", seed, range(9))
    assert "At 60× no method reached the ratio with every seed." in compare_tables(MNIST, results)[0].note


def test_a_method_that_failed_with_a_seed_is_not_the_best(results):
    for seed in range(2):
        publish_at(results, 20, "manessi2018", seed, range(5))
    [entry] = planned(MNIST, ["budget"], [20], [2], results)[0][1:]
    reason = Failure(job=entry.job, reason="the loss became nan", versions={})
    write(results / NETWORK / "compare" / "failed" / "manessi2018-20x-seed02.json", reason)
    ranked = {each.point.label: each for each in ranking(read_points(MNIST, results)) if each.point.asked == 20}
    assert ranked["budget"].to_best is None
    assert ranked["manessi2018"].to_best is not None
    rows = compare_tables(MNIST, results)[0].rows
    assert ("manessi2018, 20×", "2, 1 failed") in [row[:2] for row in rows], rows


def test_what_has_one_seed_in_common_with_the_best_is_said_not_to_be_tested(results):
    publish_at(results, 20, "manessi2018", 0, range(100, 190))
    said = "0 of 1 others are significantly worse, which cannot be said of manessi2018 (not tested: too few seeds)."
    assert said in compare_tables(MNIST, results)[0].note


def test_published_results_stand_next_to_the_nearest_point_of_the_same_method(results):
    [found] = next_to_published(MNIST, read_points(MNIST, results))
    assert (found.published.method, found.ours.label) == (literature.HAN, "han2015")
    row = compare_tables(MNIST, results)[-1].rows[0]
    assert row[:2] == ("Han et al. 2015", "1.59")
    assert row[-1].startswith("Dense network there 1.64 %, here 1.10 %. Here 30 epochs by one recipe")


@pytest.mark.parametrize("name", [name for name, kind in METHODS.items() if kind.published_as])
def test_a_method_is_published_under_a_name_that_the_literature_has(name):
    assert METHODS[name].published_as in {each.method for each in literature.RESULTS}


@given(flags=st.lists(st.booleans(), min_size=1))
def test_answers_are_packed_without_loss(flags):
    assert unpacked(packed(flags), len(flags)).tolist() == flags
    with pytest.raises(ValueError, match="bits for"):
        unpacked(packed(flags), len(flags) + 8)


def test_the_page_shows_tables_charts_and_the_command(results):
    pytest.importorskip("bokeh", reason="the report extra is not installed")
    from secateur.report.page.compare_page import comparison_content, write_comparison_page

    content = comparison_content(MNIST, read_points(MNIST, results))
    assert [chart.name for chart in content.charts] == ["compare-kept", "compare-bytes"]
    kept = content.charts[0].columns
    place = kept["method"].index("budget")
    assert (kept["weights kept"][place], kept["error %"][place]) == pytest.approx((13_310, 2.1))
    assert literature.HAN in kept["method"]
    assert content.command == (
        "secateur compare lenet-300-100 --data mnist --methods budget han2015 --ratio 10 20 --seeds 3"
    )
    page = write_comparison_page(MNIST, results, results / "page.html").read_text()
    assert "Methods compared: lenet-300-100 on mnist" in page
    for part in ('id="table-errors"', 'id="table-costs"', 'id="table-published"', 'id="chart-compare-kept"'):
        assert part in page


def test_error_against_steps_is_the_mean_over_seeds_of_the_epochs_that_all_have(results):
    pytest.importorskip("bokeh", reason="the report extra is not installed")
    from secateur.report.page.compare_charts import steps_chart

    for path in sorted((results / NETWORK / "compare").glob("*.json")):
        run = read(PublishedRun, path)
        errors = range(4 + run.seed, run.seed, -1) if run.seed < 2 else (9.0, 8.0)
        history = tuple(HistoryPoint(epoch=number, error=error, ratio=1.0) for number, error in enumerate(errors, 1))
        write(path, replace(run, history=history))
    chart = steps_chart(read_points(MNIST, results), 20)
    assert chart.columns["method"] == ["dense"] * 2 + ["budget"] * 2
    assert chart.columns["steps"][:2] == [10, 20]
    assert chart.columns["validation error %"][:2] == pytest.approx([(4 + 5 + 9) / 3, (3 + 4 + 8) / 3])
