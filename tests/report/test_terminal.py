"""What is printed at the end of a run: one table, where the page and the file are, and what to do next."""

import io
import re
from dataclasses import replace

import pytest
from made_runs import JOB, made_line, made_result, write_made_run
from rich.console import Console
from torch import nn

from secateur.experiments.presets import preset
from secateur.methods import FewValues, Han2015
from secateur.report.tables.grid import Grid
from secateur.report.terminal import Watcher, print_layers, print_outcome, summary_table
from secateur.results import EvaluationResult, SpeedResult, write
from secateur.sibling import targets

TEST = EvaluationResult(errors={"pruned": 2.25, "file": 2.35}, images=297)


def printed(show, *arguments, width=100):
    """Return the lines that a function prints on a console of that width."""
    screen = io.StringIO()
    show(Console(file=screen, width=width, _environ={}), *arguments)
    return screen.getvalue().splitlines()


def rows(lines):
    """Return the cells of every line of a table."""
    return [[cell.strip() for cell in re.split("[┃│]", line)[1:-1]] for line in lines if line[:1] in ("┃", "│")]


def columns(lines):
    """Return the text of every column, cells that continue on the next line put together again."""
    return ["".join(cells) for cells in zip(*rows(lines), strict=True)]


@pytest.fixture
def run(tmp_path):
    return write_made_run(tmp_path, made_result())


def test_a_run_ends_with_one_table_and_where_page_and_file_are(run):
    run.page.write_text("<html></html>")
    lines = printed(print_outcome, run)
    assert rows(lines) == [
        ["network", "weights", "bytes", "validation error %", "ms"],
        ["dense", "266,200", "1,066,440", "–", "–"],
        ["pruned", "13,310", "1,066,440", "2.00", "–"],
        ["file", "13,310", "20,000", "2.00", "–"],
    ]
    assert lines[-3:] == [f"page: {run.page}", f"file: {run.file}", f"next: secateur evaluate {run.path}"]
    assert "No dense network of this recipe is known: --reference train trains one." in " ".join(lines)


def test_an_evaluated_run_shows_test_errors_and_needs_no_next_step(run):
    write(run.test, TEST)
    lines = printed(print_outcome, run)
    assert [row[4] for row in rows(lines)] == ["test error %", "–", "2.25", "2.35"]
    assert lines[-1] == f"file: {run.file}"


def test_validation_and_test_errors_have_a_column_each(run):
    dense = made_result(JOB.reference(), errors={"dense": 1.5, "file": 1.5}, share=1)
    write_made_run(run.path.parent, dense)  # not evaluated on test images
    write(run.test, TEST)
    assert [row[3:5] for row in rows(printed(print_outcome, run))] == [
        ["validation error %", "test error %"],
        ["1.50", "–"],
        ["2.00", "2.25"],
        ["2.00", "2.35"],
    ]


def test_times_are_those_of_the_benchmark(run):
    write(run.speed, SpeedResult(dense_ms=0.5, sparse_ms=0.125, batch=1, threads=2))
    lines = printed(print_outcome, run)
    assert [row[4] for row in rows(lines)] == ["ms", "0.5", "0.5", "0.125"]
    assert "Milliseconds at batch 1, threads: 2." in " ".join(lines)


def test_the_dense_row_has_the_published_reference_of_the_preset_and_names_it(tmp_path):
    lines = printed(print_outcome, write_made_run(tmp_path, made_result(preset("accurate", "lenet-300-100"))))
    assert rows(lines)[1] == ["dense", "266,200", "1,066,440", "1.12", "–"]
    assert 'Dense error: published, preset "accurate", mean over 5 seeds.' in " ".join(line.strip() for line in lines)


def test_of_two_methods_the_table_shows_what_the_first_one_leaves(tmp_path):
    job = replace(JOB, methods=(*JOB.methods, FewValues()))
    errors = {"sibling": 3.0, "pruned": 2.5, "shared": 2.2, "file": 2.1}
    result = made_result(job, errors=errors, stages=("train", "quantize"), share=0.04)
    result = replace(result, kept_by_form={"pruned": 13_310, "shared": 10_648})
    run = write_made_run(tmp_path, result, phases={"train": "train", "quantize": "quantize"})
    assert rows(printed(print_outcome, run))[2:] == [
        ["pruned", "13,310", "1,066,440", "2.50", "–"],
        ["file", "10,648", "20,000", "2.10", "–"],
    ]


def test_a_method_that_trains_a_dense_network_is_compared_with_that(tmp_path):
    job = replace(JOB, preset="han2015", methods=(Han2015(),))
    run = write_made_run(tmp_path, made_result(job, errors={"dense": 1.5, "pruned": 2.0, "file": 2.0}))
    lines = printed(print_outcome, run)
    assert [row[0] for row in rows(lines)] == ["network", "dense", "pruned", "file"]
    assert rows(lines)[1][3] == "1.50"


def test_a_dense_run_has_no_row_of_another_network(tmp_path):
    run = write_made_run(tmp_path, made_result(JOB.reference(), errors={"dense": 1.5, "file": 1.5}, share=1))
    assert [row[0] for row in rows(printed(print_outcome, run))] == ["network", "dense", "file"]


def test_the_layers_of_a_run_and_the_errors_of_every_form(tmp_path):
    errors = {"sibling": 3.0, "raw": 2.5, "pruned": 2.0, "file": 2.0}
    run = write_made_run(tmp_path, made_result(errors=errors, thresholds={"fc1.weight": (0.02, 0.04)}))
    write(run.test, TEST)
    lines = printed(print_layers, run)
    assert rows(lines)[1] == ["fc1.weight", "235,200", "11,760", "95.0%", "20.0×", "0.0300"]
    assert rows(lines)[-1] == ["whole model", "266,610", "13,720", "94.9%", "19.4×", ""]
    assert lines[-3] == (
        "Error on 300 validation images: sibling, before the cut 3.00 %; cut, kept weights at their raw values (the "
        "paper's form) 2.50 %; pruned network 2.00 %; read back from the file 2.00 %"
    )
    assert lines[-2].startswith("Error on 297 test images: pruned network 2.25 %")


def numbers(run):
    """Return every number of the three tables of a run and of what will be pruned."""
    return {
        print_outcome: ["266,200", "13,310", "1,066,440", "20,000", "2.25", "2.35", "0.5", "0.125"],
        print_layers: ["235,200", "11,760", "30,000", "1,500", "95.0%", "20.0×", "266,610", "13,720", "19.4×"],
    }


@pytest.mark.parametrize("width", [60, 40, 30])
@pytest.mark.parametrize("show", [print_outcome, print_layers])
def test_no_digit_of_a_table_is_lost_on_a_narrow_terminal(run, show, width):
    write(run.test, TEST)
    write(run.speed, SpeedResult(dense_ms=0.5, sparse_ms=0.125))
    lines = printed(show, run, width=width)
    assert max(len(line) for line in lines if line[:1] in ("┃", "│")) <= width
    found = columns(lines)
    for number in numbers(run)[show]:
        assert any(number in column for column in found), number


def test_the_table_of_what_will_be_pruned_folds_too():
    table = summary_table(targets(nn.Sequential(nn.Linear(784, 300), nn.Linear(300, 10))))
    for width in (100, 60, 40):
        found = columns(printed(lambda console, table: console.print(table), table, width=width))
        assert any("235,200" in column for column in found)
        assert any("238,200" in column for column in found)


def test_a_grid_folds_at_60_columns_and_loses_nothing():
    header = ("network, preset", "seeds", "error %, dense → file", "weights kept", "file", "smaller by", "command")
    row = ("a [bold] network", "5", "1.88 ± 0.11 → 1.95 ± 0.08", "1,398 of 266,200", "2.13 kB ± 0.04", "501×", "run it")
    lines = printed(
        lambda console, grid: console.print(grid.as_rich()), Grid("Title", header, (row,), "A note."), width=60
    )
    assert max(map(len, lines)) <= 60
    found = [column.replace(" ", "") for column in columns(lines)]
    for cell, column in zip(row, found, strict=True):
        assert cell.replace(" ", "") in column


def test_the_stage_of_any_method_has_a_line_per_epoch_where_the_output_is_no_terminal():
    screen = io.StringIO()
    with Watcher(Console(file=screen, width=80)) as watcher:
        for done in (1, 2):
            watcher.step("quality=0.8-round=1-fc", done, 2)
        watcher.epoch(made_line("fine-tune", 1))
    assert screen.getvalue() == "quality=0.8-round=1-fc 1/2  error  4.00 %     2.0×  0:00 left\n"


def test_a_long_name_of_a_stage_keeps_its_end_on_a_terminal_of_80_columns():
    screen = io.StringIO()
    with Watcher(Console(file=screen, width=80, force_terminal=True, _environ={})) as watcher:
        watcher.step("quality=0.8-round=1-fc", 1, 2)
        watcher.epoch(made_line("fine-tune", 1))
    shown = re.split(r"[\r\n]+", re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", screen.getvalue()))
    assert max(map(len, shown)) <= 80
    assert any("quality=…nd=1-fc" in line and "4.00 %" in line for line in shown)
