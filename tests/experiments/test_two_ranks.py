"""Two ranks carry out a run together: the result is that of one process, and a kill costs at most one interval."""

import io
import itertools
import os
import signal
import tarfile
import warnings
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
import torch
from ranks import run_two_ranks
from torch import nn
from torch.testing import assert_close
from torch.utils.data import TensorDataset

from secateur import Budget, learned_thresholds, theta
from secateur.experiments.given_data import source_of
from secateur.experiments.models import load_model, load_stage
from secateur.experiments.outcome import Outcome
from secateur.experiments.runner import run
from secateur.experiments.studies.grid import Places, run_missing
from secateur.experiments.studies.published import result_path
from secateur.job import Coding, InputConfig, Job
from secateur.methods import Budgeted, Dense, Manessi2018
from secateur.results import PublishedRun, read
from secateur.train import loop
from secateur.train.journal import Journal, read_log
from secateur.train.recipe import Recipe
from secateur.train.stage import Stage

Image = pytest.importorskip("PIL.Image", reason="Pillow is not installed")

# 96 pictures, of which 77 are trained on: the last batch is smaller, and the ranks' shares differ.
RECIPE = Recipe(epochs=2, batch_size=16, optimizer="sgd", lr=0.05, clip_norm=1.0)
JOB = Job(
    network="lenet-5",
    methods=(Manessi2018(rho=1e-5),),
    recipe=RECIPE,
    inputs=InputConfig(crop="alexnet", scaling="standard"),
    coding=Coding(codec="rans"),
)
KINDS = ("folder", "shards", "accumulated", "sharded")
STEPS = 4  # of an epoch over the folder


def jobs(folder):
    # Its masks lie in memory as the filters do, channels last.
    pictures = replace(JOB, data=str(folder / "pictures"), methods=(replace(JOB.methods[0], fine_tune_epochs=1),))
    shards = replace(JOB, data="imagenette", inputs=replace(JOB.inputs, crop="resized"))
    return {
        "folder": pictures,
        "shards": shards,
        "accumulated": replace(pictures, methods=(Dense(),), recipe=replace(RECIPE, accumulate=3)),
        "sharded": replace(shards, recipe=replace(RECIPE, shard=True)),
    }


def write_pictures(folder):
    """Write the same pictures as files in folders, and as WebDataset shards: bright on the left, or on the right."""
    noise = np.random.default_rng(0)
    (folder / "data" / "imagenette" / "train").mkdir(parents=True)
    for label in (0, 1):
        below = folder / "pictures" / f"class{label}"
        below.mkdir(parents=True)
        with tarfile.open(folder / "data" / "imagenette" / "train" / f"{label}.tar", "w") as shard:
            for index in range(48):
                pixels = noise.integers(0, 60, (40, 42, 3), dtype=np.uint8)
                pixels[:, 21 * label : 21 * (label + 1)] += 180
                content = io.BytesIO()
                Image.fromarray(pixels).save(content, "PNG")
                (below / f"{index}.png").write_bytes(content.getvalue())
                for name, part in (("png", content.getvalue()), ("cls", str(label).encode())):
                    member = tarfile.TarInfo(f"{label}-{index}.{name}")
                    member.size = len(part)
                    shard.addfile(member, io.BytesIO(part))


def carry_out(job, folder, place):
    Outcome.refuse_guessing = lambda self: None  # a few steps teach next to nothing
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".* has 96 of the 9,469 train pictures of imagenette")
        return run(job, folder / place, data_root=folder / "data", resume=True)


@contextmanager
def acting_after(steps, act):
    """Do something in this process when it has taken a number of steps."""
    count, after_step = itertools.count(1), loop.after_step

    def acting(model):
        after_step(model)
        if next(count) == steps:
            act()

    with mock.patch.object(loop, "after_step", acting):
        yield


def with_batch_norm(rank, folder):
    """Train a network with batch norm, and return its buffers after the epoch."""
    torch.manual_seed(0)
    inputs, labels = torch.randn(20, 6), torch.arange(20) % 2
    model = nn.Sequential(nn.Linear(6, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))
    seen = []
    loop.fit(
        Stage(name="train", model=model, recipe=Recipe(epochs=1, batch_size=8)),
        source_of(TensorDataset(inputs, labels), "train"),
        seed=0,
        measure=lambda model: seen.append(dict(model.named_buffers())) or {},
        journal=Journal(checkpoint=folder / "norm" / "checkpoint", log=folder / "norm" / f"log{rank}"),
    )
    return seen[0]


def refusal(job, folder, place):
    with pytest.raises(ValueError, match=r": (start|leave)") as refused:
        carry_out(job, folder, place)
    return str(refused.value)


def work(rank, folder):
    """Do everything that needs two ranks, and save what both saw."""
    known = jobs(folder)
    for kind in KINDS:
        carry_out(known[kind], folder, "together")
    found = {"buffers": with_batch_norm(rank, folder)}
    places = Places(folder / "results", folder / "together", folder / "data")
    found["published"] = [str(path) for path in run_missing([known["folder"]], places, workers=2)]
    few = replace(known["folder"], recipe=replace(RECIPE, batch_size=1))
    found["too many"] = refusal(few, folder, "refused")
    budget = replace(known["sharded"], methods=(Budgeted(budget=Budget(ratio=5)),))
    found["between"] = refusal(budget, folder, "refused")
    for kind in ("folder", "sharded"):  # the second rank alone is asked to end, in the second epoch
        asked = acting_after(STEPS + 2, lambda: os.kill(os.getpid(), signal.SIGTERM)) if rank else nullcontext()
        with asked, pytest.raises(KeyboardInterrupt):
            carry_out(known[kind], folder, "asked")
        carry_out(known[kind], folder, "asked")
    torch.save(found, folder / f"found{rank}")
    loop._CHECKPOINT_SECONDS = 0
    killed = acting_after(STEPS + 3, lambda: os._exit(0)) if rank else nullcontext()
    with killed, pytest.raises(RuntimeError, match=r"(?i)connection|closed|reset|peer"):
        carry_out(known["accumulated"], folder, "killed")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("ranks")
    write_pictures(folder)
    run_two_ranks(work, folder)
    return folder


@pytest.fixture(scope="module")
def alone(folder):
    """The directories of the same runs in one process."""
    torch.set_num_threads(1)
    return {kind: carry_out(job, folder, "alone") for kind, job in jobs(folder).items()}


def assert_same_network(found, expected):
    """Thresholds are equal to 1e-6, and masks except where |θ| is within 1e-6 of γ; so are weights without thresholds.

    Where |w| = t, θ has a corner: rounding decides on which side of it a step starts, and some weights differ by 1e-5.
    """
    mine, theirs = load_stage(found), load_stage(expected)
    if not learned_thresholds(theirs):
        assert_close(dict(mine.state_dict()), dict(theirs.state_dict()), rtol=0, atol=1e-6)
        return
    moved = [{name: each.threshold for name, each in learned_thresholds(model).items()} for model in (mine, theirs)]
    assert_close(*moved, rtol=0, atol=1e-6)
    pruned, reference = load_model(found.model), load_model(expected.model)
    for name, function in learned_thresholds(theirs).items():
        weight = theirs.get_submodule(name.removesuffix(".weight")).parametrizations.weight.original
        decided = (theta(weight, function.threshold, function.alpha).abs() - function.cutoff).abs() > 1e-6
        kept, wanted = pruned.get_parameter(name) != 0, reference.get_parameter(name) != 0
        assert torch.equal(kept[decided], wanted[decided])
        assert 0 < wanted.sum() < wanted.numel()


@pytest.mark.parametrize("kind", KINDS)
def test_two_ranks_read_their_shares_and_learn_what_one_process_learns(folder, alone, kind):
    found = carry_out(jobs(folder)[kind], folder, "together")
    assert_same_network(found, alone[kind])
    logs = (read_log(directory.journal("train").log) for directory in (found, alone[kind]))
    for mine, theirs in zip(*logs, strict=True):
        assert mine["loss"] == pytest.approx(theirs["loss"], abs=1e-5)


@pytest.mark.parametrize("kind", ["folder", "sharded"])
def test_ranks_one_of_which_is_asked_to_end_resume_bit_for_bit(folder, kind):
    whole, asked = (carry_out(jobs(folder)[kind], folder, place) for place in ("together", "asked"))
    assert asked.model.read_bytes() == whole.model.read_bytes()
    assert asked.journal("train").log.read_bytes() == whole.journal("train").log.read_bytes()


def test_one_process_goes_on_where_a_killed_rank_of_two_stopped(folder, alone):
    job = jobs(folder)["accumulated"]
    steps = []
    with mock.patch.object(loop, "after_step", lambda model, real=loop.after_step: steps.append(real(model))):
        found = carry_out(job, folder, "killed")
    assert len(steps) == STEPS - 2  # two of the three steps of the second epoch had a checkpoint
    assert_same_network(found, alone["accumulated"])


def test_ranks_publish_a_result_once(folder):
    first, second = (torch.load(folder / f"found{rank}", weights_only=True)["published"] for rank in (0, 1))
    assert first == second == [str(result_path(folder / "results", jobs(folder)["folder"]))]
    assert read(PublishedRun, Path(*first)).result.job == jobs(folder)["folder"]


def test_after_an_epoch_all_ranks_have_the_buffers_of_the_first(folder):
    first, second = (torch.load(folder / f"found{rank}", weights_only=True)["buffers"] for rank in (0, 1))
    assert first["1.running_mean"].abs().sum() > 0
    assert_close(first, second, rtol=0, atol=0)


@pytest.mark.parametrize(
    ("case", "sentence"),
    [
        ("too many", "2 processes cannot share batches of 1 samples: start at most 1"),
        ("between", 'stage "train" changes whole tensors between steps: leave out --shard'),
    ],
)
def test_what_ranks_cannot_do_is_refused_in_one_sentence(folder, case, sentence):
    for rank in (0, 1):
        assert torch.load(folder / f"found{rank}", weights_only=True)[case] == sentence
