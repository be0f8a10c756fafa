import hashlib
import json
import math
import shutil
import struct
import sys
from dataclasses import asdict, fields, replace
from pathlib import Path

import pytest
import torch

from secateur import data
from secateur.data.files import DataFile
from secateur.data.sources import SOURCES
from secateur.experiments import presets
from secateur.experiments import reproduce as reproducing
from secateur.experiments.job import Job, evaluate, load_model, load_sibling, read_job, run, validation_by_cutoff
from secateur.experiments.presets import preset
from secateur.experiments.reproduce import jobs, largest_layers_prune_most, layer_sizes, mean_std, summarize
from secateur.experiments.rundir import RunDirectory, RunError, newest_finished
from secateur.measure import count
from secateur.report.speed_tables import step_table
from secateur.report.tables import sensitivity_table, table1, table2
from secateur.sibling import SiblingConfig
from secateur.train.loop import TrainConfig

JOB = Job(network="lenet-300-100", data="digits", train=TrainConfig(epochs=1, fine_tune_epochs=1, rho=0.2))


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A finished run, to be read; `copy_of` gives one to be spoilt."""
    torch.set_num_threads(1)
    return run(JOB, tmp_path_factory.mktemp("finished"))


def copy_of(directory: RunDirectory, into: Path) -> RunDirectory:
    return RunDirectory(Path(shutil.copytree(directory.path, into / directory.path.name)))


# What a run is called


@pytest.mark.parametrize(
    ("job", "name"),
    [
        (Job(network="lenet-5"), "lenet-5-mnist-seed=0"),
        (Job(network="lenet-5", data="digits", method="dense", seed=7), "lenet-5-digits-dense-seed=7"),
        (
            Job(network="lenet-300-100", sibling=SiblingConfig(alpha=50), train=TrainConfig(rho=0.05, epochs=36)),
            "lenet-300-100-mnist-alpha=50-epochs=36-rho=0.05-seed=0",
        ),
        (
            Job(network="lenet-5", train=TrainConfig(schedule="cosine", clip_norm=1.0, decay_biases=True)),
            "lenet-5-mnist-schedule=cosine-decay_biases=True-clip_norm=1-seed=0",
        ),
    ],
)
def test_a_run_is_named_after_what_differs_from_the_defaults(job, name):
    assert job.name == name


OTHER = {
    "granularity": "layer",
    "init": "inverse",
    "optimizer": "sgd",
    "schedule": "cosine",
    "scaling": "standard",
    "precision": "bf16",
    "decay_biases": True,
    "clip_norm": 0.5,
}


@pytest.mark.parametrize("part", ["sibling", "train"])
def test_every_setting_that_is_not_the_default_is_in_the_name(part):
    config = getattr(JOB, part)
    for entry in fields(config):
        usual = getattr(config, entry.name)
        value = OTHER.get(entry.name, usual + 1 if isinstance(usual, int) else 0.25)
        other = replace(JOB, **{part: replace(config, **{entry.name: value})})
        assert f"-{entry.name}={value}" in other.name


def test_settings_that_differ_in_the_last_digit_have_names_of_their_own():
    one, other = (replace(JOB, train=TrainConfig(lr=lr)) for lr in (0.1, math.nextafter(0.1, 1)))
    assert one.name != other.name


@pytest.mark.parametrize("name", presets.preset_names())
def test_a_job_comes_back_from_json(name):
    job = preset(name, "lenet-300-100", seed=3)
    assert Job.from_json(json.loads(json.dumps(asdict(job)))) == job


def test_an_older_job_without_a_field_has_its_default():
    content = json.loads(json.dumps(asdict(JOB)))
    del content["train"]["clip_norm"]
    assert Job.from_json(content) == JOB


# What a run leaves


def test_a_run_leaves_a_plain_network_with_the_zeros_it_speaks_of(finished):
    result, (model, _) = finished.read(finished.result), load_model(finished.model)
    totals = count(model)
    assert result["prunable"] == totals.prunable.weights == 266_200
    assert result["kept"] == totals.prunable.kept < 266_200
    assert result["parameters"] == totals.whole.weights == 266_610
    assert result["ratio"] == pytest.approx(266_200 / result["kept"])
    assert [(layer["name"], layer["weights"]) for layer in result["layers"]] == [
        ("fc1.weight", 235_200),
        ("fc2.weight", 30_000),
        ("fc3.weight", 1_000),
    ]


def test_a_result_says_what_it_was_made_with(finished):
    result = finished.read(finished.result)
    assert Job.from_json(result["job"]) == read_job(finished) == JOB
    assert (result["training_images"], result["validation_images"], result["threads"]) == (1200, 300, 1)
    assert set(result["seconds"]) == {"train", "fine-tune"}
    assert result["versions"]["torch"] == torch.__version__
    assert set(result["versions"]) == {"secateur", "torch", "accelerate", "python", "machine", "cpu"}
    assert set(result["validation"]) == {"sibling", "theta", "raw", "final"}


def test_fine_tuning_keeps_every_zero(finished):
    from secateur.prune import prune

    cut = prune(load_sibling(finished, JOB), JOB.train.cutoff).state_dict()
    final = load_model(finished.model)[0].state_dict()
    assert all((final[name][cut[name] == 0] == 0).all() for name in cut if name.endswith("weight"))
    assert any(not torch.equal(final[name], cut[name]) for name in cut)


def test_the_best_cutoff_is_judged_on_validation_images(finished):
    answers = validation_by_cutoff(finished, (1e-3, 1e3))
    assert answers["0.001"]["error"] == finished.read(finished.result)["validation"]["theta"]
    assert answers["1000"]["ratio"] == math.inf


def test_a_finished_run_is_not_trained_again(finished):
    before = {path: path.stat().st_mtime_ns for path in finished.path.iterdir()}
    assert run(JOB, finished.path.parent) == finished
    assert {path: path.stat().st_mtime_ns for path in finished.path.iterdir()} == before


def test_the_newest_finished_run_is_found(finished, tmp_path):
    with pytest.raises(RunError, match=r"there is no finished run in .*: secateur prune"):
        newest_finished(tmp_path)
    for name in ("b", "a"):
        shutil.copytree(finished.path, tmp_path / name)
        (tmp_path / name / "result.json").touch()
    (tmp_path / "c").mkdir()
    assert newest_finished(tmp_path).path.name == "a"


def test_a_run_of_another_job_in_the_same_place_is_refused(finished, tmp_path):
    directory = copy_of(finished, tmp_path)
    directory.write(directory.job, asdict(replace(JOB, train=replace(JOB.train, lr=0.5))))
    with pytest.raises(RunError, match="holds a run with other settings"):
        run(JOB, tmp_path)


# Which images are read


@pytest.fixture
def tiny_mnist(tmp_path, monkeypatch):
    """A directory with 50 training and 10 test images under the names of MNIST's files."""

    def files(known: tuple[DataFile, ...], images: int) -> tuple[DataFile, ...]:
        contents = (
            struct.pack(">4B3I", 0, 0, 8, 3, images, 28, 28) + bytes(i % 251 for i in range(images * 784)),
            struct.pack(">4BI", 0, 0, 8, 1, images) + bytes(i % 10 for i in range(images)),
        )
        for file, content in zip(known, contents, strict=True):
            (tmp_path / "mnist" / file.name).write_bytes(content)
        return tuple(
            DataFile(file.name, len(content), hashlib.md5(content).hexdigest())
            for file, content in zip(known, contents, strict=True)
        )

    (tmp_path / "mnist").mkdir()
    mnist = SOURCES["mnist"]
    small = replace(mnist, train=files(mnist.train, 50), test=files(mnist.test, 10))
    monkeypatch.setitem(SOURCES, "mnist", small)
    return tmp_path


_opened: list[str] = []
sys.addaudithook(lambda event, arguments: _opened.append(str(arguments[0])) if event == "open" else None)


def opened_images() -> set[str]:
    return {Path(path).name.split("-")[0] for path in _opened if path.endswith("ubyte")}


def test_training_opens_no_test_image_and_evaluation_opens_them_once(tiny_mnist):
    _opened.clear()
    directory = run(replace(JOB, data="mnist"), tiny_mnist / "runs", data_root=tiny_mnist)
    assert opened_images() == {"train"}
    _opened.clear()
    first = evaluate(directory, data_root=tiny_mnist)
    assert opened_images() == {"t10k"}
    _opened.clear()
    assert evaluate(directory, data_root=tiny_mnist) == first
    assert opened_images() == set()


def test_an_evaluation_judges_every_form_of_the_network(finished, tmp_path):
    directory = copy_of(finished, tmp_path)
    errors = evaluate(directory)["error"]
    test = data.load("digits", "test")
    model, scaling = load_model(directory.model)
    wrong = (model(scaling(test.images)).argmax(1) != test.labels).float().mean().item()
    assert errors["final"] == pytest.approx(100 * wrong)
    assert set(errors) == {"sibling", "theta", "raw", "final"}


def test_an_unfinished_run_is_not_evaluated(finished, tmp_path):
    directory = copy_of(finished, tmp_path)
    directory.result.unlink()
    with pytest.raises(RunError, match=r"result\.json does not exist: the run is not finished"):
        evaluate(directory)
    assert not directory.test.exists()


def change(path: Path, **settings: object) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | settings))


@pytest.mark.parametrize(
    ("spoil", "sentence"),
    [
        (lambda run: run.result.write_text('{"job": '), r"result\.json is damaged \(.*\): delete"),
        (lambda run: run.result.write_text("[]"), r"result\.json is damaged \(no job in it\)"),
        (lambda run: run.result.write_bytes(b"\xff\xfe"), r"result\.json is damaged"),
        (lambda run: run.job.write_text("7"), r"job\.json is damaged"),
        (lambda run: change(run.job, colour="red"), r"job\.json is damaged \(.*colour.*\)"),
        (lambda run: change(run.job, train={"rho": -1}), r"job\.json is damaged \(rho must be ≥ 0"),
        (lambda run: change(run.job, network="lenet-5"), r"train\.checkpoint\S+ does not hold the lenet-5"),
        (lambda run: run.model.write_bytes(b"nothing"), r"model\.safetensors is not a model written by a run"),
        (lambda run: run.model.unlink(), r"model\.safetensors does not exist"),
        (lambda run: run.test.write_text("{}"), r"test\.json is damaged \(no error in it\)"),
    ],
)
def test_a_damaged_run_is_one_sentence(finished, tmp_path, spoil, sentence):
    directory = copy_of(finished, tmp_path)
    spoil(directory)
    with pytest.raises(RunError, match=sentence):
        evaluate(directory)


def test_a_network_is_not_tried_on_images_of_another_shape(finished, tmp_path, monkeypatch):
    colour = data.ImageSet(torch.zeros(20, 3, 32, 32, dtype=torch.uint8), torch.zeros(20, dtype=torch.int64))
    monkeypatch.setattr(data, "load", lambda *_: colour)
    message = r"lenet-300-100 takes images of shape \(1, 28, 28\), digits has \(3, 32, 32\)"
    with pytest.raises(ValueError, match=message):
        evaluate(copy_of(finished, tmp_path))
    with pytest.raises(ValueError, match=message):
        run(JOB, tmp_path / "runs")
    assert not (tmp_path / "runs").exists()


# Statistics, on results written by hand


def publish(results: Path, method: str, seed: int, error: float, kept: int = 1, **more: object) -> None:
    layers = [
        {"name": "fc1.weight", "weights": 1000, "kept": kept},
        {"name": "fc2.weight", "weights": 100, "kept": 20 + seed},
        {"name": "fc3.weight", "weights": 10, "kept": 5},
    ]
    content = {
        "job": {"method": method, "seed": seed},
        "test": {"error": {"final": error, "raw": error + 1}},
        "kept": kept,
        "ratio": 100 / kept,
        "layers": layers,
        "seconds": {"train": 60, "fine-tune": 30 * seed},
        "training_images": 55_000,
    }
    path = results / "lenet-300-100" / "paper" / f"{method}-seed{seed:02d}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content | more))


@pytest.fixture
def results(tmp_path):
    for seed, error, kept in ((0, 1.5, 10), (1, 1.7, 20), (2, 1.9, 30)):
        publish(tmp_path, "prune", seed, error, kept)
    for seed, error in ((0, 1.4), (1, 1.8), (2, 1.7), (3, 9.9)):
        publish(tmp_path, "dense", seed, error)
    return tmp_path


def test_mean_and_deviation_are_those_of_a_sample():
    assert mean_std([1, 2, 3, 4]) == pytest.approx((2.5, math.sqrt(5 / 3)))
    assert mean_std([7])[0] == 7
    assert math.isnan(mean_std([7])[1])


def test_a_row_sums_up_the_seeds(results):
    row = summarize(results, "paper", "lenet-300-100")
    assert row.seeds == 3
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
    row = summarize(results, "paper", "lenet-300-100")
    assert row.difference == pytest.approx(expected)
    assert row.raw_difference == pytest.approx((expected[0] + 1, expected[1]))


def test_without_seeds_there_is_no_row_and_without_partners_no_difference(tmp_path):
    assert summarize(tmp_path, "paper", "lenet-300-100") is None
    publish(tmp_path, "prune", 0, 1.5)
    row = summarize(tmp_path, "paper", "lenet-300-100")
    assert all(math.isnan(value) for value in (*row.difference, *row.dense_error))


def test_table_1_sets_our_figures_beside_the_published_ones(results):
    grid = table1(results, ("paper", "quick"), ("lenet-300-100",))
    assert [row[:2] for row in grid.rows] == [
        ("lenet-300-100, Han et al. 2015", "–"),
        ("lenet-300-100, the paper", "–"),
        ("lenet-300-100, secateur paper", "3, dense 4"),
    ]
    assert [row[4:7] for row in grid.rows[:2]] == [("−0.1", "21K", "12×"), ("+0.1", "14K", "19×")]
    assert grid.rows[2][2:] == (
        "3.70 ± 4.14",
        "1.70 ± 0.20",
        "+0.07 ± 0.09",
        "20 ± 10",
        "6.1× ± 3.5",
        "1.5 ± 0.5",
    )
    assert "55,000 images" in grid.note
    assert "survivors back at their raw weights, the paper preset has lenet-300-100 2.70 ± 0.20 % (+1.07 ±" in grid.note
    assert grid.as_markdown().splitlines()[1] == "| --- |" + " ---: |" * 7


def test_table_2_says_whether_the_largest_layers_are_pruned_most(results):
    grid = table2(results, "paper", ("lenet-300-100",))
    assert grid.rows[0] == ("lenet-300-100, fc1", "235,200", "94.7", "98.0 ± 1.0")
    assert [row[2] for row in grid.rows] == ["94.7", "83.8", "11.9", "94.7"]
    assert "share pruned follows the size" in grid.note
    publish(results, "prune", 0, 1.5, kept=900)
    publish(results, "prune", 1, 1.5, kept=900)
    assert "does not quite follow" in table2(results, "paper", ("lenet-300-100",)).note


def test_the_papers_own_shares_follow_the_size_of_the_layers(results):
    row = summarize(results, "paper", "lenet-300-100")
    for network, published in reproducing.PAPER_LAYERS.items():
        printed = replace(row, layers={name: (share, 0.0) for name, share in published.pruned.items()})
        assert largest_layers_prune_most(printed, layer_sizes(network))


# Runs for a table


@pytest.fixture
def digits(monkeypatch):
    """Presets of one epoch on digits."""
    tiny = (SiblingConfig(), TrainConfig(epochs=1, rho=0.2))
    monkeypatch.setitem(presets._PRESETS, "paper", {"lenet-300-100": tiny})
    original = presets.preset
    monkeypatch.setattr(reproducing, "preset", lambda name, network: original(name, network, data="digits"))
    monkeypatch.setattr(reproducing, "_QUANTILES", (0.0, 0.1))


def places(root: Path) -> dict[str, object]:
    return {"results": root / "results", "runs": root / "runs", "workers": 1, "data_root": None}


def test_a_name_that_no_file_system_takes_is_cut_and_still_a_name_of_its_own():
    train = TrainConfig(epochs=161, lr=0.00123456, rho=0.0123456, lambda_t=0.0123, lambda_wd=0.000123, cutoff=0.00123)
    train = replace(train, fine_tune_epochs=61, fine_tune_lr=0.0021, batch_size=100, decay_biases=True, clip_norm=1.5)
    train = replace(train, input_dropout=0.11, augment=0.51, scaling="standard", accumulate=2, precision="bf16")
    sibling = SiblingConfig(alpha=51.5, init_quantile=0.123, init="inverse", granularity="element")
    one, other = (
        Job(network="lenet-300-100", sibling=sibling, train=replace(train, schedule=schedule))
        for schedule in ("cosine", "constant")
    )
    assert len(one.name) < 240
    assert one.name != other.name
    assert one.name.endswith("-seed=0")


def test_a_damaged_result_is_named(tmp_path):
    path = tmp_path / "lenet-300-100" / "paper" / "prune-seed00.json"
    path.parent.mkdir(parents=True)
    for content in ("{", "{}", "[1]"):
        path.write_text(content)
        with pytest.raises(RunError, match=r"prune-seed00\.json is damaged"):
            summarize(tmp_path, "paper", "lenet-300-100")


def test_presets_that_differ_in_their_thresholds_share_the_dense_reference():
    best, accurate = (jobs(name, "lenet-300-100", [3]) for name in ("best", "accurate"))
    assert best[0] != accurate[0]
    assert best[1] == accurate[1]
    assert best[1].train.schedule == best[0].train.schedule
    assert best[1].train.input_dropout == best[0].train.input_dropout


def test_the_dense_reference_trains_as_long_as_the_pruned_network():
    pruned, dense = jobs("quick", "lenet-300-100", [4])
    assert (pruned.method, dense.method, pruned.seed, dense.seed) == ("prune", "dense", 4, 4)
    assert dense.train.epochs == pruned.train.epochs + pruned.train.fine_tune_epochs
    assert dense.train.fine_tune_epochs == 0
    of_pruning = ("epochs", "fine_tune_epochs", "fine_tune_lr", "rho", "lambda_t", "cutoff")
    assert replace(dense.train, **{name: getattr(pruned.train, name) for name in of_pruning}) == pruned.train


def test_what_is_missing_is_run_and_what_is_there_is_not(tmp_path, digits):
    wanted = [("paper", job) for job in jobs("paper", "lenet-300-100", [0])]
    names = [path.name for path in reproducing.run_missing(wanted, **places(tmp_path))]
    assert names == ["prune-seed00.json", "dense-seed00.json"]
    assert list(reproducing.run_missing(wanted, **places(tmp_path))) == []
    row = summarize(tmp_path / "results", "paper", "lenet-300-100")
    found = reproducing.read_results(tmp_path / "results", "paper", "lenet-300-100")
    error, reference = (found[method][0]["test"]["error"]["final"] for method in ("prune", "dense"))
    assert row.difference[0] == pytest.approx(error - reference)


def test_a_published_result_holds_configuration_versions_time_and_history(tmp_path, digits):
    wanted = [("paper", job) for job in jobs("paper", "lenet-300-100", [2])[:1]]
    [path] = reproducing.run_missing(wanted, **places(tmp_path))
    result = json.loads(path.read_text())
    assert Job.from_json(result["job"]) == wanted[0][1]
    assert result["versions"]["torch"] == torch.__version__
    assert result["seconds"]["train"] > 0
    assert result["test"]["test_images"] == 297
    assert [set(record) for record in result["history"]] == [{"epoch", "error", "ratio"}]


def test_the_sensitivity_study_reads_no_test_image(tmp_path, digits, monkeypatch):
    asked = []
    load = data.load
    monkeypatch.setattr(data, "load", lambda name, split, root: asked.append(split) or load(name, split, root))
    wanted = reproducing.sensitivity_jobs("lenet-300-100", [0])
    assert len(list(reproducing.run_missing(wanted, **places(tmp_path)))) == 2
    assert set(asked) == {"train"}
    grid = sensitivity_table(tmp_path / "results", "lenet-300-100")
    assert [row[:2] for row in grid.rows[:3]] == [("p = 0", "1"), ("p = 0.1", "1"), ("γ = 1e-05", "1")]


def test_workers_of_their_own_give_the_same_result(tmp_path, digits):
    wanted = [("paper", job) for job in jobs("paper", "lenet-300-100", [0])[1:]]
    for workers, place in ((1, tmp_path / "here"), (2, tmp_path / "there")):
        assert len(list(reproducing.run_missing(wanted, **places(place) | {"workers": workers}))) == 1
    here, there = sorted(tmp_path.glob("*/runs/*/model.safetensors"))
    assert here.read_bytes() == there.read_bytes()


def test_a_preset_that_is_misspelt_or_not_for_a_network_is_one_sentence():
    with pytest.raises(ValueError, match='there is no preset "qick": did you mean "quick"'):
        preset("qick", "lenet-5")
    with pytest.raises(ValueError, match='preset "accurate" has settings for lenet-300-100, not for "lenet-5"'):
        preset("accurate", "lenet-5")


@pytest.mark.parametrize("path", sorted((Path(__file__).parents[1] / "results").glob("*/paper/search.json")), ids=str)
def test_the_papers_epochs_are_those_that_the_published_search_chose(path):
    search = json.loads(path.read_text())
    assert preset("paper", search["job"]["network"]).train.epochs == search["chosen_epochs"]


def test_the_cost_of_a_step_is_shown_as_it_was_measured(tmp_path):
    assert step_table(tmp_path).rows == ()
    row = {"plain_ms": 2.0, "sibling_ms": 2.5, "ratio": 1.254, "interval": [1.2, 1.3]}
    (tmp_path / "benchmarks").mkdir()
    (tmp_path / "benchmarks" / "training_step.json").write_text(json.dumps({"rows": {"a net": row}}))
    assert step_table(tmp_path).rows == (("a net", "2.00", "2.50", "1.25", "1.20 … 1.30"),)
