import errno
import json
import math
import multiprocessing
import os
import signal
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from networks import convolutional, mlp
from torch.testing import assert_close

import secateur
from secateur.atomic import write_atomically
from secateur.experiments.job import Job, run
from secateur.experiments.rundir import RunDirectory
from secateur.train import checkpoint
from secateur.train.checkpoint import CheckpointError
from secateur.train.loop import Journal, Silent, TrainConfig, _rate_factor, fit, read_log

SHORT = TrainConfig(epochs=2, fine_tune_epochs=2, rho=0.2, schedule="cosine", input_dropout=0.1)
JOB = Job(network="lenet-300-100", data="digits", train=SHORT)

# Children of a server that has imported everything already start at once.
CHILDREN = multiprocessing.get_context("forkserver")
CHILDREN.set_forkserver_preload(["accelerate", "sklearn.datasets", "secateur.experiments.job"])


class Killer(Silent):
    """Kills its own process at a moment: (phase, step), (phase, "logged") or (phase, "writing")."""

    def __init__(self, phase: str, moment: int | str) -> None:
        self.phase, self.moment = phase, moment

    def step(self, phase, done, total):
        if phase == self.phase and done == self.moment:
            os.kill(os.getpid(), signal.SIGKILL)
        if phase == self.phase and self.moment == "writing":
            os.fsync = lambda _: os.kill(os.getpid(), signal.SIGKILL)

    def epoch(self, record):
        if record["phase"] == self.phase and self.moment == "logged":
            os.kill(os.getpid(), signal.SIGKILL)


def carry_out(job: Job, root: Path, killer: Killer) -> None:
    torch.set_num_threads(1)
    run(job, root, resume=True, observer=killer)


def kill_at(moment, job: Job, root: Path) -> None:
    child = CHILDREN.Process(target=carry_out, args=(job, root, Killer(*moment)))
    child.start()
    child.join()
    assert child.exitcode == -signal.SIGKILL


def content(directory: RunDirectory) -> dict[str, object]:
    """What must not depend on how often a run was killed: all but wall seconds and checkpoints, which hold them."""
    kept = {path.name: path.read_bytes() for path in directory.path.iterdir() if "checkpoint" not in path.name}
    result = json.loads(kept.pop("result.json"))
    return {**kept, "result": {key: value for key, value in result.items() if key != "seconds"}}


# Killed and resumed


@pytest.mark.parametrize(
    "moments",
    [
        [("train", 4), ("train", 15), ("fine-tune", 3), ("fine-tune", 20)],
        [("train", "logged"), ("train", "writing"), ("fine-tune", "logged"), ("fine-tune", "writing")],
    ],
    ids=["between steps", "while files are written"],
)
def test_a_run_killed_four_times_ends_bit_for_bit_as_one_never_killed(tmp_path, moments):
    for moment in moments:
        kill_at(moment, JOB, tmp_path / "killed")
    assert content(run(JOB, tmp_path / "killed", resume=True)) == content(run(JOB, tmp_path / "whole"))


@pytest.mark.parametrize(
    "job",
    [
        replace(JOB, network="lenet-5"),  # whose filters lie in memory in an order of their own
        replace(JOB, train=replace(SHORT, optimizer="sgd", rho=1e-3, augment=0.5, scaling="standard")),
        replace(JOB, method="dense", train=replace(SHORT, fine_tune_epochs=0)),
    ],
    ids=["convolutions", "momentum and augmentation", "dense"],
)
def test_every_kind_of_run_stands_being_killed(tmp_path, job):
    kill_at(("train", 15), job, tmp_path / "killed")
    assert content(run(job, tmp_path / "killed", resume=True)) == content(run(job, tmp_path / "whole"))


def test_a_seed_determines_every_bit_and_another_seed_gives_another_network(tmp_path):
    first, second = run(JOB, tmp_path / "first"), run(JOB, tmp_path / "second")
    assert content(first) == content(second)
    other = run(replace(JOB, seed=1), tmp_path / "first")
    assert other.model.read_bytes() != first.model.read_bytes()
    assert other.journal("train").log.read_bytes() != first.journal("train").log.read_bytes()


# One phase of training


class Points:
    """256 points whose class is the sign pattern of two coordinates."""

    def __init__(self) -> None:
        self.inputs = torch.randn(256, 12, generator=torch.Generator().manual_seed(0))
        self.labels = 2 * (self.inputs[:, 0] > 0) + (self.inputs[:, 1] > 0)

    def __len__(self):
        return 256

    def batch(self, indices, generator):
        return self.inputs[indices], self.labels[indices]


class Recorder(Silent):
    def __init__(self) -> None:
        self.steps, self.records = [], []

    def step(self, phase, done, total):
        self.steps.append((phase, done, total))

    def epoch(self, record):
        self.records.append(record)


def journal(directory: Path) -> Journal:
    return Journal(checkpoint=directory / "checkpoint", log=directory / "log.jsonl")


def train(directory: Path, model=None, observer=None, **settings):
    torch.manual_seed(0)
    model = model or secateur.build_sibling(mlp())
    config = TrainConfig(**{"epochs": 2, "batch_size": 64, **settings})
    places = journal(directory)
    fit(model, Points(), config, phase="train", seed=0, measure=lambda _: {}, journal=places, observer=observer)
    return model


def test_a_network_learns_and_its_thresholds_rise(tmp_path):
    before = [f.threshold.item() for f in secateur.learned_thresholds(secateur.build_sibling(mlp())).values()]
    model = train(tmp_path, epochs=20, lr=1e-2, rho=0.1, lambda_t=1e-2)
    losses = [record["loss"] for record in read_log(tmp_path / "log.jsonl")]
    assert losses[-1] < 0.6 * losses[0]
    after = [f.threshold.item() for f in secateur.learned_thresholds(model).values()]
    assert all(late > early for early, late in zip(before, after, strict=True))


def test_the_observer_sees_every_step_and_the_log_every_epoch(tmp_path):
    recorder = Recorder()
    train(tmp_path, observer=recorder)
    assert recorder.steps == [("train", done, 8) for done in range(1, 9)]
    assert [(record["epoch"], record["epochs"]) for record in recorder.records] == [(1, 2), (2, 2)]
    assert list(read_log(tmp_path / "log.jsonl")) == recorder.records


def test_a_ratio_without_end_is_written_as_json_and_read_as_it_was(tmp_path):
    recorder, places, model = Recorder(), journal(tmp_path), secateur.build_sibling(mlp())
    config = TrainConfig(epochs=1, batch_size=64)
    measures = {"ratio": math.inf, "kept": 0}
    fit(
        model,
        Points(),
        config,
        phase="train",
        seed=0,
        measure=lambda _: measures,
        journal=places,
        observer=recorder,
    )
    assert "Infinity" not in places.log.read_text()
    assert list(read_log(places.log)) == recorder.records
    assert recorder.records[0]["ratio"] == math.inf


def test_micro_batches_add_up_to_the_step_of_the_whole_batch(tmp_path):
    whole, parts = train(tmp_path / "whole"), train(tmp_path / "parts", accumulate=4)
    for expected, got in zip(whole.parameters(), parts.parameters(), strict=True):
        assert_close(got, expected, rtol=1e-4, atol=1e-6)


def test_clipping_is_for_the_weights_and_does_not_see_the_thresholds(tmp_path):
    one_step = {"epochs": 1, "batch_size": 256, "optimizer": "sgd", "lambda_wd": 0.0, "rho": 1e-3}
    free, clipped = train(tmp_path / "free", **one_step), train(tmp_path / "clipped", clip_norm=1e-3, **one_step)
    heavy = train(tmp_path / "heavy", clip_norm=1e-3, lambda_t=1e3, **one_step)
    for expected, got in zip(*(secateur.learned_thresholds(model).values() for model in (free, clipped)), strict=True):
        assert torch.equal(got.threshold, expected.threshold)
    names = [name for name, _ in free.named_parameters() if not name.endswith("threshold")]
    for name in names:  # L_t sends nothing to the weights, so its size makes no difference to how they are clipped
        assert torch.equal(heavy.get_parameter(name), clipped.get_parameter(name))
    assert any(not torch.equal(free.get_parameter(name), clipped.get_parameter(name)) for name in names)


def test_no_epochs_change_nothing(tmp_path):
    trained = train(tmp_path, epochs=0)
    torch.manual_seed(0)
    untouched = secateur.build_sibling(mlp())
    assert all(map(torch.equal, trained.parameters(), untouched.parameters()))


@pytest.mark.parametrize(("done", "left"), [(0, 1), (1 / 3, 0.75), (0.5, 0.5), (1, 0)])
def test_a_cosine_schedule_goes_from_all_to_nothing(done, left):
    assert _rate_factor("cosine", done) == pytest.approx(left)
    assert _rate_factor("constant", done) == 1


@pytest.mark.parametrize("lr", [1e20, 1e38])
def test_a_loss_that_is_no_number_is_reported_with_its_epoch(tmp_path, lr):
    with pytest.raises(FloatingPointError, match=r"(loss|weight).* became .* in epoch 1 of phase train: lower"):
        train(tmp_path, lr=lr, rho=0)


def test_weights_broken_by_the_very_last_step_are_noticed(tmp_path):
    with pytest.raises(FloatingPointError, match=r'"0\.weight" became NaN or infinite in epoch 1'):
        train(tmp_path, model=mlp(), epochs=1, batch_size=256, lr=3e38, lambda_wd=1e3, optimizer="sgd")


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("lambda_t", -0.1),
        ("lambda_wd", math.inf),
        ("rho", -1),
        ("cutoff", math.nan),
        ("lr", -1e-3),
        ("epochs", -1),
        ("batch_size", 0),
        ("augment", 1.5),
        ("epochs", 1.5),
        ("clip_norm", -1),
        ("clip_norm", math.nan),
        ("optimizer", "'rmsprop'"),
        ("schedule", "'cosin'"),
    ],
)
def test_settings_outside_their_range_are_refused_by_name(setting, value):
    with pytest.raises(ValueError, match=rf"^{setting} must .* got {value}"):
        TrainConfig(**{setting: value.strip("'") if isinstance(value, str) else value})


def test_micro_batches_of_any_number_make_the_same_step(tmp_path):
    found = {}
    for accumulate in (1, 3, 13, 40):
        torch.manual_seed(0)
        model = mlp()
        train(tmp_path / str(accumulate), model=model, epochs=1, batch_size=20, optimizer="sgd", accumulate=accumulate)
        found[accumulate] = torch.cat([parameter.detach().flatten() for parameter in model.parameters()])
    for weights in found.values():
        torch.testing.assert_close(weights, found[1], rtol=1e-4, atol=1e-6)


# The checkpoint


def saved(path: Path, make=mlp, inputs=None, kind=torch.optim.Adam):
    """A model after two steps, its optimizer, and the checkpoint of both."""
    model = make()
    optimizer = kind(secateur.parameter_groups(model, lr=0.1), **({"momentum": 0.9} if kind is torch.optim.SGD else {}))
    for _ in range(2):
        model(torch.randn(9, 12) if inputs is None else inputs).square().sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    checkpoint.save(path, model, optimizer, {"epoch": 2}, write=True)
    return model, optimizer


@pytest.mark.parametrize("kind", [torch.optim.Adam, torch.optim.SGD])
def test_a_checkpoint_gives_back_model_optimizer_and_facts(tmp_path, kind):
    def make():
        return secateur.build_sibling(convolutional()).to(memory_format=torch.channels_last)

    model, optimizer = saved(tmp_path / "file", make, torch.randn(9, 2, 6, 6), kind)
    other = make()
    fresh = kind(secateur.parameter_groups(other, lr=0.1), **({"momentum": 0.9} if kind is torch.optim.SGD else {}))
    assert checkpoint.load(tmp_path / "file", other, fresh) == {"epoch": 2}
    assert all(torch.equal(value, other.state_dict()[key]) for key, value in model.state_dict().items())
    for mine, theirs in zip(model.parameters(), other.parameters(), strict=True):
        for name, value in optimizer.state[mine].items():
            assert torch.equal(value, fresh.state[theirs][name])
            assert value.squeeze().stride() == fresh.state[theirs][name].squeeze().stride()


def test_a_checkpoint_of_another_model_is_refused(tmp_path):
    saved(tmp_path / "file")
    other = torch.nn.Sequential(torch.nn.Linear(12, 8), torch.nn.ReLU(), torch.nn.Linear(8, 4))
    with pytest.raises(CheckpointError, match="file was written by another model or optimizer"):
        checkpoint.load(tmp_path / "file", other, torch.optim.Adam(other.parameters()))


@settings(max_examples=30)
@given(share=st.floats(0, 0.999))
def test_a_checkpoint_cut_anywhere_is_refused(tmp_path_factory, share):
    path = tmp_path_factory.mktemp("cut") / "file"
    model, optimizer = saved(path)
    path.write_bytes(path.read_bytes()[: int(share * path.stat().st_size)])
    with pytest.raises(CheckpointError, match="file is not a usable checkpoint"):
        checkpoint.load(path, model, optimizer)


def test_a_safetensors_file_that_is_no_checkpoint_is_refused(tmp_path):
    from safetensors.torch import save_file

    model, optimizer = saved(tmp_path / "file")
    for metadata in (None, {"facts": "{}", "numbers": "{}"}):
        save_file({"weight": torch.zeros(3)}, tmp_path / "file", metadata)
        with pytest.raises(CheckpointError, match="file is not a usable checkpoint"):
            checkpoint.load(tmp_path / "file", model, optimizer)


def test_a_full_disk_leaves_the_old_file_whole_and_is_named(tmp_path, monkeypatch):
    def no_room(_):
        raise OSError(errno.ENOSPC, "No space left on device")

    write_atomically(tmp_path / "file", b"old")
    monkeypatch.setattr(os, "fsync", no_room)
    with pytest.raises(OSError, match=r"No space left on device: '.*/file'"):
        write_atomically(tmp_path / "file", b"new")
    assert [path.read_bytes() for path in tmp_path.iterdir()] == [b"old"]
