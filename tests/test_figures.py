"""The paper's figures: their numbers against closed forms, their pictures identical from the same numbers."""

import importlib.util
import json
import math
from pathlib import Path

import pytest
import torch

from secateur.cli import main
from secateur.experiments import figures, presets
from secateur.experiments.figures import (
    FIGURES,
    describe_weights,
    figure_path,
    gathering,
    hard_views,
    histogram,
    share_near,
    smooth_views,
)
from secateur.experiments.job import load_model, run
from secateur.report.tables import gathering_table, search_table

ROOT = Path(__file__).parents[1]
needs_matplotlib = pytest.mark.skipif(
    importlib.util.find_spec("matplotlib") is None, reason="matplotlib is not installed: pip install 'secateur[report]'"
)


def sigmoid(x):
    return 1 / (1 + math.exp(-x))


def at(view, place):
    index = view["at"].index(place)
    return view["value"][index], view["slope"][index]


# The numbers


def test_figure_1_shows_the_formula_of_the_paper():
    by_x, by_t = smooth_views()["views"]
    for x in (-3.0, -2.0, -1.9, 0.0, 1.5, 2.0, 2.2, 4.0):
        expected = max(x - 2, 0) + 2 * sigmoid(10 * (x - 2)) - max(-x - 2, 0) - 2 * sigmoid(10 * (-x - 2))
        assert at(by_x, x)[0] == pytest.approx(expected, abs=1e-6)
    for t in (0.0, 1.0, 1.9, 2.0, 2.1, 4.0):
        expected = max(2 - t, 0) + t * sigmoid(10 * (2 - t)) - t * sigmoid(10 * (-2 - t))
        assert at(by_t, t)[0] == pytest.approx(expected, abs=1e-6)


def test_the_slopes_of_figure_1_are_differences_of_its_values_away_from_the_jumps():
    for view in smooth_views()["views"]:
        places, values, slopes = view["at"], view["value"], view["slope"]
        for i in range(1, len(places) - 1):
            if abs(abs(places[i]) - 2) > 0.05:
                assert (values[i + 1] - values[i - 1]) / 0.04 == pytest.approx(slopes[i], abs=0.03)


def test_figure_2_is_the_identity_outside_the_threshold_and_zero_inside():
    by_x, by_t = hard_views()["views"]
    assert all(at(by_x, x) == ((x, 1) if abs(x) >= 2 else (0, 0)) for x in by_x["at"])
    assert all(at(by_t, t) == (2 if t <= 2 else 0, 0) for t in by_t["at"])


def test_weights_within_a_tenth_of_the_threshold_count_as_near():
    assert share_near(torch.tensor([0.5, -0.46, 0.54, 0.44, -0.56, 1.0, 0.0, 0.5]), 0.5) == 0.5


def test_a_histogram_counts_every_weight_in_the_bin_it_belongs_to():
    counts = histogram(torch.tensor([-2.0, -1.0, -0.005, 0.0, 0.009, 0.999, 7.0]))
    assert (len(counts), sum(counts)) == (200, 7)
    assert (counts[0], counts[99], counts[100], counts[199]) == (2, 1, 2, 2)


def networks(*shares):
    """Figure 3 in small: for every seed the share near the threshold with decay and without."""
    entries = [
        {"lambda_wd": decay, "seed": seed, "near": share}
        for seed, pair in enumerate(shares)
        for decay, share in zip((1e-4, 0.0), pair, strict=True)
    ]
    return {"networks": entries}


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
        gathering({"networks": []})


def test_the_published_numbers_of_figures_1_and_2_are_what_the_code_computes():
    for figure, compute in (("figure1", smooth_views), ("figure2", hard_views)):
        assert json.loads(figure_path(ROOT / "results", figure).read_text()) == compute(), f"reproduce {figure}"


# From a run to a picture


@pytest.fixture(scope="module")
def drawn(tmp_path_factory):
    """Figure 3 of two seeds of a very short training, and the folder it is in."""
    pytest.importorskip("matplotlib", reason="matplotlib is not installed: pip install 'secateur[report]'")
    root = tmp_path_factory.mktemp("figure3")
    job = presets.preset("paper", "lenet-300-100", data="digits")
    short = figures.replace(job, train=figures.replace(job.train, epochs=1, rho=0.2))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(figures, "preset", lambda name, network: short)
        places = ("--results", str(root / "results"), "--runs", str(root / "runs"), "--pictures", str(root / "docs"))
        assert main(["reproduce", "figure3", "--seeds", "2", *places]) == 0
        once = figure_path(root / "results", "figure3").read_bytes()
        patch.setattr(figures, "run", None)  # nothing is trained again
        assert main(["reproduce", "figure3", "--seeds", "2", *places]) == 0
        assert figure_path(root / "results", "figure3").read_bytes() == once
    return root, short


def test_figure_3_counts_the_weights_of_the_networks_that_were_trained(drawn):
    root, job = drawn
    content = json.loads(figure_path(root / "results", "figure3").read_text())
    assert [(entry["lambda_wd"], entry["seed"]) for entry in content["networks"]] == [
        (1e-4, 0),
        (1e-4, 1),
        (0.0, 0),
        (0.0, 1),
    ]
    directory = run(job, root / "runs")
    kept = int((load_model(directory.model)[0].fc1.weight != 0).sum())
    entry = content["networks"][0]
    assert describe_weights(directory) == {k: v for k, v in entry.items() if k not in ("lambda_wd", "seed")}
    assert (entry["kept"], sum(entry["survivors"])) == (kept, kept)
    assert sum(entry["survivors"]) + sum(entry["cut"]) == entry["weights"] == 235_200


@needs_matplotlib
@pytest.mark.parametrize("figure", FIGURES)
def test_the_same_numbers_give_the_same_picture_to_the_last_byte(figure, drawn, tmp_path):
    from secateur.report.figures import draw

    root, _ = drawn
    compute = {"figure1": smooth_views, "figure2": hard_views}
    content = compute[figure]() if figure in compute else json.loads(figure_path(root / "results", figure).read_text())
    first, second = (draw(figure, content, tmp_path / name) for name in ("first", "second"))
    assert [path.suffix for path in first] == [".svg", ".png"]
    assert [path.read_bytes() for path in first] == [path.read_bytes() for path in second]
    picture = first[0].read_text()
    assert "date" not in picture.lower()
    assert len(picture) < 60_000


@needs_matplotlib
@pytest.mark.parametrize("figure", FIGURES)
def test_the_command_leaves_numbers_and_pictures(figure, drawn, tmp_path, capsys):
    root, _ = drawn
    results = root / "results" if figure == "figure3" else tmp_path
    words = ["reproduce", figure, "--results", str(results), "--pictures", str(tmp_path / "docs"), "--json"]
    capsys.readouterr()
    assert main(words) == 0
    answer = json.loads(capsys.readouterr().out)
    assert [Path(file).name for file in answer["files"]] == [f"{figure}.json", f"{figure}.svg", f"{figure}.png"]
    assert all(Path(file).stat().st_size for file in answer["files"])
    assert (answer["gathering"] is not None) == (figure == "figure3")


def test_figure_3_without_results_asks_for_seeds(tmp_path, capsys):
    assert main(["reproduce", "figure3", "--results", str(tmp_path)]) == 2
    assert "--seeds 5" in capsys.readouterr().err


def test_without_matplotlib_a_figure_says_what_to_install(tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(__import__("sys").modules, "matplotlib", None)
    assert main(["reproduce", "figure1", "--results", str(tmp_path), "--pictures", str(tmp_path)]) == 1
    assert capsys.readouterr().err == "secateur: figures need matplotlib: pip install 'secateur[report]'\n"


# What is published


def test_the_picture_in_the_documentation_shows_the_published_numbers():
    content = json.loads(figure_path(ROOT / "results", "figure3").read_text())
    picture = (ROOT / "docs" / "figures" / "figure3.svg").read_text()
    for entry in content["networks"]:
        if entry["seed"] == 0:
            assert f"{entry['kept']:,} that survive" in picture
            assert f"±{entry['threshold']:.3f}" in picture


def test_the_published_figure_3_has_five_seeds_of_the_settings_in_the_paper():
    content = json.loads(figure_path(ROOT / "results", "figure3").read_text())
    assert gathering(content).seeds == 5
    assert (content["job"]["sibling"]["alpha"], content["job"]["train"]["cutoff"]) == (100, 1e-3)
    assert all(sum(entry["survivors"]) == entry["kept"] for entry in content["networks"])


def test_the_table_of_the_gathering_is_empty_without_results_and_ends_with_the_verdict_with_them(tmp_path):
    assert gathering_table(tmp_path).rows == ()
    grid = gathering_table(ROOT / "results")
    assert grid.rows[0][0] == "within 10 % of the threshold"
    assert grid.note.startswith("The gathering at the threshold ")


def test_the_search_is_shown_every_ten_epochs_and_where_it_ended(tmp_path):
    history = [{"epoch": epoch, "ratio": epoch / 2, "error": 2.0} for epoch in range(1, 31)]
    path = tmp_path / "lenet-5" / "paper" / "search.json"
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps({"chosen_epochs": 23, "history": history}))
    grid = search_table(tmp_path, ("lenet-300-100", "lenet-5"))
    assert [row[0] for row in grid.rows] == [f"lenet-5, {epoch}" for epoch in (1, 10, 20, 23, 30)]
    assert grid.rows[3][1:] == ("11.5×", "2.00")
    assert "lenet-5: 23 epochs." in grid.note
