"""Runs of `secateur.compress`: any network on any data, measured by its wrong answers or by its mean loss."""

import html
import io
import json
import re
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from commands import sentence
from made_runs import JOB, made_line, made_result, write_made_run
from rich.console import Console
from torch import nn

import secateur
from secateur.experiments.directory import RunDirectory
from secateur.experiments.training import measure_progress
from secateur.integrations.hub import model_card, write_hub_folder
from secateur.job import GIVEN
from secateur.report.commands import command as command_of
from secateur.report.terminal import epoch_line, print_layers, print_outcome
from secateur.report.wording import Wording
from secateur.results import ERROR, LOSS, figure, write

pytest.importorskip("bokeh", reason="the report extra is not installed")

from secateur.report.page import render_page

MISPLACED = re.compile(r"error|%|images|paper|secateur (evaluate|bench|prune|compress )|--reference", re.IGNORECASE)


def compressed(directory, labels, **settings):
    """The run of a tiny network that learns `labels` from the numbers 0 to 63 in six columns."""
    torch.manual_seed(0)
    x = torch.arange(64 * 6).view(64, 6).sin()
    batches = [(part, labels(part)) for part in x.split(16)]
    model = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, settings.pop("outputs")))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    loss = settings.get("loss", nn.functional.cross_entropy)
    for _ in range(30):
        optimizer.zero_grad()
        loss(model(x), labels(x)).backward()
        optimizer.step()
    found = secateur.compress(
        model,
        batches,
        batches[:1],
        test=batches[:2],
        budget=secateur.Budget(ratio=4),
        epochs=2,
        progress=False,
        directory=directory,
        **settings,
    )
    return RunDirectory(found.path.parent)


def classes(x):
    return (x[:, 0] > x[:, 1]).long()


def sums(x):
    return x.sum(1, keepdim=True)


@pytest.fixture(scope="module")
def classifier(tmp_path_factory):
    return compressed(tmp_path_factory.mktemp("classifier") / "run", classes, outputs=2)


@pytest.fixture(scope="module")
def regression(tmp_path_factory):
    loss = nn.functional.mse_loss
    return compressed(tmp_path_factory.mktemp("regression") / "run", sums, outputs=1, loss=loss)


@pytest.fixture
def going_on(regression, tmp_path):
    """The run of a regression as it is while its first stage trains."""
    run = RunDirectory(Path(shutil.copytree(regression.path, tmp_path / "going-on")))
    for path in (run.result, run.test, run.speed, run.model, run.file, run.page):
        path.unlink(missing_ok=True)
    for log in run.logs():
        if log != run.journal("train").log:
            log.unlink()
    return run


def printed(show, *arguments):
    screen = io.StringIO()
    show(Console(file=screen, width=160, _environ={}), *arguments)
    return " ".join(screen.getvalue().split())


def words(page):
    """What a reader sees and what a screen reader says, without the markup and the share of weights kept."""
    body = page[page.index("<body>") : page.index('<script type="application/json"')]
    said = " ".join([*re.findall(r'(?:aria-label|alt)="([^"]*)"', body), re.sub(r"<[^>]+>", " ", body)])
    return " ".join(html.unescape(said).split())


def numbers(page):
    return json.loads(re.search(r'id="numbers">(.*?)</script>', page, re.DOTALL)[1])


def misplaced(said):
    """The words about classifiers of images, and about commands, in a text; some of them belong on any page."""
    right = r"[\d.]+ % kept|kept %|percent of the weights|With the paper's smooth θ|budget\.error_increase"
    said = re.sub(right, "", said)
    return [said[max(0, found.start() - 30) : found.end() + 10] for found in MISPLACED.finditer(said)]


# How numbers are written


@pytest.mark.parametrize(
    ("value", "error", "loss"),
    [(0.123449, "0.12", "0.1234"), (1.5, "1.50", "1.500"), (2345.4, "2345.40", "2345"), (1e-5, "0.00", "1.000e-05")],
)
def test_an_error_has_two_decimals_and_a_loss_four_digits(value, error, loss):
    assert (figure(value), figure(value, LOSS)) == (error, loss)


def test_an_error_is_in_percent_and_a_loss_is_not():
    assert Wording().amount(2.0) == "2.00 %"
    assert Wording(LOSS, "samples").amount(0.1) == "0.1000"
    assert (Wording().change(0.1), Wording(LOSS).change(-0.0123456)) == ("+0.10 points", "-0.01235")
    assert (Wording().axis("error"), Wording(LOSS).axis("loss")) == ("error, %", "loss")
    assert Wording().figure(float("nan")) == Wording(LOSS).figure(float("inf")) == "–"


# Logs and the terminal


def test_a_log_names_the_measure_only_if_it_is_not_the_error():
    model = nn.Linear(2, 2)
    assert "measure" not in measure_progress(model, lambda model: 1.0, ERROR)
    assert measure_progress(model, lambda model: 1.0, LOSS)["measure"] == LOSS


def test_every_line_of_a_log_has_the_measure_of_the_run(classifier, regression):
    for run, measure in ((classifier, None), (regression, LOSS)):
        lines = [json.loads(line) for log in run.logs() for line in log.read_text().splitlines()]
        assert {line.get("measure") for line in lines} == {measure}


def test_progress_says_what_is_measured():
    assert epoch_line(made_line("train", 1)) == "error  4.00 %     2.0×"
    assert epoch_line(made_line("train", 1, error=0.123449, measure=LOSS)) == "loss 0.1234     2.0×"


@pytest.mark.parametrize("show", [print_layers, print_outcome])
def test_the_tables_of_a_regression_speak_of_its_loss_on_samples(regression, show):
    said, result = printed(show, regression), regression.read_result()
    assert "Sequential on 64 + 16 samples, " in said
    assert f"{result.errors['dense']:#.4g}" in said
    assert f"{result.error:#.4g}" in said
    assert re.search("loss on 16 validation samples|validation loss", said, re.IGNORECASE)
    said = re.sub(r"[\d.]+%", "", said)  # of the weights pruned
    assert misplaced(said.replace(str(regression.path), "")) == []


def test_the_tables_of_a_given_classifier_have_its_error_on_samples(classifier):
    said = printed(print_layers, classifier) + printed(print_outcome, classifier)
    assert "Error on 16 validation samples: dense network" in said
    assert "Dense error: the network as it was given." in said
    assert "images" not in said


def test_a_network_that_was_not_trained_has_no_dense_loss_to_show(regression, tmp_path):
    run = without_dense(regression, tmp_path)
    assert "there is no dense loss" in printed(print_outcome, run)
    assert "The network was not trained when it was given: there is no dense loss." in words(render_page([run]))


def without_dense(run, tmp_path):
    """A copy of a run whose network was not trained when it was given, and that was not tested or timed."""
    copy = RunDirectory(Path(shutil.copytree(run.path, tmp_path / "copy")))
    result = copy.read_result()
    write(copy.result, replace(result, errors={form: e for form, e in result.errors.items() if form != "dense"}))
    for path in (copy.test, copy.speed):
        path.unlink()
    return copy


# The page


@pytest.mark.parametrize("is_bare", [False, True])
def test_the_page_of_a_regression_has_no_word_of_classifiers_or_commands_that_fail(regression, tmp_path, is_bare):
    run = without_dense(regression, tmp_path) if is_bare else regression
    page = render_page([run])
    assert misplaced(words(page).replace(str(run.path), "")) == []
    assert misplaced(" ".join(name for chart in numbers(page).values() for name in chart["columns"])) == []


def test_the_page_of_a_regression_has_its_loss_next_to_the_dense_one(regression):
    said, result, test = words(render_page([regression])), regression.read_result(), regression.read_test()
    change = test.error - test.errors["dense"]
    assert "Sequential on 64 + 16 samples finished" not in said
    assert "Sequential on 64 + 16 samples run finished seed 0 budget+few-values" in said
    assert f"Loss {test.error:#.4g} on 32 test samples, {change:+.4g} compared with the dense network" in said
    assert f"dense network {result.errors['dense']:#.4g} {test.errors['dense']:#.4g}" in said
    assert "Dense: the network as it was given." in said


def test_the_page_of_a_given_classifier_has_its_error_on_samples(classifier):
    said = words(render_page([classifier]))
    assert f"Error {classifier.read_test().error:.2f} % on 32 test samples, " in said
    assert "images" not in said
    assert f"secateur inspect {classifier.path}" in said


def test_a_given_run_has_no_settings_of_images_on_its_page(classifier):
    assert "inputs.scaling" not in render_page([classifier])


def test_a_loss_may_be_negative(regression, tmp_path):
    run = without_dense(regression, tmp_path)
    write(run.result, replace(run.read_result(), errors={"dense": -2.0, "file": -1.5}))
    page = render_page([run, regression])
    assert "-1.500" in words(page)
    assert "Loss -1.500 on 16 validation samples, +0.5 compared with the dense network" in words(render_page([run]))


def test_while_it_trains_the_page_says_loss_and_how_to_continue_in_python(going_on):
    said = words(render_page([going_on]))
    last = json.loads(going_on.journal("train").log.read_text().splitlines()[-1])
    assert f"Loss {last['error']:#.4g} on validation samples" in said
    assert "secateur.compress(…, resume=True)" in said
    assert misplaced(said.replace("secateur.compress(…", "")) == []


# Side by side


def test_runs_of_one_measure_share_an_axis(regression, tmp_path):
    page = render_page([regression, without_dense(regression, tmp_path)])
    data = numbers(page)
    assert set(data["compare-loss"]["columns"]["run"]) == {"A", "B"}
    assert "compare-error" not in data
    assert any(name.startswith("pareto-kept-") and "loss" in chart["columns"] for name, chart in data.items())
    assert "Loss against size" in words(page)
    assert misplaced(words(page)) == []


def test_runs_of_different_measures_share_no_axis_and_the_page_says_so(classifier, regression, tmp_path):
    named = write_made_run(tmp_path, made_result())
    page = render_page([classifier, regression, named])
    data = numbers(page)
    assert set(data["compare-error"]["columns"]["run"]) == {"A", "C"}
    assert set(data["compare-loss"]["columns"]["run"]) == {"B"}
    assert not any(name.startswith("pareto") for name in data)
    said = words(page)
    assert "Runs with another measure are not drawn here: B (loss)." in said
    assert "Runs with another measure are not drawn here: A (error), C (error)." in said
    assert "validation error % dense validation error %" in said
    assert "validation loss dense validation loss" in said


def test_layers_of_one_name_and_other_sizes_have_rows_of_their_own(classifier, regression):
    """Both networks are a Sequential, with one output and with two."""
    page = render_page([classifier, regression])
    found = re.search(r'<table id="table-layers-Sequential".*?</table>', page, re.DOTALL)[0]
    rows = [re.findall(r"<t[hd][^>]*>(?:<span.*?</span>)?(.*?)</t[hd]>", row) for row in found.split("<tr>")[2:]]
    assert [row[0] for row in rows] == ["0.weight", "2.weight", "2.weight"]
    assert [[cell == "–" for cell in row[2:]] for row in rows] == [[False, False], [False, True], [True, False]]


def test_given_runs_are_not_compared_with_published_results_of_other_data(tmp_path):
    job = replace(JOB, network="lenet-300-100", data="1,200 + 300 samples, from weights 00000000", preset=GIVEN)
    directory = RunDirectory(tmp_path / "run")
    made = write_made_run(tmp_path / "made", made_result())
    shutil.copytree(made.path, directory.path)
    write(directory.job, job)
    write(directory.result, replace(made.read_result(), job=job))
    for page in (render_page([directory]), render_page([made])):  # the latter on digits
        assert not any(name.startswith("pareto") for name in numbers(page))
        assert "ublished" not in words(page)


# Commands


def test_no_command_repeats_a_given_run(classifier):
    with pytest.raises(ValueError, match="no command repeats a run"):
        command_of(classifier.read_job())


def test_bench_says_what_it_needs_to_build_the_network(classifier, command):
    code, _, complained = command("bench", str(classifier.path))
    assert code in (1, 2)
    assert "model.cut" in sentence(complained)


def test_inspect_shows_the_loss_that_the_file_was_written_with(regression, command):
    code, said, _ = command("inspect", str(regression.file))
    *_, before = [error for form, error in regression.read_result().errors.items() if form != "file"]
    assert (code, f"validation loss: {before:#.4g}." in " ".join(said.split())) == (0, True)


def test_a_model_card_of_a_regression_has_its_losses_and_no_command(regression):
    card, result, test = model_card(regression), regression.read_result(), regression.read_test()
    assert (
        f"| loss on 16 validation samples | {result.errors['dense']:#.4g} dense → {result.error:#.4g} pruned |" in card
    )
    assert f"| loss on 32 test samples | {test.errors['dense']:#.4g} dense → {test.error:#.4g} pruned |" in card
    assert "| dense network | the network as it was given |" in card
    assert "| data | 64 + 16 samples |" in card
    assert '"model.cut"), model)' in card  # the file of a Sequential does not say how to build it
    assert misplaced(card) == []


def test_a_hub_folder_of_a_given_run_says_nothing_about_inputs(regression, tmp_path):
    folder = write_hub_folder(regression, tmp_path / "hub")
    assert json.loads((folder / "config.json").read_text()) == {
        "library_name": "secateur",
        "network": "Sequential",
        "data": "64 + 16 samples",
    }
