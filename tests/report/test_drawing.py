"""Pictures of the paper's figures, identical from the same numbers, and the command that draws them."""

import importlib.util
import json
import re
import sys
from pathlib import Path

import pytest

from secateur.experiments.studies.figures import hard_views, smooth_views
from secateur.experiments.studies.gathering import FIGURES, GatheringStudy, figure_path, gathering
from secateur.report.tables.paper import gathering_table
from secateur.results import read

RESULTS = Path(__file__).parents[2] / "results"
DOCS = Path(__file__).parents[2] / "docs"
needs_matplotlib = pytest.mark.skipif(
    importlib.util.find_spec("matplotlib") is None, reason="matplotlib is not installed: pip install 'secateur[report]'"
)


def numbers(figure):
    compute = {"figure1": smooth_views, "figure2": hard_views}
    return compute[figure]() if figure in compute else read(GatheringStudy, figure_path(RESULTS, figure))


@needs_matplotlib
@pytest.mark.parametrize("figure", FIGURES)
def test_the_same_numbers_give_the_same_picture_to_the_last_byte(figure, tmp_path):
    from secateur.report.figures import draw

    first, second = (draw(figure, numbers(figure), tmp_path / name) for name in ("first", "second"))
    assert [path.suffix for path in first] == [".svg", ".png"]
    assert [path.read_bytes() for path in first] == [path.read_bytes() for path in second]
    picture = first[0].read_text()
    assert "date" not in picture.lower()
    assert len(picture) < 60_000


@needs_matplotlib
@pytest.mark.parametrize("figure", FIGURES)
def test_the_pictures_in_the_documentation_are_those_of_the_published_numbers(figure, tmp_path):
    from secateur.report.figures import draw

    drawn, shown = draw(figure, numbers(figure), tmp_path)[0], DOCS / "figures" / f"{figure}.svg"
    words = [re.findall(r">([^<]+)</text>", path.read_text()) for path in (drawn, shown)]
    assert words[0] == words[1], f"reproduce {figure}"


@needs_matplotlib
def test_the_picture_of_curves_shows_the_published_networks(tmp_path):
    from secateur.report.curve_figure import draw_curves

    words = [
        re.findall(r">([^<]+)</text>", path.read_text())
        for path in (draw_curves(RESULTS, tmp_path)[0], DOCS / "figures" / "curve.svg")
    ]
    assert words[0] == words[1], "reproduce curve --seeds 0"
    assert {"resnet-20, cifar10", "weights kept, log scale", "Dynamic network surgery, published"} <= {*words[0]}


@needs_matplotlib
def test_without_published_curves_nothing_is_drawn(tmp_path):
    from secateur.report.curve_figure import draw_curves

    assert draw_curves(tmp_path, tmp_path) == []


def test_the_line_of_the_cut_in_figure_3_divides_the_weights_kept_from_those_that_are_cut():
    study = numbers("figure3")
    for entry in study.networks:
        [edge] = study.job.methods[0].cut_magnitudes((entry.threshold,))
        assert edge < entry.threshold
        middle = len(entry.cut) // 2
        bins = [abs(number - middle + 0.5) * study.bin for number in range(2 * middle)]  # |w| at their centres
        beyond = [place for place in bins if place > edge + study.bin]
        assert sum(count for count, place in zip(entry.cut, bins, strict=True) if place in beyond) == 0
        assert sum(count for count, place in zip(entry.survivors, bins, strict=True) if place < edge - study.bin) == 0


@needs_matplotlib
@pytest.mark.parametrize("figure", FIGURES)
def test_the_command_leaves_numbers_and_pictures(figure, tmp_path, command):
    results = RESULTS if figure == "figure3" else tmp_path
    words = ("reproduce", figure, "--results", str(results), "--pictures", str(tmp_path / "docs"), "--json")
    code, printed, _ = command(*words)
    assert code == 0
    answer = json.loads(printed)
    assert [Path(file).name for file in answer["files"]] == [f"{figure}.json", f"{figure}.svg", f"{figure}.png"]
    assert all(Path(file).stat().st_size for file in answer["files"])
    assert (answer["gathering"] is not None) == (figure == "figure3")


def test_figure_3_without_results_asks_for_seeds(tmp_path, command):
    code, _, complained = command("reproduce", "figure3", "--results", str(tmp_path))
    assert (code, "--seeds 5" in complained) == (2, True)


def test_without_matplotlib_a_figure_says_what_to_install(tmp_path, monkeypatch, command):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    code, _, complained = command("reproduce", "figure1", "--results", str(tmp_path), "--pictures", str(tmp_path))
    assert (code, complained) == (1, "secateur: figures need matplotlib: pip install 'secateur[report]'\n")


def test_the_table_of_the_gathering_is_empty_without_results_and_ends_with_the_verdict_with_them(tmp_path):
    assert gathering_table(tmp_path).rows == ()
    grid = gathering_table(RESULTS)
    assert grid.rows[0][0] == "within 10 % of the threshold"
    assert grid.note == gathering(numbers("figure3")).sentence
