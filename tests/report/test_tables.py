"""Tables of published runs: ours next to the printed ones, every error next to the dense network of its recipe."""

import json
import math
from dataclasses import replace

import pytest
from made_runs import STEPS, made_result, publish

from secateur.experiments.presets import preset
from secateur.experiments.studies.curve_summary import longer_job
from secateur.experiments.studies.error_increase_summary import ErrorIncreaseStudy, Swept, error_increase_path
from secateur.experiments.studies.published import result_path
from secateur.experiments.studies.searches import EpochSearch, QualitySearch, epoch_search_path, quality_search_path
from secateur.experiments.studies.summaries import summarize
from secateur.job import Job
from secateur.literature import LAYERS
from secateur.methods import Dense, Joint
from secateur.report.tables.alexnet import alexnet_cost_table, imagenette_tables, thresholds_table
from secateur.report.tables.budgets import (
    call_table,
    cost_table,
    error_increase_table,
    met_table,
    step_table,
    together_table,
)
from secateur.report.tables.codecs import coder_table, large_file_table
from secateur.report.tables.comparison import comparison_table, stages_table
from secateur.report.tables.curve import curve_headline, curve_layers_table, curve_table
from secateur.report.tables.files import file_table, headline_table
from secateur.report.tables.paper import search_table, table1, table2
from secateur.report.tables.pretrained import encoder_table, pruned_table, scores_table
from secateur.report.tables.readme import references
from secateur.report.tables.throughput import throughput_table
from secateur.results import EvaluationResult, FileResult, HistoryPoint, LayerResult, PublishedRun, StageResult, write

NETWORK = "lenet-300-100"


def publish_preset(results, name, seeds, *, dense=1.0, error=2.0, to_file=False):
    """Publish the runs of a preset, whose errors grow by 0.1 with the seed, and their dense references."""
    for seed in seeds:
        job = preset(name, NETWORK, seed=seed)
        publish(results, job, test={"raw": error + 1 + seed / 10, "pruned": error + seed / 10}, share=0.01 * (seed + 1))
        publish(results, job.reference(), test={"dense": dense + seed / 10}, errors={"dense": dense}, share=1)
        if to_file:
            whole = preset(name, NETWORK, seed=seed, to_file=True)
            size = FileResult(bytes=2_000 + 100 * seed, dense_bytes=1_000_000)
            publish(results, whole, test={"file": error + 0.5 + seed / 10}, share=0.01, file=size)


def test_table_1_shows_our_numbers_next_to_the_printed_ones(tmp_path):
    publish_preset(tmp_path, "paper", range(3))
    grid = table1(tmp_path, ("paper", "quick"), (NETWORK,))
    assert [row[:2] for row in grid.rows] == [
        (f"{NETWORK}, Han et al. 2015, as quoted by the paper", "–"),
        (f"{NETWORK}, the paper", "–"),
        (f"{NETWORK}, secateur paper", "3"),
    ]
    assert [row[4:7] for row in grid.rows[:2]] == [("−0.1", "21K", "12×"), ("+0.1", "14K", "19×")]
    assert grid.rows[2][2:5] == ("1.10 ± 0.10", "2.10 ± 0.10", "+1.00 ± 0.00")
    assert "Trained on 1,200 images" in grid.note
    assert f"(the paper's form), the paper preset has {NETWORK} 3.10 ± 0.10 % (+2.00 ± 0.00 points)" in grid.note
    assert grid.as_markdown().splitlines()[1] == "| --- |" + " ---: |" * 7


def test_other_numbers_of_dense_seeds_are_shown(tmp_path):
    publish_preset(tmp_path, "paper", range(2))
    publish(tmp_path, preset("paper", NETWORK, seed=7).reference(), test={"dense": 1.0}, errors={"dense": 1.0}, share=1)
    assert table1(tmp_path, ("paper",), (NETWORK,)).rows[2][1] == "2, dense 3"


def test_a_network_that_the_paper_does_not_have_has_no_printed_rows(tmp_path):
    assert table1(tmp_path, ("paper",), ("resnet-20",)).rows == ()
    assert [row[2] for row in table2(tmp_path, "paper", (NETWORK,)).rows] == ["94.7", "83.8", "11.9", "94.7"]


def test_alexnet_is_printed_with_its_top_5_errors(tmp_path):
    grid = table1(tmp_path, ("paper",), ("alexnet",))
    assert grid.header[4:8] == ("difference, points", "top-5 error %", "top-5 difference, points", "weights kept")
    assert [row[4:9] for row in grid.rows] == [
        ("0.0", "–", "0.0", "7,000K", "9×"),
        ("+1.1", "–", "+1.0", "5,000K", "12×"),
    ]
    assert [row[1:3] for row in table2(tmp_path, "paper", ("alexnet",)).rows[5:7]] == [
        ("37,748,736", "96.8"),
        ("16,777,216", "91.5"),
    ]


def test_on_other_data_than_the_papers_nothing_is_printed(tmp_path):
    assert table1(tmp_path, ("paper",), ("alexnet",), data="imagenette").rows == ()
    assert {row[2] for row in table2(tmp_path, "paper", ("alexnet",), data="imagenette").rows} == {"–"}


def publish_alexnet(results, kept):
    """Publish an AlexNet on Imagenette of whose layers of 1,000 weights so many are kept, and its dense reference."""
    job = preset("quick", "alexnet", data="imagenette")
    publish(results, job.reference(), test={"dense": 30.0})
    layers = [LayerResult(name=f"{name}.weight", shape=(1000,), weights=1000, kept=left) for name, left in kept.items()]
    result = replace(made_result(job), layers=tuple(layers), weights=1000 * len(layers), kept=sum(kept.values()))
    path = result_path(results, job)
    write(path, PublishedRun(result=result, test=EvaluationResult(errors={"pruned": 31.0}, images=100)))


def test_alexnet_on_imagenette_is_shown_next_to_the_papers_shares(tmp_path):
    assert [grid.rows for grid in imagenette_tables(tmp_path)] == [(), ()]
    names = ("conv1", "conv2", "conv3", "conv4", "conv5", "fc6", "fc7", "fc8")
    kept = dict.fromkeys(names, 500) | {"fc6": 20, "fc7": 30}
    publish_alexnet(tmp_path, kept)
    whole, layers = imagenette_tables(tmp_path)
    assert whole.rows[0][2:7] == ("30.00", "31.00", "+1.00", "3,050", "2.6×")
    assert layers.rows[5] == ("fc6", "1,000", "96.8", "98.0")
    assert layers.note == "fc6 and fc7 are pruned most, as the paper found."
    publish_alexnet(tmp_path, kept | {"conv2": 10})
    assert imagenette_tables(tmp_path)[1].note == "fc6 and conv2 are pruned most; in the paper fc6 and fc7."


def test_table_2_says_whether_the_largest_layers_are_pruned_most(tmp_path):
    publish_preset(tmp_path, "paper", range(2))
    grid = table2(tmp_path, "paper", (NETWORK,))
    assert grid.rows[0] == (f"{NETWORK}, fc1", "235,200", "94.7", "98.5 ± 0.7")
    assert "share pruned follows the size" in grid.note


@pytest.mark.parametrize("network", [NETWORK, "lenet-5"])
def test_the_papers_own_shares_follow_the_size_of_the_layers(tmp_path, network):
    from secateur.experiments.studies.summaries import largest_layers_prune_most, layer_sizes

    publish_preset(tmp_path, "paper", [0])
    row = summarize(tmp_path, "paper", NETWORK)
    [layers] = [each for each in LAYERS if each.network == network]
    printed = replace(row, layers={name: (share, 0.0) for name, share in layers.pruned.items()})
    assert largest_layers_prune_most(printed, layer_sizes(network))


def test_every_error_of_the_readme_stands_next_to_the_dense_network_of_its_recipe(tmp_path):
    publish_preset(tmp_path, "paper", range(2), dense=1.8, to_file=True)
    publish_preset(tmp_path, "best", range(2), dense=0.7, to_file=True)
    grid = headline_table(tmp_path, ("paper", "best"), (NETWORK,))
    assert [row[2] for row in grid.rows] == ["1.85 ± 0.07 → 2.55 ± 0.07", "0.75 ± 0.07 → 2.55 ± 0.07"]
    assert grid.rows[0][3:6] == ("2,662 of 266,200", "2.05 kB ± 0.07", "488×")
    assert grid.rows[1][-1] == f"`secateur compress {NETWORK} --preset best`"
    rows = file_table(tmp_path, ("paper", "best"), (NETWORK,)).rows
    assert [row[0].removeprefix(f"{NETWORK}, ") for row in rows] == [
        "Deep Compression, published",
        "Entropy-penalised reparametrisation, published",
        "secateur paper, huffman",
        "secateur best",
    ]
    assert rows[0][5:] == ("1.58", "27 kB", "40×")
    assert rows[3][3:6] == ("0.75 ± 0.07", "2.05 ± 0.07", "2.55 ± 0.07")


def test_the_references_of_the_package_are_the_means_of_the_dense_runs(tmp_path):
    publish_preset(tmp_path, "best", range(3), dense=0.7)
    assert references(tmp_path) == {
        NETWORK: {"best": {"data": "mnist", "validation": 0.7, "test": 0.8, "seeds": 3}},
    }


def publish_rounds(results, seed, **more):
    job = preset("han2015", NETWORK, seed=seed)
    publish(results, job, test={"dense": 1.5, "pruned": 2.0 + seed}, stages=("train", "a round"), share=0.1, **more)


def write_searches(results):
    job = preset("paper", NETWORK)
    shared = {"rule": "", "steps": 300, "seconds": 600.0, "versions": {}}
    history = tuple(HistoryPoint(epoch=epoch, error=2.0, ratio=epoch / 2) for epoch in range(1, 31))
    epochs = EpochSearch(chosen_epochs=23, job=job, history=history, **shared)
    dense = StageResult(name="train", epochs=1, steps=1, seconds=1.0)
    quality = QualitySearch(chosen={}, job=job, dense=dense, threads=1, history=(), **{**shared, "steps": 600})
    for path, search in (
        (epoch_search_path(results, NETWORK), epochs),
        (quality_search_path(results, NETWORK), quality),
    ):
        path.parent.mkdir(parents=True, exist_ok=True)
        write(path, search)


def test_the_claims_of_the_paper_are_compared_with_the_rounds_of_han_et_al(tmp_path):
    publish_preset(tmp_path, "paper", range(2))
    for seed in range(2):
        publish_rounds(tmp_path, seed)
    grid = comparison_table(tmp_path, (NETWORK,))
    assert [row[0].removeprefix(f"{NETWORK}, ") for row in grid.rows] == [
        "Han et al. as quoted by the paper",
        "the paper as published",
        "manessi2018, preset paper",
        "han2015, preset han2015",
    ]
    assert grid.rows[3][1:] == ("2", "2.50 ± 0.71", "+1.00 ± 0.50", "26,620 ± 0", "10.0× ± 0.0", "40", "0.1 ± 0.0")
    assert "times the weights" not in grid.note
    write_searches(tmp_path)
    grid = comparison_table(tmp_path, (NETWORK,))
    assert grid.rows[2][6:] == ("20 (300)", "0.0 ± 0.0 (10.0)")
    assert f"In {NETWORK} preset paper keeps 0.15 times the weights of preset han2015" in grid.note
    assert "an error 0.45 points lower, and takes 0.50 times the steps, 0.50 times with both searches." in grid.note


def test_without_results_the_comparison_shows_what_is_printed(tmp_path):
    assert [row[2] for row in comparison_table(tmp_path, (NETWORK, "lenet-5")).rows] == ["–"] * 4


def test_a_single_seed_has_no_spread(tmp_path):
    publish_rounds(tmp_path, 0)
    assert comparison_table(tmp_path, (NETWORK,)).rows[2][1:6] == ("1", "2.00", "+0.50", "26,620", "10.0×")


def test_the_error_after_each_step_is_shown_when_every_seed_has_it(tmp_path):
    whole = preset("han2015", NETWORK, to_file=True)
    errors = {"dense": 1.8, "pruned": 2.0, "shared": 2.1, "file": 2.1}
    size = FileResult(bytes=27_000, dense_bytes=1_000_000)
    publish(tmp_path, whole, test=errors, file=size)
    grid = stages_table(tmp_path, ("paper", "han2015"), (NETWORK, "lenet-5"))
    assert grid.header[2:] == (
        "dense network, error %",
        "pruned network, error %",
        "few values per layer, error %",
        "read back from the file, error %",
        "file, kB",
    )
    assert grid.rows == ((f"{NETWORK}, han2015", "1", "1.80", "2.00", "2.10", "2.10", "27.0"),)
    publish(tmp_path, replace(whole, seed=1), test={"dense": 1.8, "file": 2.1}, file=size)
    (row,) = stages_table(tmp_path, ("han2015",), (NETWORK,)).rows
    assert row[2:] == ("1.80 ± 0.00", "2.10 ± 0.00", "27.0 ± 0.0")


def test_the_search_is_shown_every_ten_epochs_and_where_it_ended(tmp_path):
    write_searches(tmp_path)
    grid = search_table(tmp_path, (NETWORK, "lenet-5"))
    assert [row[0] for row in grid.rows] == [f"{NETWORK}, {epoch}" for epoch in (1, 10, 20, 23, 30)]
    assert grid.rows[3][1:] == ("11.5×", "2.00")
    assert f"{NETWORK}: 23 epochs." in grid.note


def test_the_cost_of_a_step_is_shown_as_it_was_measured(tmp_path):
    assert step_table(tmp_path).rows == ()
    row = {"plain_ms": 2.0, "sibling_ms": 2.5, "ratio": 1.254, "interval": [1.2, 1.3]}
    (tmp_path / "benchmarks").mkdir()
    (tmp_path / "benchmarks" / "training_step.json").write_text(json.dumps({"rows": {"a net": row}}))
    assert step_table(tmp_path).rows == (("a net", "2.00", "2.50", "1.25", "1.20 … 1.30", "–"),)


def test_throughput_is_shown_next_to_what_is_wanted(tmp_path):
    assert throughput_table(tmp_path).rows == ()
    photographs = {"alexnet": {"images_per_s": 1175.1, "ratio": 1.725, "ceiling": 2.0}, "pillow": {}}
    times = {"dense float": 1200.0, "packed": 40.0, "with packing": 48.0}
    contents = {
        "image_reading": {"rows": photographs, "at_least": 1.7},
        "feature_extraction": {
            "rows": {"decoded": {"images_per_s": 80.4}},
            "ratios": {"decoded ÷ loop": 0.987},
            "at_least": {"decoded ÷ loop": 0.95},
        },
        "xnor": {"batch": 64, "size": 1024, "times_us": times},
        "compare_jobs": {"rows": {"a grid": {"one_s": 18.0, "two_s": 10.0, "speedup": 1.8, "at_least": 1.7}}},
    }
    (tmp_path / "benchmarks").mkdir()
    for name, content in contents.items():
        (tmp_path / "benchmarks" / f"{name}.json").write_text(json.dumps(content))
    assert [row[2:] for row in throughput_table(tmp_path).rows] == [
        ("1,175 images/s", "1.73×", "1.70×"),
        ("80 images/s", "0.99×", "0.95×"),
        ("40 µs", "30.0×", "10.0×"),
        ("48 µs", "25.0×", "10.0×"),
        ("10 s", "1.80×", "1.70×"),
    ]


def test_alexnets_thresholds_and_cost_are_shown_as_they_were_measured(tmp_path):
    assert thresholds_table(tmp_path).rows == alexnet_cost_table(tmp_path).rows == ()
    (tmp_path / "benchmarks").mkdir()
    row = {"thresholds": 1, "weights": 37_748_736, "measured": 4.794e-6, "predicted": 4.795e-6, "whole_run": 0.0676}
    content = {"rows": {"fc6.weight": row}, "steps": 24, "batch_size": 128}
    (tmp_path / "benchmarks" / "alexnet_thresholds.json").write_text(json.dumps(content))
    assert thresholds_table(tmp_path).rows == (("fc6", "1", "37,748,736", "4.79e-06", "4.79e-06", "0.068"),)
    content = {
        "rows": {"8 GPUs, on paper": {"step_ms": 2.25, "exchange_ms": 1.4, "images_per_second": 57000, "hours": 0.5}},
        "epochs": 90,
        "steps": 900_000,
        "batch_size": 128,
        "training_flops_per_image": 4.3e9,
        "all_reduced_bytes": 244e6,
        "sibling_over_plain": 1.05,
        "gpu_flops_per_second": 312e12,
        "utilisation": 0.3,
        "memory_bytes_per_second": 1.555e12,
        "memory_passes": 10,
        "bandwidth_bytes_per_second": {"8": 300e9},
    }
    (tmp_path / "benchmarks" / "alexnet_cost.json").write_text(json.dumps(content))
    grid = alexnet_cost_table(tmp_path)
    assert grid.rows == (("8 GPUs, on paper", "2.2", "1.4", "57,000", "0.5"),)
    assert "4.30 GFLOP an image" in grid.note
    assert "at 30% of 312 TFLOP/s a GPU" in grid.note


def test_the_encoder_is_shown_dense_first_and_then_by_zeros_and_method(tmp_path):
    assert encoder_table(tmp_path).rows == ()
    run = {"method": "magnitude", "sparsity": 0.8, "lr": 1e-3, "weights": 1000, "validation_cosine": 0.5}
    run |= {"cosine": 0.5, "spearman": 0.25, "seconds": 60.0}
    runs = [{**run, "seed": 0}, {**run, "seed": 1}, {**run, "seed": 0, "method": "budget", "cosine": 0.75}]
    slow = {**run, "seed": 0, "lr": 1e-4, "validation_cosine": 0.4}
    runs += [slow, {**slow, "method": "budget", "cosine": 0.3}]
    content = {
        "config": {"steps": 4, "batch": 2},
        "sentences": {"training": 9, "validation": 3, "held_out": 5},
        "pairs": 7,
        "rows": [*runs, {"method": "dense", "cosine": 1.0, "spearman": 0.815}],
    }
    (tmp_path / "benchmarks").mkdir()
    (tmp_path / "benchmarks" / "sentence_encoder.json").write_text(json.dumps(content))
    grid = encoder_table(tmp_path)
    dense, *_, budget, magnitude = grid.rows
    assert "+0.250 at 80 % zeros; at equal rates it is higher except at 80 % zeros and a rate of 0.0001." in grid.note
    assert dense == ("dense", "–", "1", "1", "81.5", "–")
    assert budget == ("80 %, 0.001, budget", "1", "0.500", "0.750", "25.0", "1.0")
    assert magnitude[1:] == ("2", "0.500 ± 0.000", "0.500 ± 0.000", "25.0 ± 0.0", "1.0 ± 0.0")


def test_scores_of_pretrained_networks_are_shown_next_to_the_published_ones(tmp_path):
    assert scores_table(tmp_path).rows == ()
    row = {"network": "a net", "images": 5000, "top1": 70.0, "top5": 90.0, "interval": [1.27, 0.83]}
    row |= {"preprocessing": {"short_side": 256}}
    content = {"rows": {"a": row | {"published": [74.9, 92.1]}, "b": row | {"published": None}}}
    (tmp_path / "benchmarks").mkdir()
    (tmp_path / "benchmarks" / "pretrained_scores.json").write_text(json.dumps(content))
    known, unknown = scores_table(tmp_path).rows
    assert known == ("a net", "256", "5,000", "70.0 ± 1.3", "90.0 ± 0.8", "74.9", "-4.9")
    assert unknown[-2:] == ("–", "–")


def test_networks_pruned_without_their_data_are_shown_by_size_with_paired_differences(tmp_path):
    assert pruned_table(tmp_path).rows == ()
    row = {"network": "a net", "weights": 1000, "kept": 500, "bytes": 2400, "dense_bytes": 10_000, "images": 5000}
    row |= {"top1": 68.0, "top1_dense": 69.0, "top5_dense": 89.0, "top1_interval": 1.29, "latency": {"speedup": 1.5}}
    row |= {"top1_difference": [-1.0, 0.8], "top5_difference": [0.5, 0.6]}
    row |= {"config": {"steps": 60, "quantize_steps": 40, "batch": 32, "precision": "bf16"}}
    (tmp_path / "benchmarks").mkdir()
    content = {"rows": [row, row | {"kept": 300, "sources": {"birds": 1500, "flowers": 300}}]}
    (tmp_path / "benchmarks" / "pruned_without_data.json").write_text(json.dumps(content))
    grid = pruned_table(tmp_path)
    smaller, larger = grid.rows
    assert smaller[0] == "a net, 70.0 %"
    assert larger == (
        "a net, 50.0 %",
        "100",
        "2,400 bytes",
        "24.0 %",
        "68.0 ± 1.3",
        "-1.0 ± 0.8",
        "+0.5 ± 0.6",
        "1.50×",
    )
    assert "steps of 32" in grid.note
    assert "a net learned from 1,500 of birds, 300 of flowers. " in grid.note
    assert "a net 69.0 / 89.0 %. Differences are paired; 95 % intervals. All were evaluated in bfloat16" in grid.note


def test_budgets_are_shown_with_the_worst_optimizer(tmp_path):
    assert met_table(tmp_path).rows == cost_table(tmp_path).rows == call_table(tmp_path).rows == ()
    (tmp_path / "benchmarks").mkdir()
    runs = [
        {"network": "a net", "wanted": 20, "optimizer": name, "ratio": ratio}
        for name, ratio in (("Adam", 20), ("SGD", 19))
    ]
    (tmp_path / "benchmarks" / "budgets_met.json").write_text(json.dumps({"rows": runs, "steps": 7}))
    row = {"step_ms": 4.0, "pruner_ms": 0.1, "share": 0.025}
    (tmp_path / "benchmarks" / "pruner_step.json").write_text(json.dumps({"rows": {"a net": row}}))
    call = {"hand_s": 10.0, "call_s": 10.25, "ratio": 1.025}
    (tmp_path / "benchmarks" / "compress_call.json").write_text(json.dumps({"rows": {"a net": call}}))
    assert call_table(tmp_path).rows == (("a net", "10.0", "10.2", "1.025"),)
    assert met_table(tmp_path).rows == (("a net", "20×", "Adam 20.00×, SGD 19.00×", "5.00%"),)
    assert "7 steps" in met_table(tmp_path).note
    assert cost_table(tmp_path).rows == (("a net", "4.00", "0.100", "2.5%"),)


def test_learning_together_is_compared_at_equal_bytes_with_paired_differences(tmp_path):
    size = FileResult(bytes=2_000, dense_bytes=1_000_000)
    for seed, (first, rate, plain) in enumerate(((2.0, 1.8, 2.1), (2.2, 1.9, 2.2))):
        job = preset("quick", NETWORK, seed=seed, to_file=True)
        publish(tmp_path, job, test={"file": first}, file=size, place={"study": "together"})
        for variant, error in (("rate", rate), ("no-rate", plain)):
            publish(
                tmp_path,
                replace(job, methods=(Joint(bytes=2_000, rate=variant == "rate"),)),
                test={"file": error},
                file=size,
                place={"study": "together", "variant": variant},
                history=(HistoryPoint(epoch=1, error=2.0, ratio=50.0, coded_bytes=1_960.0),),
            )
    grid = together_table(tmp_path, (NETWORK,))
    assert [row[0] for row in grid.rows] == [
        f"{NETWORK}, one after the other",
        f"{NETWORK}, together",
        f"{NETWORK}, together, without the rate term",
    ]
    assert [row[2] for row in grid.rows] == ["2.00 kB ± 0.00"] * 3
    assert [row[5] for row in grid.rows] == ["–", "-0.25 ± 0.05", "+0.05 ± 0.05"]
    assert "off by 2.0% of the file at most" in grid.note


def test_a_budget_of_error_is_shown_with_its_share_of_the_best_of_a_sweep(tmp_path):
    job = preset("quick", NETWORK, seed=1)
    swept = tuple(Swept(ratio=ratio, error=error) for ratio, error in ((57.5, 1.4), (66.0, 1.9)))
    study = ErrorIncreaseStudy(job=job, increase=0.3, dense_error=1.2, error=1.45, ratio=50.0, swept=swept, seconds=1.0)
    assert error_increase_table(tmp_path, (NETWORK,)).rows == ()
    path = error_increase_path(tmp_path, job)
    path.parent.mkdir(parents=True)
    write(path, study)
    [row] = error_increase_table(tmp_path, (NETWORK,)).rows
    assert row == (f"{NETWORK}, 1", "1.20", "1.50", "1.45", "50.0×", "57.5×", "87%")


def test_a_curve_stands_below_what_is_published_for_its_network(tmp_path):
    network = "resnet-56"
    assert curve_table(tmp_path, (network,)).rows == ()
    for seed in (0, 1):
        usual = preset("best", network, data="cifar10", seed=seed, to_file=True)
        publish(
            tmp_path,
            replace(usual, methods=(Dense(), *usual.methods)),
            test={"dense": 7.0 + seed / 10, "pruned": 7.5 + seed / 5, "file": 7.9},
            place={"study": "curve", "variant": "10x"},
            share=0.1,
            file=FileResult(bytes=40_000, dense_bytes=3_400_000),
            stages=("train", "quantize"),
        )
    publish(
        tmp_path, longer_job(network, 0), test={"dense": 6.5}, place={"study": "curve", "variant": "longer"}, share=1
    )
    *published, reference, ours = curve_table(tmp_path, (network,)).rows
    assert reference[:4] == ("resnet-56, cifar10, dense for as long", "1", "90", "6.50")
    assert [row[0] for row in published] == ["resnet-56, cifar10, Learning-compression, published"] * 4
    assert [row[4] for row in published] == ["6.92", "6.67", "7.51", "8.21"]
    assert ours[:3] == ("resnet-56, cifar10, secateur", "2", "50 + 50, file + 2")
    assert ours[3:6] == ("7.05 ± 0.07", "7.60 ± 0.14", "+0.55 ± 0.05")
    assert ours[-2:] == ("40.0 kB ± 0.0 (85×)", f"{128 * 4 * STEPS / 3:,.0f}")
    [row] = curve_headline(tmp_path, (network,)).rows
    assert row[:3] == ("resnet-56, cifar10", "2", "7.05 ± 0.07 → 7.90 ± 0.00")
    assert row[-2:] == ("85×", "`secateur reproduce curve --networks resnet-56 --seeds 2`")
    header, *layers = curve_layers_table(tmp_path, network).header, *curve_layers_table(tmp_path, network).rows
    assert header == ("resnet-56, layer", "10×, pruned %")
    assert layers


def test_without_benchmarks_the_tables_of_codecs_are_empty(tmp_path):
    assert coder_table(tmp_path).rows == large_file_table(tmp_path).rows == ()


def test_a_run_that_was_made_up_is_a_result_like_any_other():
    result = made_result(Job(network=NETWORK))
    assert result.ratio == pytest.approx(20)
    assert math.isfinite(result.error)
