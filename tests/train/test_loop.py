import json
import math
import os
import signal
from dataclasses import replace
from functools import partial
from pathlib import Path
from unittest import mock

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from ranks import CHILDREN
from torch.testing import assert_close
from torch.utils.data import DataLoader, TensorDataset
from toy_networks import mlp

import secateur
from secateur.experiments.directory import RunDirectory
from secateur.experiments.given_data import source_of
from secateur.experiments.runner import run
from secateur.job import InputConfig, Job
from secateur.methods import Dense, Manessi2018
from secateur.train import checkpoint, loop
from secateur.train.journal import Journal, read_log
from secateur.train.loop import fit
from secateur.train.objective import penalty
from secateur.train.observers import Silent
from secateur.train.recipe import Recipe
from secateur.train.stage import Stage

SHORT = Recipe(epochs=2, schedule="cosine")
METHOD = Manessi2018(rho=0.2, fine_tune_epochs=2)
INPUTS = InputConfig(input_dropout=0.1)
JOB = Job(network="lenet-300-100", data="digits", methods=(METHOD,), recipe=SHORT, inputs=INPUTS)


class Killer(Silent):
    """Kills its own process at a moment: (stage, step), (stage, "logged") or (stage, "writing")."""

    def __init__(self, stage: str, moment: int | str) -> None:
        self.stage, self.moment = stage, moment

    def step(self, stage, done, total):
        if stage == self.stage and done == self.moment:
            os.kill(os.getpid(), signal.SIGKILL)
        if stage == self.stage and self.moment == "writing":
            os.fsync = lambda _: os.kill(os.getpid(), signal.SIGKILL)

    def epoch(self, line):
        if line["phase"] == self.stage and self.moment == "logged":
            os.kill(os.getpid(), signal.SIGKILL)


def carry_out(job: Job, root: Path, killer: Killer, interval: float) -> None:
    torch.set_num_threads(1)
    loop._CHECKPOINT_SECONDS = interval
    run(job, root, resume=True, observer=killer)


def kill_at(moment, job: Job, root: Path, interval=600) -> None:
    child = CHILDREN.Process(target=carry_out, args=(job, root, Killer(*moment), interval))
    child.start()
    child.join()
    assert child.exitcode == -signal.SIGKILL


def content(directory: RunDirectory) -> dict[str, object]:
    """What must not depend on how often a run was killed: all but wall seconds and checkpoints, which hold them."""
    kept = {path.name: path.read_bytes() for path in directory.path.iterdir() if "checkpoint" not in path.name}
    result = json.loads(kept.pop("result.json"))
    for stage in result["stages"]:
        del stage["seconds"]
    return {**kept, "result": result}


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
        replace(
            JOB,
            methods=(replace(METHOD, rho=1e-3),),
            recipe=replace(SHORT, optimizer="sgd"),
            inputs=InputConfig(augment=0.5, scaling="standard"),
        ),
        replace(JOB, methods=(Dense(),)),
    ],
    ids=["convolutions", "momentum and augmentation", "dense"],
)
def test_every_kind_of_run_stands_being_killed(tmp_path, job):
    kill_at(("train", 15), job, tmp_path / "killed", interval=0)  # resumes after step 14
    assert content(run(job, tmp_path / "killed", resume=True)) == content(run(job, tmp_path / "whole"))


# One stage of training


class Points:
    """256 points whose class is the sign pattern of two coordinates."""

    def __init__(self) -> None:
        self.inputs = torch.randn(256, 12, generator=torch.Generator().manual_seed(0))
        self.labels = 2 * (self.inputs[:, 0] > 0) + (self.inputs[:, 1] > 0)

    def __len__(self):
        return 256

    def batch(self, indices, generator):
        return self.inputs[indices], self.labels[indices]


class NoisyPoints(Points):
    """Points that are never twice the same."""

    def batch(self, indices, generator):
        inputs, labels = super().batch(indices, generator)
        return inputs + torch.randn(inputs.shape, generator=generator), labels


def loaded_points():
    """The points as a data loader of the user brings them."""
    points = Points()
    return source_of(DataLoader(TensorDataset(points.inputs, points.labels), 32, shuffle=True), "train")


class Recorder(Silent):
    def __init__(self) -> None:
        self.steps, self.lines = [], []

    def step(self, stage, done, total):
        self.steps.append((stage, done, total))

    def epoch(self, line):
        self.lines.append(line)


def journal(directory: Path) -> Journal:
    return Journal(checkpoint=directory / "checkpoint", log=directory / "log.jsonl")


def stage_of(model, *, rho=1e-2, lambda_t=1e-2, between=None, **settings):
    terms = {"thresholds": lambda model: penalty(model, lambda_t)} if secateur.learned_thresholds(model) else {}
    recipe = Recipe(**{"epochs": 2, "batch_size": 64, **settings})
    return Stage(name="train", model=model, recipe=recipe, rho=rho, terms=terms, between=between)


def train(directory: Path, model=None, observer=None, **settings):
    torch.manual_seed(0)
    model = model or secateur.build_sibling(mlp())
    stage = stage_of(model, **settings)
    fit(stage, Points(), seed=0, measure=lambda _: {}, journal=journal(directory), observer=observer)
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
    assert [(record["epoch"], record["epochs"]) for record in recorder.lines] == [(1, 2), (2, 2)]
    assert list(read_log(tmp_path / "log.jsonl")) == recorder.lines


def test_a_ratio_without_end_is_written_as_json_and_read_as_it_was(tmp_path):
    recorder, places, model = Recorder(), journal(tmp_path), secateur.build_sibling(mlp())
    measures = {"ratio": math.inf, "kept": 0}
    stage = stage_of(model, epochs=1)
    fit(stage, Points(), seed=0, measure=lambda _: measures, journal=places, observer=recorder)
    assert "Infinity" not in places.log.read_text()
    assert list(read_log(places.log)) == recorder.lines
    assert recorder.lines[0]["ratio"] == math.inf


def test_micro_batches_add_up_to_the_step_of_the_whole_batch(tmp_path):
    whole, parts = train(tmp_path / "whole"), train(tmp_path / "parts", accumulate=4)
    for expected, got in zip(whole.parameters(), parts.parameters(), strict=True):
        assert_close(got, expected, rtol=1e-4, atol=1e-6)


def test_a_compiled_network_learns_the_same_and_its_checkpoint_knows_nothing_of_it(tmp_path):
    plain = train(tmp_path / "plain", epochs=1)
    with mock.patch("torch.compile", partial(torch.compile, backend="aot_eager", fullgraph=True)):
        compiled = train(tmp_path / "compiled", epochs=1, compile=True)
        assert_close(dict(compiled.state_dict()), dict(plain.state_dict()), rtol=1e-5, atol=1e-6)
        assert checkpoint.load_model(tmp_path / "compiled" / "checkpoint").keys() == plain.state_dict().keys()
        assert compiled(torch.randn(3, 12)).shape == (3, 4)


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
    assert Recipe(schedule="cosine").rate_factor(done) == pytest.approx(left)
    assert Recipe().rate_factor(done) == 1


@pytest.mark.parametrize("schedule", ["constant", "cosine", "step"])
def test_rates_rise_from_zero_during_the_warmup(schedule):
    recipe = Recipe(epochs=5, schedule=schedule, warmup=0.2)
    assert [recipe.rate_factor(done) for done in (0, 0.05, 0.1, 0.2)] == pytest.approx([0, 0.25, 0.5, 1])


def test_a_cosine_schedule_falls_from_the_end_of_the_warmup():
    recipe = Recipe(schedule="cosine", warmup=0.2)
    assert [recipe.rate_factor(done) for done in (0.6, 1)] == pytest.approx([0.5, 0])


@given(epochs=st.integers(1, 100), every=st.integers(1, 30), steps=st.integers(1, 50), place=st.floats(0, 1))
def test_a_step_schedule_is_constant_between_its_steps(epochs, every, steps, place):
    recipe = Recipe(epochs=epochs, schedule="step", step_epochs=every, step_factor=0.5)
    done = min(int(place * epochs * steps), epochs * steps - 1)
    assert recipe.rate_factor(done / (epochs * steps)) == 0.5 ** (done // steps // every)


def test_biases_learn_at_their_own_rate_without_decay(tmp_path):
    settings = {"epochs": 1, "batch_size": 256, "optimizer": "sgd", "lr": 0.1, "lambda_wd": 0.0, "rho": 0.0}
    torch.manual_seed(0)
    start = secateur.build_sibling(mlp()).state_dict()
    steps = [
        {
            name: value - start[name]
            for name, value in train(tmp_path / str(rate), **settings, bias_lr=rate).state_dict().items()
        }
        for rate in (1.0, 2.0)
    ]
    for name, step in steps[0].items():
        torch.testing.assert_close(steps[1][name], step * (2 if name.endswith("bias") else 1))


@pytest.mark.parametrize("lr", [1e20, 1e38])
def test_a_loss_that_is_no_number_is_reported_with_its_epoch(tmp_path, lr):
    with pytest.raises(FloatingPointError, match=r"(loss|weight).* became .* in epoch 1 of stage train: lower"):
        train(tmp_path, lr=lr, rho=0)


def test_weights_broken_by_the_very_last_step_are_noticed(tmp_path):
    with pytest.raises(FloatingPointError, match=r'"0\.weight" became NaN or infinite in epoch 1'):
        train(tmp_path, model=mlp(), epochs=1, batch_size=256, lr=3e38, lambda_wd=1e3, optimizer="sgd")


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("lambda_wd", math.inf),
        ("lr", -1e-3),
        ("epochs", -1),
        ("batch_size", 0),
        ("epochs", 1.5),
        ("clip_norm", -1),
        ("clip_norm", math.nan),
        ("optimizer", "'rmsprop'"),
        ("schedule", "'cosin'"),
        ("step_epochs", 0),
        ("step_factor", -0.1),
        ("warmup", 1),
        ("bias_lr", -2),
    ],
)
def test_settings_outside_their_range_are_refused_by_name(setting, value):
    with pytest.raises(ValueError, match=rf"^{setting} must .* got {value}"):
        Recipe(**{setting: value.strip("'") if isinstance(value, str) else value})


def test_nesterov_needs_momentum():
    with pytest.raises(ValueError, match=r'which sgd has and adam has not: use "sgd"$'):
        Recipe(nesterov=True)


@pytest.mark.parametrize(("nesterov", "second"), [(False, -0.29), (True, -0.461)])
def test_steps_look_ahead_with_nesterov(nesterov, second):
    """With a gradient of 1, v₁ = 1 and v₂ = 1.9; Nesterov's steps are lr·(1 + 0.9·v), the others lr·v."""
    weight = torch.nn.Parameter(torch.zeros(1))
    recipe = Recipe(optimizer="sgd", nesterov=nesterov)
    optimizer = loop._optimizer(recipe, [{"params": [weight], "lr": 0.1}], is_sharded=False)
    for _ in range(2):
        weight.grad = torch.ones(1)
        optimizer.step()
    assert weight.item() == pytest.approx(second)


# Asked to end


class Asker(Recorder):
    """Asks its own process to end, once a step is done."""

    def __init__(self, moment: int) -> None:
        super().__init__()
        self.moment = moment

    def step(self, stage, done, total):
        super().step(stage, done, total)
        if done == self.moment:
            os.kill(os.getpid(), signal.SIGTERM)


def fit_noisy(directory: Path, source, observer=None):
    torch.manual_seed(0)
    model = secateur.build_sibling(mlp())
    model.insert(1, torch.nn.Dropout(0.5))
    # The loader's batches are half as large, and two of them make a step.
    stage = stage_of(model, clip_norm=1.0, accumulate=2)
    fit(stage, source, seed=0, measure=lambda _: {}, journal=journal(directory), observer=observer)
    return model, list(read_log(directory / "log.jsonl"))


@pytest.mark.parametrize("source", [NoisyPoints, loaded_points])
@pytest.mark.parametrize("moment", [1, 3, 4, 6])
def test_a_training_that_is_asked_to_end_loses_no_step_and_resumes_bit_for_bit(tmp_path, source, moment):
    with pytest.raises(KeyboardInterrupt):
        fit_noisy(tmp_path / "ended", source(), Asker(moment))
    recorder = Recorder()
    (ended, log), (whole, expected) = (
        fit_noisy(tmp_path / "ended", source(), recorder),
        fit_noisy(tmp_path / "whole", source()),
    )
    assert [done for _, done, _ in recorder.steps] == list(range(moment + 1, 9))
    assert all(map(torch.equal, ended.state_dict().values(), whole.state_dict().values()))
    assert log == expected


def test_a_handler_of_the_users_own_is_left_alone(tmp_path):
    asked = []
    before = signal.signal(signal.SIGTERM, lambda *_: asked.append(True))
    try:
        fit_noisy(tmp_path, Points(), Asker(3))
    finally:
        signal.signal(signal.SIGTERM, before)
    assert asked == [True]


def test_sigterm_means_what_it_meant_once_training_is_over(tmp_path):
    fit_noisy(tmp_path, Points())
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


def test_what_acts_between_steps_is_told_how_far_training_is(tmp_path):
    seen = []
    train(tmp_path, between=lambda done, total: seen.append((done, total)))
    assert seen == [(done, 8) for done in range(1, 9)]


def test_fp16_without_a_gpu_is_refused_in_one_sentence(tmp_path):
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    with pytest.raises(ValueError, match=r"^precision fp16 needs a GPU: choose bf16 or no$"):
        train(tmp_path, precision="fp16")


def test_a_step_that_overflows_in_fp16_leaves_no_trace():
    weight = torch.nn.Parameter(torch.ones(1000))
    recipe = Recipe(precision="fp16", optimizer="sgd", lr=0.1)
    optimizer = loop._optimizer(recipe, [{"params": [weight], "lr": 0.1}], is_sharded=False)
    scaler = torch.amp.GradScaler("cpu")
    for factor in (math.inf, 3.0):
        scaler.scale(factor * weight.sum()).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
    assert_close(weight.data, torch.full((1000,), 0.7))


def test_a_network_trained_in_bf16_answers_in_float32_afterwards(tmp_path):
    trained = train(tmp_path, model=mlp(), precision="bf16")
    assert "forward" not in vars(trained)
    assert "_original_forward" not in vars(trained)


def test_a_forward_of_the_callers_own_is_kept(tmp_path):
    model = mlp()
    model.forward = own = partial(torch.nn.Sequential.forward, model)
    assert train(tmp_path, model=model, precision="bf16").forward is own


def test_an_error_that_is_no_number_ends_training_in_one_sentence(tmp_path):
    stage = stage_of(mlp())
    with pytest.raises(FloatingPointError, match=r"error on validation data is NaN after epoch 1 of stage \w+: check"):
        fit(stage, Points(), seed=0, measure=lambda _: {"error": math.nan}, journal=journal(tmp_path))


def test_a_training_that_is_asked_to_end_in_the_last_step_of_an_epoch_does_not_evaluate_first(tmp_path):
    stage = stage_of(secateur.build_sibling(mlp()))
    with pytest.raises(KeyboardInterrupt):
        fit(stage, Points(), seed=0, measure=pytest.fail, journal=journal(tmp_path), observer=Asker(4))


def test_trainings_of_one_process_may_have_different_precisions(tmp_path):
    networks = [train(tmp_path / name, precision=name).state_dict() for name in ("no", "bf16")]
    assert_close(*networks, rtol=0, atol=2e-2)
    assert any(not torch.equal(*pair) for pair in zip(*(each.values() for each in networks), strict=True))


def test_stages_of_another_order_see_the_images_in_another_order(tmp_path):
    def losses(order):
        torch.manual_seed(0)
        stage = replace(stage_of(mlp()), order=order)
        fit(stage, Points(), seed=0, measure=lambda _: {}, journal=journal(tmp_path / str(order)))
        return [line["loss"] for line in read_log(tmp_path / str(order) / "log.jsonl")]

    assert losses(0) != losses(1)


def test_stages_of_any_kind_go_on_with_the_order_of_one_training(tmp_path):
    class Seen(Points):
        """Points that remember in which order they were asked for."""

        def __init__(self):
            super().__init__()
            self.order = []

        def batch(self, indices, generator):
            self.order += indices.tolist()
            return super().batch(indices, generator)

    def seen(*parts):
        source, done = Seen(), 0
        for number, epochs in enumerate(parts):
            first = replace(stage_of(mlp()), recipe=Recipe(epochs=epochs, batch_size=16), first_epoch=done)
            stage = replace(first, phase="train" if number == 0 else "fine-tune", order=number)
            fit(stage, source, seed=3, measure=lambda _: {}, journal=journal(tmp_path / f"{parts}-{number}"))
            done += epochs
        return source.order

    assert seen(3) == seen(2, 1) == seen(1, 1, 1)


def test_micro_batches_of_any_number_make_the_same_step(tmp_path):
    found = {}
    for accumulate in (1, 3, 13, 40):
        torch.manual_seed(0)
        model = mlp()
        train(tmp_path / str(accumulate), model=model, epochs=1, batch_size=20, optimizer="sgd", accumulate=accumulate)
        found[accumulate] = torch.cat([parameter.detach().flatten() for parameter in model.parameters()])
    for weights in found.values():
        torch.testing.assert_close(weights, found[1], rtol=1e-4, atol=1e-6)


class PlannedPoints(Points):
    """Points that note which batches are announced, and which are asked for."""

    def __init__(self) -> None:
        super().__init__()
        self.announced, self.asked = [], []

    def read_ahead(self, batches, seed):
        self.announced.append((seed, [batch.tolist() for batch in batches]))

    def batch(self, indices, generator):
        self.asked.append(indices.tolist())
        return super().batch(indices, generator)


def fit_planned(directory, between=None, **settings):
    torch.manual_seed(0)
    source = PlannedPoints()
    stage = stage_of(mlp(), between=between, **settings)
    fit(stage, source, seed=0, measure=lambda _: {}, journal=journal(directory))
    return source


@pytest.mark.parametrize("accumulate", [1, 3])
def test_a_source_that_reads_ahead_is_told_its_batches_in_the_order_in_which_they_are_asked_for(tmp_path, accumulate):
    source = fit_planned(tmp_path, accumulate=accumulate, batch_size=100)
    assert [part for _, batches in source.announced for part in batches] == source.asked
    assert len(source.announced) == 2
    for _, batches in source.announced:
        assert sorted(index for part in batches for index in part) == list(range(256))
    assert len({seed for seed, _ in source.announced}) == 2


def test_a_resumed_stage_reads_the_same_images_in_the_same_way(tmp_path):
    class StopError(Exception):
        pass

    def stop(done, total):
        if done == total - 1:
            raise StopError

    with pytest.raises(StopError):
        fit_planned(tmp_path / "a", stop)
    resumed, whole = fit_planned(tmp_path / "a"), fit_planned(tmp_path / "b")
    assert resumed.announced == whole.announced[1:]
