"""The tables of speed: from what the benchmarks of sparse inference keep, with what they miss."""

import json
from pathlib import Path

import pytest

from secateur.report.tables.readme import results_page, with_results
from secateur.report.tables.speed import deployed_speeds, network_speeds, pruned_speeds, speed_tables

ROOT = Path(__file__).parents[2]
ABOUT = {"engines": {"onnxruntime": "1.2"}, "torch": "2.3", "cpu": "AVX2"}


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
        "keeps_layers": False,
        "repeats": 40,
        "clock": "cpu",
        **more,
    }


NETWORKS = {
    "lenet-300-100 as pruned, batch 1": row(6.25, 6, over=4.0, limit=3.0, kept=2345),
    "lenet-300-100 as pruned, batch 64": row(11.0, 12, reached=False, over=4.0),
    "resnet-50, 90% zeros in convolutions, batch 1": row(2.6, 2.5, reached=False, over=0.9, plan_s_at_most=10.0),
    "never slower: separable, 0%, batch 1": row(1.25, 0.98, repeats=200),
    "never slower: separable, 100%, batch 256": row(0.8, 0.98, reached=False, keeps_layers=True, repeats=200),
    "never slower: perceptron, 1%, batch 4": row(0.97, 0.98, repeats=150),
}
LAYERS = {
    "AlexNet fc6 3.2%, batch 1": row(12.5, 12, over=5.0, limit=20.8),
    "VGG conv1_2, 35%": row(1.25, 1.4, reached=False),
    "VGG conv1_2, 5%": row(8.0, 7),
    "ResNet 3×3 128, stride 2, 5%": row(7.5, 7, reached=False, over=0.5),
    "VGG conv1_2, 10%: 2 threads over 1": row(1.75, 1.6, limit=2.0, clock="wall", repeats=11),
}


@pytest.fixture
def results(tmp_path):
    folder = tmp_path / "results" / "benchmarks"
    folder.mkdir(parents=True)
    for name, rows in (("networks", NETWORKS), ("layers", LAYERS)):
        (folder / f"sparse_{name}.json").write_text(json.dumps({"rows": rows, **ABOUT}))
    return tmp_path / "results"


def test_networks_pruned_on_photographs_have_a_table_of_their_own(results):
    assert pruned_speeds(results).rows == ()
    rows = {"resnet-20 as pruned to 10×, batch 1": row(1.5, 0.98, limit=4.0, kept=26_833)}
    (results / "benchmarks" / "pruned_networks.json").write_text(json.dumps({"rows": rows, **ABOUT}))
    [cells] = pruned_speeds(results).rows
    assert cells[:4] == ("resnet-20 as pruned to 10×, batch 1, 26,833 weights", "2", "1.33", "1.50×")
    assert cells[7] == "4.00×"


def test_networks_and_linear_layers_have_a_row_each(results):
    networks, linear = speed_tables(results)[:2]
    assert networks.rows == (
        (
            *("lenet-300-100 as pruned, batch 1, 2,345 weights", "2", "0.32", "6.25×", "6.15 … 6.35"),
            *("6.00×", "4.00×", "3.00×", "0.2 s"),
        ),
        (
            *("lenet-300-100 as pruned, batch 64", "2", "0.182", "**11.0×, missed**"),
            *("10.90 … 11.10", "12.0×", "4.00×", "–", "0.2 s"),
        ),
        (
            *("resnet-50, 90% zeros in convolutions, batch 1", "2", "0.769"),
            *(
                "**2.60×, missed: ONNX Runtime is faster**",
                "2.50 … 2.70",
                "2.50×, planned in 10 s",
                "0.90×",
                "–",
                "0.2 s",
            ),
        ),
    )
    assert [line[0] for line in linear.rows] == ["AlexNet fc6 3.2%, batch 1"]
    assert "medians of 40 turns, CPU time of the calling thread, torch 2.3, ONNX Runtime 1.2, AVX2" in networks.note
    assert (
        "1 of 3 reach their target, the speed-up we aim at; a target of 2× or more also requires being faster than ONNX"
        in networks.note
    )


def test_convolutions_have_a_row_for_each_shape_and_a_column_for_each_density(results):
    grid = speed_tables(results)[2]
    assert grid.header[1:] == ("5 % left", "35 % left")
    assert grid.rows == (
        ("target", "7.00×", "1.40×"),
        ("VGG conv1_2", "8.00×", "**1.25×, missed**"),
        ("ResNet 3×3 128, stride 2", "**7.50×, missed: ONNX Runtime is faster**", "–"),
    )
    assert "1 of 3 reach their target" in grid.note


def test_deployed_networks_show_every_dense_engine_and_their_memory(results):
    path = results / "benchmarks" / "deployed_networks.json"
    assert deployed_speeds(results).rows == ()
    memory = {"read_memory": 0.34, "held_memory": 0.8}
    both = row(1.5, 1.0, over=1.5, ms={"eager": 3.0, "onnxruntime": 1.5, "sparse": 1.0}, **memory)
    one = row(0.9, 1.1, reached=False, **memory)
    path.write_text(json.dumps({"rows": {"a net, 1 thread": both, "a net, 2 threads": one}, **ABOUT}))
    grid = deployed_speeds(results)
    assert grid.header[1:4] == ("eager ms", "onnxruntime ms", "sparse ms")
    assert grid.rows[0][1:] == ("3", "1.5", "1", "1.50×", "1.40 … 1.60", "1.00×", "0.34 (0.80)")
    assert grid.rows[1][2:5] == ("–", "2.22", "**0.90×, missed**")
    assert "1 of 2 reach their target" in grid.note


def test_deployed_networks_name_rows_and_engines_that_are_not_measured(results):
    path = results / "benchmarks" / "deployed_networks.json"
    memory = {"read_memory": 0.34, "held_memory": 0.8}
    one = row(1.5, 1.0, over=1.5, ms={"eager": 3.0, "onnxruntime": 1.5, "sparse": 1.0}, **memory)
    missing = {"openvino": "openvino cannot be imported"}
    names = ["a net, 1 thread", "a net, 2 threads"]
    path.write_text(json.dumps({"rows": {names[0]: one}, "names": names, **ABOUT, "missing": missing}))
    grid = deployed_speeds(results)
    assert grid.rows[1] == (names[1], "–", "–", "–", "not measured", "–", "–", "–")
    assert len(grid.rows[0]) == len(grid.rows[1]) == len(grid.header)
    assert "torch 2.3, ONNX Runtime 1.2, AVX2. 1 of 1 reach their target" in grid.note
    assert "CPU time was taken on a busy machine" in grid.note
    assert grid.note.endswith("Not measured: openvino (openvino cannot be imported).")


def test_two_threads_are_compared_with_one(results):
    grid = speed_tables(results)[3]
    assert grid.rows == (("VGG conv1_2, 10%", "1.75×", "1.65 … 1.85", "1.60×", "2.00×"),)
    assert "over one thread, in turns in one process: medians of 11 turns, wall clock, torch 2.3, AVX2." in grid.note


def test_of_the_sweep_each_network_shows_its_slowest_case_and_all_that_miss(results):
    grid = speed_tables(results)[4]
    assert grid.rows == (
        ("separable", "2", "0.80× (100%, batch 256)", "0.70 … 0.90", "1", "100%, batch 256"),
        ("perceptron", "1", "0.97× (1%, batch 4)", "0.87 … 1.07", "0", "none"),
    )


def test_the_sweep_says_which_cases_were_measured_and_how(results):
    note = speed_tables(results)[4].note
    # Two networks, three densities, three batch sizes.
    assert note.startswith("Densities of 0, 1 and 100 % and batch sizes of 1, 4 and 256: 3 of the 18 combinations")
    assert "2 of 3 reach 0.98× by the upper end of the 95 % interval of the median, 1 by the median itself." in note
    assert "medians of 150 or 200 turns" in note
    assert "ONNX Runtime" not in note  # which was not there


def test_a_target_says_all_that_a_row_must_reach(results):
    path = results / "benchmarks" / "sparse_networks.json"
    judged = row(3.0, 4, limit=3.5, or_share_of_limit=0.8, plan_s_at_most=2.5)
    path.write_text(json.dumps({"rows": {"a net, batch 1": judged}, **ABOUT}))
    assert speed_tables(results)[0].rows[0][5] == "4.00× or 80 % of the limit, planned in 2.5 s"


def test_every_row_that_was_measured_is_in_a_table_or_counted_there(results):
    networks, linear, convolutions, threads, sweep = speed_tables(results)
    cells = sum(cell != "–" for line in convolutions.rows[1:] for cell in line[1:])
    swept = sum(int(line[1]) for line in sweep.rows)
    shown = len(networks.rows) + len(linear.rows) + cells + len(threads.rows) + swept
    assert shown == len(NETWORKS) + len(LAYERS)


def test_the_readme_has_a_small_table_of_networks_without_targets(results):
    grid = network_speeds(results)
    assert grid.header == ("network", "batch", "speed-up, AVX2")
    assert grid.rows == (
        ("lenet-300-100 as pruned", "1", "6.25×"),
        ("lenet-300-100 as pruned", "64", "11.0×"),
        ("resnet-50, 90% zeros in convolutions", "1", "2.60×"),
    )
    assert (
        "2 of 3 reach 0.98× by the upper end of the 95 % interval of the median, 1 by the median itself." in grid.note
    )
    assert grid.as_markdown() in with_results((ROOT / "README.md").read_text(), results)


def test_machines_with_longer_vectors_have_a_column_and_tables_of_their_own(results):
    folder = results / "benchmarks"
    wide = {"rows": {"resnet-50, 90% zeros in convolutions, batch 1": row(3.5, 2.5, over=2.0)}, **ABOUT}
    (folder / "sparse_networks-avx512.json").write_text(json.dumps({**wide, "processor": "Some Xeon"}))
    (folder / "sparse_layers-avx512.json").write_text(json.dumps({"rows": LAYERS, **ABOUT}))
    grid = network_speeds(results)
    assert grid.header[2:] == ("speed-up, AVX2", "speed-up, AVX-512")
    assert [line[2:] for line in grid.rows] == [("6.25×", "–"), ("11.0×", "–"), ("2.60×", "3.50×")]
    assert speed_tables(results, "-avx512")[0].note.partition(". ")[0].endswith("AVX2, Some Xeon")
    page = results_page(results)
    assert "## Speed: convolutions" in page
    assert "## Speed with AVX-512: convolutions" in page
    assert "## Speed with AVX-512: is any network ever slower?" not in page


def test_without_measurements_there_are_no_tables(tmp_path):
    assert all(grid.rows == () for grid in (*speed_tables(tmp_path), network_speeds(tmp_path)))
    assert "Speed" not in results_page(tmp_path)
    assert "Speed-up" not in with_results((ROOT / "README.md").read_text(), tmp_path)
