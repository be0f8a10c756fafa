"""One conformance suite over the table of methods: a new one is covered by being listed."""

import copy
import importlib.metadata
import json
import math
from contextlib import nullcontext
from dataclasses import dataclass, fields, replace
from importlib.util import find_spec
from typing import ClassVar, get_type_hints

import pytest
import torch
from small_training import carry_out, small_network, train
from torch import nn
from torch.nn.utils import parametrize
from torch.testing import assert_close

import secateur
from secateur.budget import Budget
from secateur.experiments.evaluate import evaluate
from secateur.experiments.models import load_model
from secateur.experiments.runner import run
from secateur.files import load
from secateur.functions.computed import is_small
from secateur.functions.inputs import inputs_of
from secateur.job import Job
from secateur.measure import count
from secateur.methods import METHODS, Budgeted, Dense, FewValues, Manessi2018, Method, method_from_json, method_to_json
from secateur.table import Table
from secateur.train.observers import Silent
from secateur.train.recipe import Recipe
from secateur.train.stage import Stage
from secateur.weights.reading import settle


def skipped_without_package(names):
    """Methods as parameters; those of a package that is not installed are skipped with the reason."""
    packages = {name: METHODS[name].package for name in names if name in METHODS}
    missing = {name: each for name, each in packages.items() if each and find_spec(each) is None}
    return [
        pytest.param(name, marks=pytest.mark.skip(f"{missing[name]} is not installed")) if name in missing else name
        for name in names
    ]


RUNNABLE = skipped_without_package(METHODS)


def trained():
    torch.manual_seed(0)
    model = small_network()
    train(model)
    return model


@pytest.mark.parametrize("name", RUNNABLE)
def test_a_method_returns_a_plain_network_of_the_same_class(name):
    model = trained()
    kind, keys, shapes = type(model), list(model.state_dict()), [p.shape for p in model.parameters()]
    finished = carry_out(METHODS[name](), model)
    assert is_small(finished) == METHODS[name].leaves_small
    finished = settle(finished) if METHODS[name].leaves_small else finished
    own = [key for key in finished.state_dict() if ".inputs." not in key]
    assert (type(finished), own) == (kind, keys)
    assert bool(inputs_of(finished)) == METHODS[name].changes_inputs
    assert (len(own) < len(finished.state_dict())) == METHODS[name].changes_inputs
    assert [parameter.shape for parameter in finished.parameters()] == shapes
    assert not any(parametrize.is_parametrized(module) for module in finished.modules())
    assert all(parameter.requires_grad for parameter in finished.parameters())
    assert all(torch.isfinite(parameter).all() for parameter in finished.parameters())


@pytest.mark.parametrize(
    "name", skipped_without_package([name for name, kind in METHODS.items() if kind.leaves == "pruned"])
)
def test_a_method_that_prunes_leaves_zeros_and_no_empty_layer(name):
    finished = carry_out(METHODS[name](), trained())
    totals = count(finished).prunable
    assert totals.zeros > 0
    assert all(tensor.kept > 0 for tensor in totals.tensors)


@pytest.mark.parametrize("name", [name for name, kind in METHODS.items() if kind.leaves_small])
def test_a_small_network_is_stored_counted_copied_and_exported_as_such(name, tmp_path):
    finished = carry_out(METHODS[name](ratio=2), trained()).eval()
    plain, kept, images = settle(finished), count(finished).prunable, torch.randn(2, 1, 6, 6)
    assert kept.weights == count(plain).prunable.weights == 840
    assert kept.kept <= 420 < count(plain).prunable.kept
    secateur.save(finished, tmp_path / "small.cut")
    state = secateur.load(tmp_path / "small.cut", small_network()).state_dict()
    assert all(torch.equal(value, state[key]) for key, value in plain.state_dict().items())
    again = secateur.load(tmp_path / "small.cut", small_network(), small=True).eval()
    assert count(again).prunable.kept == kept.kept
    assert_close(copy.deepcopy(again)(images), plain(images))
    assert_close(torch.export.export(again, (images,)).module()(images), plain(images))


@pytest.mark.parametrize("name", RUNNABLE)
def test_a_method_has_stages_with_names_of_their_own_and_says_how_long_they_take(name):
    method, recipe, stages = METHODS[name](), Recipe(epochs=7), []
    hidden = (nn.Linear(36, 32), nn.ReLU(), nn.Linear(32, 16), nn.ReLU())
    one_kind = nn.Sequential(nn.Flatten(), *hidden, nn.Linear(16, 3))
    carry_out(method, one_kind, stages.append, recipe)
    assert stages
    assert len({stage.name for stage in stages}) == len(stages)
    assert sum(stage.recipe.epochs for stage in stages) == method.epochs(recipe)
    assert all(stage.recipe.batch_size == recipe.batch_size for stage in stages)


@pytest.mark.parametrize("name", RUNNABLE)
def test_a_method_that_trains_a_dense_network_shows_it_to_be_evaluated(name):
    forms = set()
    carry_out(METHODS[name](), trained(), lambda stage: forms.update(stage.forms()))
    assert ("dense" in forms) == METHODS[name].trains_dense


@pytest.mark.parametrize("name", METHODS)
def test_a_method_is_its_settings_and_each_has_a_help_text(name):
    kind = METHODS[name]
    method = kind()
    assert method == kind(**{entry.name: getattr(method, entry.name) for entry in fields(kind)})
    assert hash(method) == hash(kind())
    assert method.name == name
    assert method_from_json(json.loads(json.dumps(method_to_json(method)))) == method
    hints = get_type_hints(kind, include_extras=True)
    assert all(hints[entry.name].__metadata__[0].documentation for entry in fields(kind))
    assert kind.__doc__.endswith(".")


JOB = Job(network="lenet-300-100", data="digits", recipe=Recipe(epochs=3))


def short(method):
    """Return a method whose own stages take one epoch each."""
    lengths = [entry.name for entry in fields(method) if entry.name == "rounds" or entry.name.endswith("epochs")]
    lengths = [name for name in lengths if getattr(method, name) is not None]  # None: as many as the recipe has
    return replace(method, **dict.fromkeys(lengths, 1))


# A step in the second epoch of the first stage and, where a method decides between stages, one after a decision.
KILLED_AT = {name: (short(kind()), 14) for name, kind in METHODS.items()}
KILLED_AT["budget of error"] = (Budgeted(budget=Budget(error_increase=4)), 45)


@pytest.mark.parametrize("name", skipped_without_package(KILLED_AT))
def test_a_run_of_a_method_is_killed_resumed_evaluated_and_ends_as_one_never_killed(name, tmp_path):
    method, last = KILLED_AT[name]
    job = replace(JOB, methods=(Dense(), method) if method.needs_trained else (method,))

    class Killed(Silent):
        steps = 0

        def step(self, stage, done, total):
            self.steps += 1
            if self.steps == last:
                raise KeyboardInterrupt

    whole = run(job, tmp_path / "whole")
    with pytest.raises(KeyboardInterrupt):
        run(job, tmp_path / "killed", observer=Killed())
    resumed = run(job, tmp_path / "killed", resume=True)
    assert resumed.model.read_bytes() == whole.model.read_bytes()
    assert resumed.read_result().errors == whole.read_result().errors
    assert evaluate(resumed).errors.keys() == whole.read_result().errors.keys()
    if method.changes_inputs:
        model, x = load_model(resumed.model).eval(), torch.rand(5, 1, 28, 28)
        assert inputs_of(model).keys() == inputs_of(load(resumed.file)).keys() != set()
        for twin in (copy.deepcopy(model), load(resumed.file).eval(), torch.export.export(model, (x,)).module()):
            torch.testing.assert_close(twin(x), model(x), rtol=1e-3, atol=1e-4)
        assert resumed.read_result().errors["file"] == resumed.read_result().error


@dataclass(frozen=True, kw_only=True)
class Halving(Method):
    """Set the smaller half of every weight to zero."""

    name: ClassVar[str] = "halving"

    def stages(self, model, recipe):
        yield Stage(name="train", model=model, recipe=recipe)
        return model

    def epochs(self, recipe):
        return recipe.epochs


@pytest.mark.parametrize(
    ("value", "fault"),
    [
        (f"{__name__}:Halving", None),
        ("collections.abc:Mapping", "it has no name"),
        ("math:pi", "it is of type float"),
        ("no_such_package:Lost", "ModuleNotFoundError"),
    ],
)
def test_a_method_of_another_package_is_registered_by_an_entry_point(monkeypatch, value, fault):
    point = importlib.metadata.EntryPoint(name="halving", value=value, group=METHODS.group)
    monkeypatch.setattr("secateur.table.entry_points", lambda group: [point])
    table = Table(METHODS.kind, METHODS.group, METHODS._type, [Dense])
    with nullcontext() if fault is None else pytest.warns(UserWarning, match=fault):
        assert list(table) == (["dense", "halving"] if fault is None else ["dense"])


def test_an_unknown_method_is_one_sentence():
    with pytest.raises(ValueError, match='there is no method "manessi": did you mean "manessi2018"'):
        METHODS.find("manessi")


# Settings of single methods


@pytest.mark.parametrize(
    ("method", "settings", "complaint"),
    [
        (Manessi2018, {"cutoff": -1}, "cutoff must be"),
        (Manessi2018, {"rho": math.nan}, "rho must be"),
        (Manessi2018, {"lambda_t": -1}, "lambda_t must be"),
        (Manessi2018, {"fine_tune_epochs": 1.5}, "fine_tune_epochs must be a whole number"),
        (FewValues, {"levels": 0}, "levels must"),
        (FewValues, {"conv_levels": 1 << 16}, "conv_levels must"),
        (FewValues, {"bias_levels": 2}, "bias_levels must"),
        (FewValues, {"lambda_rate": 1e-6}, "lambda_rate needs quantizer"),
        (FewValues, {"quantize_lr": -1.0}, "quantize_lr must be"),
        (FewValues, {"quantize_epochs": -1}, "quantize_epochs must be"),
        (FewValues, {"quantizer": "none"}, "quantizer must be one of"),
    ],
)
def test_settings_are_refused_before_hours_of_training(method, settings, complaint):
    with pytest.raises(ValueError, match=complaint):
        method(**settings)


def test_few_values_are_exactly_as_many_as_asked_for():
    pruned = carry_out(Manessi2018(), trained())
    finished = carry_out(FewValues(levels=4, conv_levels=6), pruned)
    values = {index: len(finished[index].weight[finished[index].weight != 0].unique()) for index in (0, 3, 6)}
    assert values[0] <= 6
    assert values[3] <= 4
    assert values[6] <= 4


def test_shared_values_are_trained_by_adam_whatever_the_recipe():
    stage = next(FewValues().stages(nn.Linear(4, 3), Recipe(optimizer="sgd", nesterov=True, warmup=0.2)))
    assert (stage.recipe.optimizer, stage.recipe.nesterov) == ("adam", False)


def test_the_sibling_that_is_trained_is_cut_at_the_methods_own_cutoff():
    for cutoff in (0.0, 0.05):
        model = trained()
        stages = Manessi2018(cutoff=cutoff).stages(model, Recipe())
        sibling = copy.deepcopy(next(stages).model)
        with pytest.raises(StopIteration) as end:
            next(stages)
        from secateur import prune

        assert torch.equal(end.value.value[3].weight, prune(sibling, cutoff)[3].weight)
