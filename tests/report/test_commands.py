"""The command of a job, read back by tyro, asks for exactly that job."""

import shlex
from dataclasses import dataclass, field, make_dataclass, replace

import pytest
import tyro

from secateur.budget import Budget
from secateur.cli.training import Prune
from secateur.experiments.presets import has_preset, preset, preset_names
from secateur.job import Coding, InputConfig, Job
from secateur.methods import METHODS, Budgeted, Dense, FewValues, Han2015, Manessi2018
from secateur.report.commands import command, with_file
from secateur.sibling import SiblingConfig
from secateur.train.recipe import Recipe


@dataclass(frozen=True, kw_only=True)
class Start:
    """The words that choose what the flags change."""

    network: tyro.conf.Positional[str]
    data: str = "mnist"
    preset: str = "paper"
    method: str = ""
    seed: int = 0


def parsed(line: str) -> Job:
    """Read a command as the command line does: preset and method first, then every setting as a flag."""
    _, verb, *words = shlex.split(line)
    chosen, _ = tyro.cli(Start, args=words, return_unknown_args=True)
    start = preset(chosen.preset, chosen.network, data=chosen.data, seed=chosen.seed, to_file=verb == "compress")
    if chosen.method:
        start = start.with_method(METHODS[chosen.method]())
    parts = {"recipe": start.recipe, "inputs": start.inputs, "coding": start.coding}
    parts |= {f"method{number}": method for number, method in enumerate(start.methods)}
    settings = [(name, type(part), field(default=part)) for name, part in parts.items()]
    kind = make_dataclass("Flags", settings, bases=(Start,), frozen=True, kw_only=True)
    found = tyro.cli(kind, args=words, config=(tyro.conf.OmitArgPrefixes,))
    methods = tuple(getattr(found, f"method{number}") for number in range(len(start.methods)))
    return replace(start, methods=methods, recipe=found.recipe, inputs=found.inputs, coding=found.coding)


def jobs() -> list[Job]:
    known = [
        preset(name, network, seed=2, to_file=to_file)
        for name in preset_names()
        for network in ("lenet-300-100", "lenet-5")
        if has_preset(name, network)
        for to_file in (False, True)
    ]
    recipe = Recipe(epochs=7, lr=0.1 + 0.2, clip_norm=1.5, decay_biases=True, precision="bf16")
    odd = Job(
        network="lenet-5",
        data="fashion-mnist",
        methods=(Manessi2018(sibling=SiblingConfig(alpha=7, granularity="row"), rho=1e-3),),
        recipe=recipe,
        inputs=InputConfig(augment=0.25),
        seed=3,
    )
    rounds = replace(odd, methods=(Han2015(quality=0.7), FewValues(bias_levels=3)), coding=Coding(codec="rans"))
    return [*known, *(job.reference() for job in known), odd, odd.reference(), rounds]


@pytest.mark.parametrize("job", jobs(), ids=lambda job: f"{job.network}-{job.preset}-{job.label}")
def test_the_command_of_a_job_asks_for_exactly_that_job(job):
    assert parsed(command(job)) == job


def test_a_preset_without_changes_is_named_and_nothing_else():
    assert command(preset("paper", "lenet-300-100")) == "secateur prune lenet-300-100"
    job = preset("best", "lenet-5", seed=4, to_file=True)
    assert command(job) == "secateur compress lenet-5 --preset best --seed 4"
    assert command(preset("best", "lenet-5").reference()) == "secateur prune lenet-5 --preset best --method dense"
    assert command(preset("han2015", "lenet-5")) == "secateur prune lenet-5 --preset han2015"


def test_another_budget_is_one_flag():
    job = replace(preset("quick", "lenet-5"), methods=(Budgeted(budget=Budget(error_increase=0.3)),))
    assert command(job) == "secateur prune lenet-5 --preset quick --error-increase 0.3"
    assert Prune.parsed(shlex.split(command(job))[2:]).job() == job


def test_words_at_the_end_are_added():
    line = command(preset("paper", "lenet-5"), extra=("--reference", "train"))
    assert line == "secateur prune lenet-5 --reference train"


def test_a_job_that_no_command_describes_is_refused():
    job = replace(preset("paper", "lenet-5"), methods=(Dense(), Manessi2018(), FewValues()))
    with pytest.raises(ValueError, match=r"no command runs the methods dense\+manessi2018\+few-values"):
        command(job)


def test_a_path_with_spaces_stays_one_word():
    job = preset("paper", "lenet-5", data="my images")
    assert shlex.split(command(job))[3:5] == ["--data", "my images"]


def test_the_file_of_a_pruning_job_is_that_of_its_preset():
    pruning = preset("quick", "lenet-5")
    assert with_file(pruning) == preset("quick", "lenet-5", to_file=True)
    assert with_file(with_file(pruning)) == with_file(pruning)
