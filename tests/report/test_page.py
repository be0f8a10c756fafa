"""The report page of a run: finished, unfinished, damaged, empty or of an older version."""

import base64
import gzip
import html
import io
import json
import math
import os
import re
import shutil
import sys
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import safetensors.torch
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from made_runs import JOB as MADE
from made_runs import made_result, write_made_run

from secateur.experiments.directory import RunDirectory
from secateur.experiments.evaluate import evaluate
from secateur.experiments.presets import preset, run_name
from secateur.experiments.runner import run
from secateur.job import Coding, Job
from secateur.methods import FewValues, Han2015, Manessi2018
from secateur.report.page.gather import gather, name_in_model
from secateur.report.ratios import times
from secateur.results import AnswersResult, EvaluationResult, LayerSpeed, Mistake, RunError, SpeedResult, write
from secateur.train.recipe import Recipe

pytest.importorskip("bokeh", reason="the report extra is not installed")

from secateur.report.page import pareto_chart, render_page, stored, weights, widths, write_page
from secateur.report.page.run import Layer

RECIPE = Recipe(epochs=3, lr=3e-3)
LAYER_SPEED = LayerSpeed(dense_ms=0.3, sparse_ms=0.05)
JOB = Job(
    network="lenet-300-100",
    data="digits",
    methods=(
        Manessi2018(rho=0.3, fine_tune_epochs=1),
        FewValues(levels=6, conv_levels=6, bias_levels=15, quantize_epochs=1),
    ),
    recipe=RECIPE,
    coding=Coding(),
)


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    torch.set_num_threads(1)
    directory = run(JOB, tmp_path_factory.mktemp("runs"))
    evaluate(directory)
    return directory


@pytest.fixture
def copied(finished, tmp_path):
    """A copy of a finished run, to be spoilt."""
    return RunDirectory(Path(shutil.copytree(finished.path, tmp_path / finished.path.name)))


@pytest.fixture(scope="module")
def page(finished):
    return render_page([finished])


def numbers(page: str) -> dict[str, dict[str, object]]:
    """The data of the charts, as they can be downloaded."""
    return json.loads(re.search(r'id="numbers">(.*?)</script>', page, re.DOTALL)[1])


def words(page: str) -> str:
    """What a reader sees, without the markup."""
    body = page[page.index("<body>") : page.index('<script type="application/json"')]
    return " ".join(html.unescape(re.sub(r"<[^>]+>", " ", body)).split())


def table(page: str, name: str) -> list[list[str]]:
    """The rows of a table, as text."""
    found = re.search(rf'<table id="table-{name}".*?</table>', page, re.DOTALL)[0]
    rows = re.findall(r"<tr>(.*?)</tr>", found, re.DOTALL)
    return [
        [
            html.unescape(re.sub(r"<[^>]+>", "", cell)).strip()
            for cell in re.findall(r"<t[hd].*?</t[hd]>", row, re.DOTALL)
        ]
        for row in rows
    ]


# What it says


def test_the_sections_come_in_the_order_of_the_questions(page):
    headings = re.findall(r"<h2[^>]*>(.*?)</h2>", page)
    assert headings == [
        "What was gained and lost",
        "Where",
        "What it gets wrong",
        "How it went",
        "What the weights look like",
        "What was run",
    ]


def test_the_first_figures_are_those_of_the_records(finished, page):
    result, test = finished.read_result(), finished.read_test()
    said = words(page)
    assert f"Weights kept {result.kept:,} {times(result.ratio)} fewer" in said
    assert f"Error {test.error:.2f} % on 297 test images" in said
    assert f"File {result.file.bytes / 1000:.2f} kB" in said
    assert "Speed – not measured" in said


def test_every_layer_has_a_row_and_their_bytes_sum_up_to_the_file(finished, page):
    result = finished.read_result()
    header, *rows = table(page, "layers")
    column = {name: index for index, name in enumerate(header)}
    layers = {row[0]: row for row in rows}
    for layer in result.layers:
        row = layers[layer.name]
        assert row[column["weights"]] == f"{layer.weights:,}"
        assert row[column["kept"]] == f"{layer.kept:,}"
        assert row[column["threshold"]] == f"{result.thresholds[layer.name][0]:.4g}"
    sizes = [int(row[column["bytes"]].replace(",", "")) for row in rows]
    assert sum(sizes[:-1]) == sizes[-1] == finished.file.stat().st_size


def test_the_charts_have_every_epoch_with_its_step_and_the_terms_of_the_loss(page):
    data = numbers(page)
    error, loss = data["error"]["columns"], data["loss"]["columns"]
    assert error["stage"] == ["train", "train", "train", "fine-tune", "quantize"]
    assert error["step"] == [10, 20, 30, 40, 50]  # 1,200 images in batches of 128
    assert list(loss)[3:] == ["task, L₀", "thresholds, L_t", "weight decay, L_wd"]
    assert loss["thresholds, L_t"][-1] is None  # after the cut there are none
    assert len(data["thresholds"]["columns"]["fc1.weight"]) == 3
    assert data["size"]["columns"]["stage"] == ["quantize"]


def test_the_terms_of_the_loss_sum_up_to_it(finished):
    for epoch in gather(finished).history:
        terms = {name: value for name, value in epoch.loss_terms.items() if name != "decay"}
        assert sum(terms.values()) == pytest.approx(epoch.loss, rel=1e-5)


def test_the_term_of_weight_decay_is_lambda_times_the_squares_of_the_weights(finished):
    run = gather(finished)
    path = finished.journal("train").checkpoint
    with safetensors.safe_open(path, "pt") as file:
        squares = sum(
            file.get_tensor(key).square().sum().item()
            for key in file.keys()  # noqa: SIM118  (not a dict)
            if key.endswith("weight.original")
        )
    last = [epoch for epoch in run.history if epoch.phase == "train"][-1]
    assert last.loss_terms["decay"] == pytest.approx(JOB.recipe.lambda_wd * squares, rel=1e-5)


def test_a_histogram_counts_every_weight_before_and_those_left_after(finished):
    run = gather(finished)
    for look in weights.look_at(run).layers:
        assert look.before.sum() == look.layer.weights
        assert look.after.sum() == look.layer.kept
        assert len(look.edges) == len(look.before) + 1


def test_the_pattern_of_a_small_layer_has_a_pixel_for_every_weight(finished):
    from PIL import Image

    run = gather(finished)
    layer = next(look for look in weights.look_at(run).layers if look.layer.name == "fc3.weight")
    with Image.open(io.BytesIO(base64.b64decode(layer.pattern.source.partition(",")[2]))) as image:
        opaque = torch.from_numpy(np.array(image.getchannel("A"))) > 0
    expected = safetensors.torch.load_file(finished.model)["fc3.weight"] != 0
    assert torch.equal(opaque, expected)


def test_a_file_that_is_replaced_while_it_is_read_is_read_as_it_was(copied):
    layer = gather(copied).layers[0]
    expected = safetensors.torch.load_file(copied.model)[layer.name]
    with ExitStack() as files:
        tensors = stored.open_stored(copied.model, files, [])
        other = copied.path / "other"
        safetensors.torch.save_file({"another": torch.zeros(3), layer.name: torch.ones(layer.shape)}, other)
        other.replace(copied.model)
        assert torch.equal(torch.cat(list(tensors.pieces(layer))), expected)


def test_weights_that_are_no_numbers_count_as_zero(copied):
    state = safetensors.torch.load_file(copied.model)
    state["fc3.weight"][0, :2] = torch.tensor([math.nan, math.inf])
    left = int(state["fc3.weight"].nan_to_num(0, 0, 0).count_nonzero())
    safetensors.torch.save_file(state, copied.model)
    look = next(look for look in weights.look_at(gather(copied)).layers if look.layer.name == "fc3.weight")
    assert look.after.sum() == left
    assert np.isfinite(look.edges).all()


def test_the_page_is_one_small_file_that_names_no_other(page):
    assert len(page.encode()) < 1_500_000
    assert "http" not in re.sub(r'<script type="text/plain".*?</script>', "", page, flags=re.DOTALL)
    assert not re.search(r'(src|href)="(?!data:|#)', page)


def test_the_script_of_the_charts_is_that_of_the_installed_package(page):
    from bokeh.resources import INLINE

    packed = re.search(r'id="library">(.*?)</script>', page, re.DOTALL)[1]
    assert gzip.decompress(base64.b64decode(packed)).decode().strip() in INLINE.js_raw[0]


def test_the_same_run_gives_the_same_words_and_numbers(finished, page):
    again = render_page([finished])
    assert (words(again), numbers(again)) == (words(page), numbers(page))


def test_names_from_files_cannot_become_markup(copied):
    result = json.loads(copied.result.read_text())
    evil = '</script><img src=x onerror="alert(1)">'
    result["layers"][0]["name"] = evil
    result["versions"]["torch"] = evil
    copied.result.write_text(json.dumps(result))
    with copied.journal("train").log.open("a") as log:
        log.write(json.dumps({"epoch": 4, "step": 40, "error": 1, "thresholds": {evil: 1.0}}) + "\n")
    page = render_page([copied])
    assert "<img src=x" not in page
    assert page.count("</script>") == page.count("<script")


# The network, and what it gets wrong


ANSWERS = AnswersResult(
    classes=("cat", "dog<b>"),
    images=(4, 5),
    wrong=(1, 3),
    dense_wrong=(0, 2),
    lost=2,
    shape=(1, 2, 2),
    mistakes=(Mistake(pixels="AAD//w==", label=1, answer=0), Mistake(pixels="AAD//w==", label=0, answer=-1)),
)


def test_the_error_of_every_class_is_shown_next_to_that_of_the_dense_network(tmp_path):
    directory = write_made_run(tmp_path, made_result())
    write(directory.answers, ANSWERS)
    assert table(render_page([directory]), "classes") == [
        ["class", "images", "wrong", "error %", "dense wrong", "dense error %"],
        ["dog<b>", "5", "3", "60.00", "2", "40.00"],
        ["cat", "4", "1", "25.00", "0", "0.00"],
    ]


def test_images_that_only_the_pruned_network_gets_wrong_are_shown_with_both_classes(tmp_path):
    directory = write_made_run(tmp_path, made_result())
    write(directory.answers, ANSWERS)
    said = words(page := render_page([directory]))
    assert "The pruned network gets 2 validation images wrong that the dense one gets right." in said
    assert "dog<b>, answered cat cat, answered no answer" in said
    assert "A validation image of class dog&lt;b&gt; that the network takes for cat." in page


def test_without_a_dense_network_the_page_says_that_there_was_none(tmp_path):
    directory = write_made_run(tmp_path, made_result())
    write(directory.answers, replace(ANSWERS, dense_wrong=(), lost=0))
    said = words(render_page([directory]))
    assert "gets 4 validation images wrong; no dense network was at hand to compare it with. The first 2:" in said


def test_a_run_keeps_its_answers_and_the_page_shows_them(finished, page):
    answers = finished.read_answers()
    assert sum(answers.images) == finished.read_result().validation_images
    assert 100 * sum(answers.wrong) / sum(answers.images) == pytest.approx(finished.read_result().error)
    assert len(answers.mistakes) == min(24, sum(answers.wrong))
    assert [row[0] for row in table(page, "classes")[1:]] != []


def test_the_diagram_has_every_layer_with_its_width_before_and_after(tmp_path):
    directory = write_made_run(tmp_path, made_result(share=0.05))
    found = [(each.name, each.before, each.after) for each in widths.widths(gather(directory))]
    # Made runs keep the first weights of every layer: whole rows at the top.
    assert found == [("input", 784, 784), ("fc1", 300, 15), ("fc2", 100, 5), ("fc3", 10, 1)]
    said = words(render_page([directory]))
    assert "fc1 5 % kept 300 → 15 fc2 5 % kept 100 → 5" in said


def test_the_diagram_counts_filters_and_channels_of_convolutions(tmp_path):
    directory = write_made_run(tmp_path, made_result())
    weight = torch.zeros(4, 3, 5, 5)
    weight[1, 2, 0, 0] = weight[3, 2, 4, 4] = 1.0
    safetensors.torch.save_file({"conv.weight": weight}, directory.model)
    layer = Layer(name="conv.weight", shape=(4, 3, 5, 5), weights=300, kept=2)
    run = replace(gather(directory), layers=(layer,))
    assert [(each.before, each.after) for each in widths.widths(run)] == [(3, 1), (4, 2)]


def test_widths_of_a_run_in_progress_are_known_before_the_cut_only(tmp_path):
    directory = write_made_run(tmp_path, made_result())
    directory.result.unlink()
    directory.model.unlink()
    assert [each.after for each in widths.widths(gather(directory))] == [None] * 4


def test_histograms_mark_the_threshold_and_the_cut(tmp_path):
    directory = write_made_run(tmp_path, made_result(thresholds={"fc1.weight": (0.1,)}))
    data = numbers(render_page([directory]))["histogram-0"]["columns"]
    assert data["threshold"][0] == 0.1
    assert data["cut"][0] == MADE.methods[0].cut_magnitudes((0.1,))[0]


# Compared with the dense network, the paper, the literature


def test_the_dense_run_of_the_same_recipe_in_the_same_folder_is_the_reference(copied):
    dense = JOB.reference()
    assert dense.recipe.epochs == 4
    write_made_run(
        copied.path.parent,
        made_result(dense, errors={"dense": 2.5, "file": 2.5}, share=1),
        test=EvaluationResult(errors={"dense": 3.5, "file": 3.5}, images=297),
    )
    said = words(render_page([copied]))
    assert f"{copied.read_test().error - 3.5:+.2f} points compared with the dense network" in said
    assert f"Dense: trained with the same recipe: {run_name(dense)}." in said


def test_a_dense_error_on_other_images_is_compared_on_those(copied):
    write_made_run(copied.path.parent, made_result(JOB.reference(), errors={"dense": 2.5, "file": 2.5}, share=1))
    said = words(render_page([copied]))
    assert "points compared with the dense network" not in said
    assert f"this network, validation images {copied.read_result().error:.2f} % dense, validation images 2.50 %" in said


def test_without_a_dense_network_the_command_that_trains_it_is_named(page):
    said = words(page)
    assert "No dense network of this recipe is known; this trains one:" in said
    assert "--epochs 3 --lr 0.003 --codec smallest --sort-units --reference train" in said


def test_a_published_dense_network_of_the_preset_is_used_and_named(tmp_path):
    job = preset("accurate", "lenet-300-100")
    said = words(render_page([write_made_run(tmp_path, made_result(job))]))
    assert 'Dense: published, preset "accurate", mean over 5 seeds.' in said
    assert "compared with the dense network" in said


def test_a_dense_run_needs_no_reference(tmp_path):
    job = MADE.reference()
    said = words(render_page([write_made_run(tmp_path, made_result(job, errors={"dense": 2.0, "file": 2.0}, share=1))]))
    assert "Error 2.00 % on 300 validation images" in said
    assert "No dense network" not in said


# Any method


ROUNDS = {"train": "train", "quality=0.8-round=1-fc": "fine-tune", "quality=0.8-round=2-fc": "fine-tune"}


@pytest.fixture
def rounds(tmp_path):
    """A run of a method whose stages have names of their own."""
    job = replace(MADE, preset="han2015", methods=(Han2015(quality=0.8, rounds=2),))
    result = made_result(job, errors={"dense": 1.5, "pruned": 2.0, "file": 2.0}, stages=tuple(ROUNDS))
    return write_made_run(tmp_path / "runs", result, phases=ROUNDS)


def test_stages_of_any_name_have_charts_sheets_and_cards(rounds):
    page = render_page([rounds])
    data = numbers(page)
    assert set(data) >= {"error", "ratio", "loss", "histogram-0"}
    assert data["error"]["columns"]["stage"] == [stage for stage in ROUNDS for _ in range(2)]
    assert data["error"]["columns"]["step"] == [10, 20, 30, 40, 50, 60]
    assert [row[0] for row in table(page, "layers")][1:4] == ["fc1.weight", "fc2.weight", "fc3.weight"]
    assert [row[0] for row in table(page, "stages")][1:] == list(ROUNDS)
    said = words(page)
    assert "Weights kept 13,310 20.0× fewer" in said
    assert "+0.50 points compared with the dense network" in said
    assert "Dense: the dense network that this run started from." in said
    assert gather(rounds).problems == ()


def test_an_unfinished_run_of_any_stages_has_them_in_the_order_of_their_logs(rounds):
    rounds.result.unlink()
    for number, stage in enumerate(ROUNDS):
        os.utime(rounds.journal(stage).log, (number, number))
    page = render_page([rounds])
    assert numbers(page)["ratio"]["columns"]["stage"] == [stage for stage in ROUNDS for _ in range(2)]
    assert "unfinished: epoch 2 of 2, stage quality=0.8-round=2-fc" in words(page)
    assert len(table(page, "layers")) == 5


def test_a_form_that_is_unknown_is_shown_by_its_own_name(tmp_path):
    errors = {"sibling": 3.0, "raw": 2.5, "halved": 2.2, "file": 2.2}
    page = render_page([write_made_run(tmp_path, made_result(errors=errors))])
    assert table(page, "forms") == [
        ["network", "validation error %"],
        ["sibling, before the cut", "3.00"],
        ["cut, kept weights at their raw values (the paper's form)", "2.50"],
        ["halved", "2.20"],
        ["read back from the file", "2.20"],
    ]


def test_both_errors_of_every_form_are_shown_once_it_is_evaluated(finished, page):
    header, *rows = table(page, "forms")
    assert header == ["network", "validation error %", "test error %"]
    expected = zip(finished.read_result().errors.values(), finished.read_test().errors.values(), strict=True)
    assert [row[1:] for row in rows] == [[f"{a:.2f}", f"{b:.2f}"] for a, b in expected]


def test_a_data_set_that_is_a_path_makes_no_name_of_a_chart(tmp_path):
    result = made_result(replace(MADE, data="some/folder of images"))
    other = made_result(replace(MADE, data="some/folder of images", seed=1))
    page = render_page([write_made_run(tmp_path, each) for each in (result, other)])
    assert "pareto-kept-lenet-300-100-some-folder-of-images" in numbers(page)


def test_a_speed_that_was_measured_is_shown_for_the_network_and_its_layers(copied):
    write(copied.speed, SpeedResult(dense_ms=0.5, sparse_ms=0.1, layers={"fc1.weight": LAYER_SPEED}))
    page = render_page([copied])
    assert "Speed 5.00× as fast as the dense network" in words(page)
    header, *rows = table(page, "layers")
    fc1 = next(row for row in rows if row[0] == "fc1.weight")
    assert (fc1[header.index("dense ms")], fc1[header.index("sparse ms")]) == ("0.3", "0.05")


def test_runs_on_the_papers_data_are_compared_with_the_papers_figures(copied):
    for path in (copied.job, copied.result):
        path.write_text(path.read_text().replace('"digits"', '"mnist"'))
    page = render_page([copied])
    assert "the paper 14,000 (19×)" in words(page)
    points = numbers(page)["pareto-kept-lenet-300-100-mnist"]["columns"]
    assert "Molchanov et al. 2017, arXiv 1701.05369" in points["source"]


# Several runs


def charts(page: str) -> dict[str, object]:
    """The charts as the browser draws them."""
    packed = re.search(r'id="items">(.*?)</script>', page, re.DOTALL)[1]
    return json.loads(gzip.decompress(base64.b64decode(packed)))


def glyphs(content, kind: str) -> list[dict[str, object]]:
    """What is drawn of a kind in a chart, and its settings."""
    found = []
    for each in content.values() if isinstance(content, dict) else content if isinstance(content, list) else ():
        found += glyphs(each, kind)
    if isinstance(content, dict) and content.get("name") == "GlyphRenderer":
        glyph = content["attributes"]["glyph"]
        values = {
            name: each["value"] if isinstance(each, dict) and "value" in each else each
            for name, each in glyph["attributes"].items()
        }
        found += [values] if glyph["name"] == kind else []
    return found


@pytest.fixture
def five(tmp_path):
    """Five runs of a network without published results; the second is better than the others in both."""
    sizes, errors = (0.05, 0.01, 0.048, 0.049, 0.047), (2.0, 1.0, 2.2, 2.1, 2.3)
    return [
        write_made_run(
            tmp_path,
            made_result(replace(MADE, seed=seed), errors={"pruned": error, "file": error}, share=share),
            test=EvaluationResult(errors={"file": error + 1}, images=297) if seed < 2 else None,
        )
        for seed, (share, error) in enumerate(zip(sizes, errors, strict=True))
    ]


def test_every_point_has_the_letter_and_the_colour_of_its_run(five):
    page = render_page(five)
    drawn = charts(page)
    colours = [line["line_color"] for line in glyphs(drawn["compare-error"], "Line")]
    labels = glyphs(drawn["pareto-kept-lenet-300-100-digits"], "Text")
    assert [label["text"] for label in labels] == ["A", "B", "C", "D", "E"]
    assert [label["text_color"] for label in labels] == colours
    assert len(set(colours)) == 5
    assert "run A" in words(page)


def test_a_run_that_beats_all_others_has_a_pareto_front_too(five):
    page = render_page(five)
    for name in ("pareto-kept", "pareto-bytes"):
        assert len(glyphs(charts(page)[f"{name}-lenet-300-100-digits"], "Step")) == 1


def test_points_of_a_chart_are_errors_on_the_same_images(five):
    points = numbers(render_page(five))["pareto-kept-lenet-300-100-digits"]["columns"]
    assert points["images"] == ["validation"] * 5  # not all of them were evaluated on test images
    assert points["error %"] == [2.0, 1.0, 2.2, 2.1, 2.3]
    points = numbers(render_page(five[:2]))["pareto-kept-lenet-300-100-digits"]["columns"]
    assert points["images"] == ["test"] * 2
    assert points["error %"] == [3.0, 2.0]


def test_side_by_side_validation_and_test_errors_have_a_column_each(five):
    header, *rows = table(render_page(five), "overview")
    first = header.index("validation error %")
    assert header[first : first + 2] == ["validation error %", "test error %"]
    assert [row[first : first + 2] for row in rows[1:3]] == [["1.00", "2.00"], ["2.20", "–"]]


@given(low=st.floats(1e-6, 1e6), factor=st.floats(1.02, 1e7))
def test_a_logarithmic_axis_has_two_ticks_or_more_and_room_for_their_labels(low, factor):
    from secateur.report.page.chart import log_ticks

    ticks = log_ticks(low, low * factor)
    assert 2 <= len(ticks) <= 14
    assert ticks == sorted(set(ticks))
    assert low <= ticks[0] < ticks[-1] <= low * factor


@pytest.mark.parametrize("number", [1, 2, 5])
def test_every_heading_has_content_and_every_link_a_heading(five, number):
    body = render_page(five[:number])
    body = body[body.index("<main>") : body.index("</main>")]
    assert not re.search(r"</h[23]>\s*(<h2|</section>|</div>)|</h2>\s*<p[^>]*>[^<]*</p>\s*</section>", body)
    page = render_page(five[:number])
    for target in re.findall(r'<a href="#(\w+)">', page):
        assert f'<section id="{target}"' in page
    assert "published" not in words(page)


def test_several_runs_stand_side_by_side_with_a_pareto_curve(finished, copied):
    result = json.loads(copied.result.read_text())
    result["job"]["seed"] = 1
    copied.result.write_text(json.dumps(result))
    copied.job.write_text(json.dumps(result["job"]))
    page = render_page([finished, copied])
    assert [row[0] for row in table(page, "overview")] == ["run", "A", "B"]
    assert table(page, "differences")[1] == ["seed", "0", "1"]
    data = numbers(page)
    assert data["pareto-kept-lenet-300-100-digits"]["columns"]["who"] == ["run A", "run B"]
    assert set(data["compare-error"]["columns"]["run"]) == {"A", "B"}


@given(st.lists(st.tuples(st.integers(1, 50), st.integers(1, 50)), min_size=1))
def test_a_point_is_on_the_pareto_curve_exactly_if_none_beats_it(pairs):
    points = [pareto_chart._Point("A", "#000000", float(size), float(error), "") for size, error in pairs]
    front = {(point.size, point.error) for point in pareto_chart._pareto(points)}
    for point in points:
        is_beaten = any(other.size <= point.size and other.error <= point.error and other != point for other in points)
        assert ((point.size, point.error) in front) == (not is_beaten)


def test_twenty_runs_still_make_a_small_page(finished):
    assert len(render_page([finished] * 20).encode()) < 1_500_000


# What is missing or damaged


def test_a_run_that_is_going_on_has_a_page(copied):
    logs = [copied.journal(stage).log for stage in ("fine-tune", "quantize")]
    for path in (copied.result, copied.test, copied.model, copied.file, *logs):
        path.unlink()
    said = words(page := render_page([copied]))
    assert "unfinished: epoch 3 of 3, stage train" in said
    assert "fewer than the 266,200 prunable weights of the dense network" in said
    assert "Prunable weights only: biases and norms are counted when the run is finished." in said
    assert "no file yet" in said
    assert len(table(page, "layers")) == 5


def test_the_page_of_a_run_in_progress_says_how_to_continue_it_not_how_to_start_it(tmp_path):
    directory = write_made_run(tmp_path, made_result())
    directory.result.unlink()
    commands = re.findall(r"<code>(.*?)</code>", render_page([directory]))
    assert commands == [
        "secateur prune lenet-300-100 --data digits --rho 0.3 --epochs 2 --codec smallest --sort-units --resume"
    ]


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("run `a <b>` or `c`", "run <code>a &lt;b&gt;</code> or <code>c</code>"),
        ("one ` alone", "one ` alone"),
        ("none", "none"),
    ],
)
def test_backticks_become_code(text, shown):
    from secateur.report.page.markup import with_code

    assert str(with_code(text)) == shown


def test_a_run_before_its_first_epoch_has_a_page(tmp_path):
    directory = RunDirectory(tmp_path / "run")
    directory.path.mkdir()
    write(directory.job, JOB)
    said = words(render_page([directory]))
    assert "no epoch is done yet" in said
    assert "not known yet" in said


def test_an_old_run_without_steps_or_terms_does_without(copied):
    for stage in ("train", "fine-tune", "quantize"):
        log = copied.journal(stage).log
        records = [json.loads(line) for line in log.read_text().splitlines()]
        for record in records:
            del record["step"], record["loss_terms"]
        log.write_text("".join(json.dumps(record) + "\n" for record in records))
    data = numbers(render_page([copied]))
    assert data["error"]["columns"]["step"] == [10, 20, 30, 40, 50]  # from the number of images
    assert list(data["loss"]["columns"])[-1] == "sum of the terms"


def test_settings_of_another_version_are_shown_and_no_command_is_made_up(copied):
    job = json.loads(copied.job.read_text())
    job["recipe"]["a_setting_of_the_future"] = 1
    copied.job.write_text(json.dumps(job))
    page = render_page([copied])
    assert "recipe.a_setting_of_the_future" in words(page)
    assert "secateur compress" not in words(page)


RECORDS = ("job.json", "result.json", "test.json", "speed.json", "train.jsonl")


@pytest.mark.parametrize("content", [b"{", b"[]", b"null", b"\xff\xfe", b'{"network": {}}', b"[" * 100_000])
@pytest.mark.parametrize("name", RECORDS)
def test_a_damaged_file_is_named(copied, name, content):
    (copied.path / name).write_bytes(content)
    assert any(name in problem for problem in gather(copied).problems)


@pytest.mark.parametrize("name", RECORDS)
def test_a_damaged_file_costs_what_it_holds_and_no_more(copied, name):
    (copied.path / name).write_bytes(b"")
    said = words(render_page([copied]))
    assert "Made with" in said or name == "result.json"
    assert "fc1.weight: 300 rows × 784 columns" in said


@pytest.mark.parametrize("name", ["model.safetensors", "train.checkpoint.safetensors"])
def test_weights_that_are_cut_off_are_named_and_the_rest_is_shown(copied, name):
    path = copied.path / name
    path.write_bytes(path.read_bytes()[:-1000])
    said = words(render_page([copied]))
    assert f"{name} is damaged" in said


def test_a_damaged_packed_file_costs_the_bytes_by_layer(copied):
    copied.file.write_bytes(copied.file.read_bytes()[:-1])
    page = render_page([copied])
    assert "model.cut is damaged" in words(page)
    header, *rows = table(page, "layers")
    assert rows[0][header.index("bytes")] == "–"


@pytest.mark.parametrize(("read", "examples"), [(gather, 60), (lambda run: render_page([run]), 3)])
def test_records_that_hold_other_things_than_numbers_never_make_a_trace(finished, tmp_path, read, examples):
    values = st.recursive(
        st.none() | st.booleans() | st.floats() | st.integers() | st.text(max_size=3),
        lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner, max_size=2),
        max_leaves=4,
    )
    files = ("job.json", "result.json", "test.json", "speed.json", "train.jsonl", "fine-tune.jsonl")

    @settings(max_examples=examples)
    @given(name=st.sampled_from(files), place=st.integers(0, 100), value=values)
    def with_another_value(name, place, value):
        directory = RunDirectory(tmp_path / finished.path.name)
        shutil.copytree(finished.path, directory.path, dirs_exist_ok=True)
        write(directory.speed, SpeedResult(dense_ms=1.0, sparse_ms=0.5, layers={"fc1.weight": LAYER_SPEED}))
        path = directory.path / name
        if name.endswith("l"):
            first, *others = path.read_text().splitlines()
            path.write_text("\n".join([json.dumps(put(json.loads(first), place, value)), *others]) + "\n")
        else:
            path.write_text(json.dumps(put(json.loads(path.read_text()), place, value)))
        read(directory)

    with_another_value()


def put(content, place, value):
    """Replace the value at one place of a JSON document, counted in depth-first order around the clock."""
    spots = []

    def walk(node):
        for key in list(node) if isinstance(node, dict) else range(len(node)) if isinstance(node, list) else ():
            spots.append((node, key))
            walk(node[key])

    walk(content)
    node, key = spots[place % len(spots)]
    node[key] = value
    return content


NO_RUNS = pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda path: None, "is not a directory: give the directory of a run"),
        (lambda path: path.write_text("file"), "is not a directory: give the directory of a run"),
        (lambda path: path.mkdir(), "is not the directory of a run: there is no job.json in it"),
    ],
    ids=["nothing", "a file", "an empty directory"],
)


@NO_RUNS
def test_a_page_of_what_is_no_run_is_refused(tmp_path, make, sentence):
    make(tmp_path / "run")
    with pytest.raises(RunError, match=sentence):
        render_page([RunDirectory(tmp_path / "run")])


@NO_RUNS
def test_what_is_no_run_is_one_sentence(tmp_path, command, make, sentence):
    make(tmp_path / "run")
    assert command("report", str(tmp_path / "run")) == (1, "", f"secateur: {tmp_path / 'run'} {sentence}\n")


@pytest.mark.parametrize(
    ("key", "name"),
    [
        ("model:fc1.parametrizations.weight.original", "fc1.weight"),
        ("model:parametrizations.matrix.original", "matrix"),
        ("model:fc1.parametrizations.weight.0.threshold", None),
        ("model:fc1.bias", "fc1.bias"),
        ("optimizer:state.fc1.bias.exp_avg", None),
    ],
)
def test_a_key_of_a_checkpoint_is_traced_to_the_tensor_of_the_plain_model(key, name):
    assert name_in_model(key) == name


# The command line


TINY = ("prune", "lenet-300-100", "--data", "digits", "--epochs", "1", "--rho", "0.2")


def test_prune_leaves_a_page_and_says_where(tmp_path, monkeypatch, command):
    monkeypatch.chdir(tmp_path)
    code, printed, _ = command(*TINY)
    [page] = tmp_path.glob("runs/*/report.html")
    assert (code, f"page: {page.relative_to(tmp_path)}\n" in printed) == (0, True)
    assert "validation images" in words(page.read_text())
    assert command("evaluate")[0] == 0
    assert "on 297 test images" in words(page.read_text())


def test_bench_brings_an_existing_page_up_to_date(copied, command):
    write_page([copied], copied.page)
    before = words(copied.page.read_text())
    bench = ("bench", str(copied.path), "--repeats", "6", "--engines", "eager")
    code, printed, _ = command(*bench)
    assert (code, printed.endswith(f"wrote {copied.speed}\n")) == (0, True)
    assert words(copied.page.read_text()) != before
    copied.page.unlink()
    assert command(*bench)[0] == 0
    assert not copied.page.exists()


def test_the_card_says_the_speedup_that_bench_says(copied, command):
    write_page([copied], copied.page)
    _, printed, _ = command("bench", str(copied.path), "--repeats", "6", "--engines", "eager")
    said = re.search(r"whole network.*?([\d.,]+×)", printed)[1]
    assert f"Speed {said} as fast as the dense network" in words(copied.page.read_text())


def test_a_speedup_is_the_median_of_ratios_not_the_ratio_of_medians(copied):
    write(copied.speed, SpeedResult(dense_ms=1.0, sparse_ms=1.0, speedup=1.25))
    assert "Speed 1.25× as fast as the dense network" in words(render_page([copied]))
    copied.speed.write_text('{"dense_ms": 3.0, "sparse_ms": 2.0}')  # of an older version
    assert "Speed 1.50× as fast as the dense network" in words(render_page([copied]))


def test_without_bokeh_the_run_ends_well_and_says_how_to_get_the_page(tmp_path, monkeypatch, command):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, "bokeh", None)
    code, printed, complained = command(*TINY)
    [run] = (each.relative_to(tmp_path) for each in tmp_path.glob("runs/*manessi2018*"))
    remedy = "the report page needs Bokeh: pip install 'secateur[report]'"
    assert f"No page was written ({remedy}); later: secateur report {run}\n" in printed
    assert (code, complained) == (0, "")
    code, _, complained = command("report", str(run))
    assert (code, complained) == (1, f"secateur: {remedy}\n")


def test_report_writes_the_page_of_the_newest_run_or_of_several(finished, tmp_path, monkeypatch, command):
    monkeypatch.chdir(tmp_path)
    assert command("report", "--runs", str(finished.path.parent))[:2] == (0, f"{finished.page}\n")
    assert command("report", str(finished.path), str(finished.path), "--out", "two.html")[0] == 0
    assert "2 runs side by side" in words((tmp_path / "two.html").read_text())
    finished.page.unlink()


def test_a_page_is_written_whole(finished, tmp_path):
    path = write_page([finished], tmp_path / "page.html")
    assert path.read_text().rstrip().endswith("</html>")
    assert [each.name for each in tmp_path.iterdir()] == ["page.html"]


def test_a_page_of_no_run_is_refused():
    with pytest.raises(ValueError, match="at least one run"):
        render_page([])


@pytest.mark.parametrize("infinite", [math.inf, None])
def test_infinite_ratios_do_not_break_the_numbers(copied, infinite):
    with copied.journal("train").log.open("a") as log:
        log.write(json.dumps({"epoch": 4, "step": 40, "error": math.nan, "ratio": infinite, "kept": 0}) + "\n")
    assert numbers(render_page([copied]))["ratio"]["columns"]["times fewer weights"][3] is None
