"""A run from end to end on handwritten digits: what it leaves, what it refuses, and what is not done twice."""

import hashlib
import json
import math
import shutil
import struct
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import secateur
from secateur import data
from secateur.atomic import write_atomically
from secateur.data.files import DataFile
from secateur.data.sets import DATA_SETS
from secateur.experiments import runner
from secateur.experiments.directory import RunDirectory, newest_begun, newest_finished
from secateur.experiments.evaluate import evaluate
from secateur.experiments.models import load_model, load_stage, read_recorded
from secateur.experiments.presets import run_name
from secateur.experiments.runner import run
from secateur.experiments.studies.sensitivity import cut_at
from secateur.job import Coding, InputConfig, Job
from secateur.measure import count
from secateur.methods import Dense, FewValues, Han2015, Manessi2018
from secateur.prune import prune
from secateur.results import RunError, write
from secateur.train.journal import read_log
from secateur.train.observers import Silent
from secateur.train.recipe import Recipe

PRUNING = Manessi2018(rho=0.2, fine_tune_epochs=1)
FEW = FewValues(levels=6, bias_levels=15, quantize_epochs=2)
JOB = Job(network="lenet-300-100", data="digits", methods=(PRUNING, FEW), recipe=Recipe(epochs=1))
PRUNE = replace(JOB, methods=(PRUNING,))


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A finished run, to be read; `copy_of` gives one to be spoilt."""
    torch.set_num_threads(1)
    return run(JOB, tmp_path_factory.mktemp("finished"))


def copy_of(directory: RunDirectory, into: Path) -> RunDirectory:
    return RunDirectory(Path(shutil.copytree(directory.path, into / directory.path.name)))


# What a run leaves


def test_a_run_leaves_a_plain_network_with_the_zeros_it_reports(finished):
    result, model = finished.read_result(), load_model(finished.model)
    totals = count(model)
    assert result.weights == totals.prunable.weights == 266_200
    assert result.kept == totals.prunable.kept < 266_200
    assert result.parameters == totals.whole.weights == 266_610
    assert result.ratio == pytest.approx(266_200 / result.kept)
    assert [(layer.name, layer.weights) for layer in result.layers] == [
        ("fc1.weight", 235_200),
        ("fc2.weight", 30_000),
        ("fc3.weight", 1_000),
    ]


def test_a_result_says_what_it_was_made_with(finished):
    result = finished.read_result()
    assert result.job == finished.read_job() == JOB
    assert (result.training_images, result.validation_images, result.threads) == (1200, 300, 1)
    assert result.versions["torch"] == torch.__version__
    assert set(result.versions) == {"secateur", "torch", "accelerate", "python", "machine", "cpu"}
    assert list(result.errors) == ["sibling", "theta", "raw", "pruned", "shared", "file"]
    assert set(result.thresholds) == {"fc1.weight", "fc2.weight", "fc3.weight"}


def test_every_stage_is_counted_alike(finished):
    stages = finished.read_result().stages
    assert [(stage.name, stage.epochs, stage.steps) for stage in stages] == [
        ("train", 1, 10),
        ("fine-tune", 1, 10),
        ("quantize", 2, 20),
    ]
    assert all(stage.seconds > 0 for stage in stages)
    assert stages[1].error_before == finished.read_result().errors["theta"]
    assert stages[1].kept < 266_200 == stages[0].kept


def test_the_file_holds_few_values_and_the_zeros_of_the_run(finished):
    network = secateur.load(finished.file)
    for name, tensor in network.named_parameters():
        values = tensor[tensor != 0].unique()
        assert len(values) <= (15 if tensor.dim() == 1 else 6), name
    result = finished.read_result()
    assert count(network).prunable.kept == result.kept
    # dead units lose their weights, and no other weight is lost
    assert 0.9 * result.stages[1].kept < result.kept <= result.stages[1].kept
    assert result.errors["file"] == result.errors["shared"]
    assert result.file.bytes == finished.file.stat().st_size
    assert result.file.dense_bytes == 4 * 266_610


def test_the_live_estimate_is_near_the_size_of_the_file(finished):
    *_, last = read_log(finished.journal("quantize").log)
    assert last["coded_bytes"] == pytest.approx(finished.file.stat().st_size, rel=0.15)


def test_fine_tuning_keeps_every_zero(finished):
    cut = prune(load_stage(finished), PRUNING.cutoff).state_dict()
    final = load_model(finished.model).state_dict()
    assert all((final[name][cut[name] == 0] == 0).all() for name in cut if name.endswith("weight"))
    assert any(not torch.equal(final[name], cut[name]) for name in cut)


def test_a_stage_that_a_run_does_not_have_is_named(finished):
    with pytest.raises(RunError, match='has no stage "round"'):
        load_stage(finished, "round")


def test_the_best_cutoff_is_chosen_on_validation_images(finished):
    cuts = cut_at(finished, (1e-3, 1e3))
    assert cuts["0.001"].error == finished.read_result().errors["theta"]
    assert cuts["1000"].ratio == math.inf


def test_without_few_values_the_file_holds_the_network_as_it_is(finished, tmp_path):
    job = replace(PRUNE, coding=Coding(sort_units=False))
    directory = run(job, tmp_path)
    model, network = load_model(directory.model), secateur.load(directory.file)
    assert all(torch.equal(value, network.state_dict()[name]) for name, value in model.state_dict().items())
    assert directory.read_result().errors["pruned"] == finished.read_result().errors["pruned"]


def test_a_dense_run_prunes_nothing(tmp_path):
    result = run(JOB.reference(), tmp_path).read_result()
    assert result.job.recipe.epochs == 2
    assert (result.kept, list(result.errors), result.thresholds) == (266_200, ["dense", "file"], {})


def test_the_rounds_of_han_are_stages_of_one_run(tmp_path):
    job = replace(JOB, methods=(Han2015(quality=0.8, rounds=2, retrain_epochs=1), FEW))
    directory = run(job, tmp_path)
    result = directory.read_result()
    names = ["train", "quality=0.8-round=1-fc", "quality=0.8-round=2-fc", "quantize"]
    assert [stage.name for stage in result.stages] == names
    assert list(result.errors) == ["dense", "pruned", "shared", "file"]
    assert evaluate(directory).errors.keys() == result.errors.keys()


def test_a_rate_term_makes_the_file_smaller(tmp_path):
    few = FewValues(quantizer="uniform", levels=15, bias_levels=15, quantize_epochs=2)
    free = run(replace(JOB, methods=(PRUNING, few)), tmp_path)
    paid = run(replace(JOB, methods=(PRUNING, replace(few, lambda_rate=1e-2))), tmp_path)
    assert paid.file.stat().st_size < 0.97 * free.file.stat().st_size


# What is not done twice


def test_a_finished_run_is_not_trained_again(finished):
    before = {path: path.stat().st_mtime_ns for path in finished.path.iterdir()}
    assert run(JOB, finished.path.parent) == finished
    assert {path: path.stat().st_mtime_ns for path in finished.path.iterdir()} == before


@pytest.mark.parametrize("lost", [("file",), ("result",), ("file", "result")])
def test_what_is_lost_is_written_again_from_the_checkpoints_with_the_same_bytes(finished, tmp_path, lost):
    directory = copy_of(finished, tmp_path)
    content = directory.file.read_bytes()
    for name in lost:
        getattr(directory, name).unlink()
    assert run(JOB, tmp_path, resume=True).file.read_bytes() == content
    assert directory.read_result() == finished.read_result()


def test_a_longer_pipeline_starts_from_the_stages_of_a_shorter_one(tmp_path, finished):
    run(PRUNE, tmp_path)

    trained = set()

    class Watching(Silent):
        def step(self, stage, done, total):
            trained.add(stage)

    directory = run(JOB, tmp_path, observer=Watching())
    assert trained == {"quantize"}
    assert directory.file.read_bytes()[-1000:] == finished.file.read_bytes()[-1000:]
    assert directory.read_result().errors == finished.read_result().errors


def test_the_newest_finished_run_is_found(finished, tmp_path):
    with pytest.raises(RunError, match=r"there is no finished run in .*: start one with secateur compress"):
        newest_finished(tmp_path)
    for name in ("b", "a"):
        shutil.copytree(finished.path, tmp_path / name)
        (tmp_path / name / "result.json").touch()
    (tmp_path / "c").mkdir()
    assert newest_finished(tmp_path).path.name == "a"


def test_two_methods_with_stages_of_one_name_train_both(tmp_path):
    job = replace(JOB, methods=(Dense(), PRUNING))
    result = run(job, tmp_path).read_result()
    assert [stage.name for stage in result.stages] == ["train", "train-2", "fine-tune"]
    assert list(result.errors) == ["dense", "sibling", "theta", "raw", "pruned", "file"]
    assert result.stages[1].error_before < 50  # it goes on from the dense network


def test_an_interrupted_takeover_of_stages_leaves_nothing_half_written(tmp_path, monkeypatch):
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    for root in (whole, killed):
        run(PRUNE, root)
    written = []

    def interrupt(path, content):
        if "train.checkpoint" in path.name:
            raise KeyboardInterrupt
        written.append(path.name)
        write_atomically(path, content)

    with monkeypatch.context() as patch:
        patch.setattr(runner, "write_atomically", interrupt)
        with pytest.raises(KeyboardInterrupt):
            run(JOB, killed)
    assert written[:2] == ["train.jsonl", "fine-tune.jsonl"]
    resumed, finished = run(JOB, killed, resume=True), run(JOB, whole)
    assert resumed.model.read_bytes() == finished.model.read_bytes()


def test_the_newest_run_is_the_one_begun_last_whatever_was_written_since(finished, tmp_path):
    for name in ("first", "second"):
        shutil.copytree(finished.path, tmp_path / name)
        (tmp_path / name / "job.json").touch()
    (tmp_path / "first" / "test.json").write_text("{}")
    assert newest_begun(tmp_path).path.name == "second"


# What is refused


def test_a_run_of_another_job_in_the_same_place_is_refused(finished, tmp_path):
    directory = copy_of(finished, tmp_path)
    write(directory.job, replace(JOB, recipe=replace(JOB.recipe, lr=0.5)))
    with pytest.raises(RunError, match="holds a run with other settings"):
        run(JOB, tmp_path)


def test_a_network_that_only_guesses_is_a_failure_and_leaves_no_file(tmp_path):
    with pytest.raises(RunError, match=r"wrong on \d+\.\d % of the validation images, no better than guessing"):
        run(replace(JOB, methods=(Dense(),), recipe=Recipe(epochs=2, lr=0.0)), tmp_path)
    assert list(tmp_path.glob("*/model.cut")) == []
    assert list(tmp_path.glob("*/result.json")) == []


def test_an_untrained_network_may_guess(tmp_path):
    untrained = replace(JOB, methods=(Dense(),), recipe=Recipe(epochs=0))
    assert run(untrained, tmp_path).read_result().error > 50


def test_settings_that_can_prune_next_to_nothing_are_noted_before_training(tmp_path):
    class Notes(Silent):
        def __init__(self):
            self.notes, self.steps = [], 0

        def note(self, text):
            self.notes.append((text, self.steps))

        def step(self, stage, done, total):
            self.steps += 1

    run(replace(PRUNE, methods=(Manessi2018(rho=1e-4),)), tmp_path, observer=(few := Notes()))
    [(text, steps)] = few.notes
    assert steps == 0
    assert text.startswith("these settings can prune next to nothing (about 1.1×): in 10 steps")
    long = replace(PRUNE, methods=(Manessi2018(rho=4.0),), seed=1)
    run(long, tmp_path, observer=(enough := Notes()))
    assert enough.notes == []


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
    mnist = DATA_SETS["mnist"]
    small = replace(mnist, train=files(mnist.train, 50), test=files(mnist.test, 10))
    monkeypatch.setitem(DATA_SETS, "mnist", small)
    return tmp_path


_opened: list[str] = []
sys.addaudithook(lambda event, arguments: _opened.append(str(arguments[0])) if event == "open" else None)


def opened_images() -> set[str]:
    return {Path(path).name.split("-")[0] for path in _opened if path.endswith("ubyte")}


def test_training_opens_no_test_image_and_evaluation_opens_them_once(tiny_mnist):
    _opened.clear()
    job = replace(PRUNE, data="mnist", recipe=Recipe(epochs=0), methods=(replace(PRUNING, fine_tune_epochs=0),))
    directory = run(job, tiny_mnist / "runs", data_root=tiny_mnist)
    assert opened_images() == {"train"}
    _opened.clear()
    first = evaluate(directory, data_root=tiny_mnist)
    assert opened_images() == {"t10k"}
    _opened.clear()
    assert evaluate(directory, data_root=tiny_mnist) == first
    assert opened_images() == set()


def test_an_evaluation_covers_every_form_of_the_network(finished, tmp_path):
    directory = copy_of(finished, tmp_path)
    errors = evaluate(directory).errors
    test = data.load("digits", "test")
    model, scaling = load_model(directory.model), read_recorded(directory.model).scaling
    wrong = (model(scaling(test.images)).argmax(1) != test.labels).float().mean().item()
    assert errors["shared"] == pytest.approx(100 * wrong)
    assert list(errors) == ["sibling", "theta", "raw", "pruned", "shared", "file"]


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
        (lambda run: run.result.write_text('{"job": '), r"result\.json is damaged .*: delete"),
        (lambda run: run.result.write_text("[]"), r"result\.json is damaged .*\(the content must be an object"),
        (lambda run: change(run.result, kept="many"), r"result\.json is damaged .*\(kept must be a whole number"),
        (lambda run: run.result.write_bytes(b"\xff\xfe"), r"result\.json is damaged"),
        (lambda run: run.job.write_text("7"), r"job\.json is damaged"),
        (lambda run: change(run.job, colour="red"), r"job\.json is damaged .*\(colour is unknown\)"),
        (lambda run: change(run.job, recipe={"lr": -1}), r"job\.json is damaged .*\(recipe: lr must be ≥ 0"),
        (lambda run: change(run.job, network="lenet-5"), r"train\.checkpoint\S+ does not hold the lenet-5"),
        (lambda run: run.model.write_bytes(b"nothing"), r"model\.safetensors is not a model written by a run"),
        (lambda run: run.model.unlink(), r"model\.safetensors does not exist"),
        (lambda run: run.test.write_text("{}"), r"test\.json is damaged .*\(errors is missing\)"),
        (lambda run: run.file.write_bytes(b"cut"), r"not a \.cut file"),
    ],
)
def test_a_damaged_run_is_one_sentence(finished, tmp_path, spoil, sentence):
    directory = copy_of(finished, tmp_path)
    spoil(directory)
    with pytest.raises((RunError, secateur.FormatError), match=sentence):
        evaluate(directory)


def test_a_seed_determines_every_bit_and_another_seed_gives_another_network(tmp_path):
    first, second = (run(PRUNE, tmp_path / name) for name in ("first", "second"))
    assert first.model.read_bytes() == second.model.read_bytes()
    other = run(replace(PRUNE, seed=1), tmp_path / "first")
    assert run_name(PRUNE).removesuffix("0") + "1" == other.path.name
    assert other.model.read_bytes() != first.model.read_bytes()
    assert other.journal("train").log.read_bytes() != first.journal("train").log.read_bytes()


def test_augmented_and_dropped_inputs_change_the_run(tmp_path):
    plain = run(PRUNE, tmp_path).model.read_bytes()
    for inputs in (InputConfig(augment=0.5), InputConfig(input_dropout=0.3), InputConfig(scaling="standard")):
        assert run(replace(PRUNE, inputs=inputs), tmp_path).model.read_bytes() != plain
