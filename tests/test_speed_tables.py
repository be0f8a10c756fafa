"""The tables of speed: from what the benchmarks of sparse inference keep, with what they miss."""

import json
from pathlib import Path

import pytest

from secateur.report.readme import results_page, with_results
from secateur.report.tables import speed_sentence, speed_tables

ROOT = Path(__file__).parents[1]
ABOUT = {"engines": {"onnxruntime": "1.2"}, "repeats": 40, "clock": "wall", "torch": "2.3", "cpu": "AVX2"}


def row(speedup, at_least, *, reached=True, over=None, limit=None, **more):
    return {
        "ms": {"eager": 2.0, "sparse": 2.0 / speedup},
        "speedup": speedup,
        "interval": [speedup - 0.1, speedup + 0.1],
        "at_least": at_least,
        "reached": reached,
        "limit": limit,
        "over": {} if over is None else {"onnxruntime": {"ratio": over}},
        "plan_s": 0.25,
        **more,
    }


NETWORKS = {
    "lenet-300-100 as pruned, batch 1": row(6.25, 6, over=4.0, limit=3.0),
    "lenet-300-100 as pruned, batch 64": row(11.0, 12, reached=False, over=4.0),
    "resnet-50, 90% zeros in convolutions, batch 1": row(2.6, 2.5, reached=False, over=0.9),
    "never slower: separable, 0%, batch 1": row(1.25, 0.98),
    "never slower: separable, 100%, batch 256": row(0.9, 0.98, reached=False, keeps_layers=True),
    "never slower: perceptron, 1%, batch 4": row(1.0, 0.98),
}
LAYERS = {
    "AlexNet fc6 3.2%, batch 1": row(12.5, 12, over=5.0, limit=20.8),
    "VGG conv1_2, 35%": row(1.25, 1.4, reached=False),
    "VGG conv1_2, 5%": row(8.0, 7),
    "ResNet 3×3 128, stride 2, 5%": row(7.5, 7, reached=False, over=0.5),
    "VGG conv1_2, 10%: 2 threads over 1": row(1.75, 1.6, limit=2.0),
}


@pytest.fixture
def results(tmp_path):
    folder = tmp_path / "results" / "benchmarks"
    folder.mkdir(parents=True)
    for name, rows in (("networks", NETWORKS), ("layers", LAYERS)):
        (folder / f"sparse_{name}.json").write_text(json.dumps({"rows": rows, **ABOUT}))
    return tmp_path / "results"


def test_networks_and_linear_layers_have_a_row_each(results):
    networks, linear = speed_tables(results)[:2]
    assert networks.rows == (
        ("lenet-300-100 as pruned, batch 1", "2", "0.32", "6.25×", "6.15 … 6.35", "6.00×", "4.00×", "3.00×", "0.2 s"),
        (
            *("lenet-300-100 as pruned, batch 64", "2", "0.182", "**11.0×, missed**"),
            *("10.90 … 11.10", "12.0×", "4.00×", "–", "0.2 s"),
        ),
        (
            *("resnet-50, 90% zeros in convolutions, batch 1", "2", "0.769"),
            *("**2.60×, missed: ONNX Runtime is faster**", "2.50 … 2.70", "2.50×", "0.90×", "–", "0.2 s"),
        ),
    )
    assert [line[0] for line in linear.rows] == ["AlexNet fc6 3.2%, batch 1"]
    assert "medians of 40 turns, wall clock, torch 2.3, ONNX Runtime 1.2, AVX2" in networks.note


def test_convolutions_have_a_row_for_each_shape_and_a_column_for_each_density(results):
    grid = speed_tables(results)[2]
    assert grid.header[1:] == ("5 % left", "35 % left")
    assert grid.rows == (
        ("asked for", "7.00×", "1.40×"),
        ("VGG conv1_2", "8.00×", "**1.25×, missed**"),
        ("ResNet 3×3 128, stride 2", "**7.50×, missed: ONNX Runtime is faster**", "–"),
    )
    assert "1 of 3 reach the speed asked for" in grid.note


def test_two_threads_are_compared_with_one(results):
    assert speed_tables(results)[3].rows == (("VGG conv1_2, 10%", "1.75×", "1.65 … 1.85", "1.60×", "2.00×"),)


def test_of_the_sweep_each_network_shows_its_slowest_case_and_all_that_miss(results):
    grid = speed_tables(results)[4]
    assert grid.rows == (
        ("separable", "2", "0.90× (100%, batch 256)", "0.80 … 1.00", "1", "100%, batch 256"),
        ("perceptron", "1", "1.00× (1%, batch 4)", "0.90 … 1.10", "0", "none"),
    )
    assert "below 0.98×" in grid.note
    assert "2 of 3 do" in grid.note


def test_every_row_that_was_measured_is_in_a_table_or_counted_there(results):
    networks, linear, convolutions, threads, sweep = speed_tables(results)
    cells = sum(cell != "–" for line in convolutions.rows[1:] for cell in line[1:])
    swept = sum(int(line[1]) for line in sweep.rows)
    shown = len(networks.rows) + len(linear.rows) + cells + len(threads.rows) + swept
    assert shown == len(NETWORKS) + len(LAYERS)


def test_the_readme_says_how_fast_networks_are_and_how_many_rows_miss(results):
    said = speed_sentence(results)
    assert "lenet-300-100 as pruned: 6.25× at batch 1, 11.0× at batch 64; resnet-50" in said
    assert "4 of 8 reach the speed asked for. In a sweep over densities and batch sizes, 2 of 3 are not slower." in said
    assert said in with_results((ROOT / "README.md").read_text(), results)


def test_without_measurements_there_are_no_tables_and_no_sentence(tmp_path):
    assert all(grid.rows == () for grid in speed_tables(tmp_path))
    assert speed_sentence(tmp_path) == ""
    assert "Speed" not in results_page(tmp_path)
