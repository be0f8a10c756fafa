"""A job is network × data × methods × recipe × seed, and comes back from JSON as it was."""

import json
from dataclasses import fields, replace

import pytest

from secateur.experiments.presets import preset, preset_names, settings
from secateur.job import Coding, InputConfig, Job
from secateur.methods import METHODS, Dense, FewValues, Han2015, Joint, Manessi2018
from secateur.plain_data import PlainDataError, to_plain
from secateur.train.recipe import Recipe

JOB = Job(network="lenet-5", methods=(Manessi2018(fine_tune_epochs=4), FewValues()), recipe=Recipe(epochs=10))


@pytest.mark.parametrize("name", preset_names())
@pytest.mark.parametrize("to_file", [False, True])
def test_a_job_comes_back_from_json(name, to_file):
    job = preset(name, "lenet-300-100", seed=3, to_file=to_file)
    assert Job.from_json(json.loads(json.dumps(to_plain(job)))) == job


@pytest.mark.parametrize("name", METHODS)
def test_a_job_of_every_method_comes_back_from_json(name):
    method = METHODS[name]()
    methods = (Dense(), method) if method.needs_trained else (method,)
    job = replace(JOB, methods=methods)
    assert Job.from_json(json.loads(json.dumps(to_plain(job)))) == job


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"network": 7}, "network must be text"),
        ({"colour": "red"}, "colour is unknown"),
        ({"recipe": {"lr": -1}}, "recipe: lr must be ≥ 0"),
        ({"methods": [{"name": "manessi2019"}]}, 'there is no method "manessi2019": did you mean "manessi2018"'),
        ({"methods": [{"name": "han2015", "quality": 0}]}, "quality must be positive"),
        ({"methods": [{"name": "han2015", "rho": 1}]}, "rho is unknown"),
        ({"methods": []}, "at least one method"),
        ({"methods": [{"name": "few-values"}]}, 'method "few-values" works on a trained network'),
    ],
)
def test_a_job_that_cannot_be_run_is_one_sentence(change, complaint):
    with pytest.raises(ValueError, match=complaint):
        Job.from_json(JOB.to_json() | change)


def test_a_setting_that_an_older_job_lacks_has_its_default():
    content = JOB.to_json()
    del content["recipe"]["clip_norm"]
    assert Job.from_json(content) == JOB


def test_a_job_from_before_there_were_crops_sees_the_centre():
    content = JOB.to_json()
    for name in ("crop", "most_unreadable"):
        del content["inputs"][name]
    assert Job.from_json(content).inputs == InputConfig(crop="centre", most_unreadable=0.001)


def test_a_missing_part_is_named():
    content = JOB.to_json()
    del content["recipe"]
    with pytest.raises(PlainDataError, match="recipe is missing"):
        Job.from_json(content)


def test_a_job_is_labelled_by_its_methods():
    assert JOB.label == "manessi2018+few-values"
    assert JOB.reference().label == "dense"
    assert JOB.reference().is_dense
    assert not JOB.is_dense


def test_the_dense_reference_has_the_same_recipe_for_as_many_epochs():
    reference = JOB.reference()
    assert reference.methods == (Dense(),)
    assert reference.recipe == replace(JOB.recipe, epochs=14)
    assert (reference.network, reference.seed, reference.inputs) == (JOB.network, JOB.seed, JOB.inputs)


def test_another_method_trains_for_as_many_epochs_in_all():
    han = Han2015(rounds=2, retrain_epochs=3)
    assert JOB.with_method(han).recipe.epochs == 14 - 6
    assert JOB.with_method(han).methods == (han, FewValues())
    assert JOB.with_method(Han2015(rounds=9, retrain_epochs=9)).recipe.epochs == 10  # its rounds take more already
    assert replace(JOB, recipe=Recipe(epochs=0)).with_method(han).recipe.epochs == 0


@pytest.mark.parametrize(
    ("make", "complaint"),
    [
        (lambda: InputConfig(augment=1.5), r"augment must lie in \[0, 1\], got 1.5"),
        (lambda: InputConfig(input_dropout=-0.1), "input_dropout must lie"),
        (lambda: InputConfig(scaling="grey"), "scaling must be one of unit, standard, levels, got 'grey'"),
        (lambda: InputConfig(crop="vgg"), "crop must be one of centre, shift-flip, alexnet, resized, got 'vgg'"),
        (lambda: InputConfig(crop="resized", augment=0.5), 'augment distorts digits and crop "resized" cuts photogr'),
        (lambda: InputConfig(most_unreadable=2), r"most_unreadable must lie in \[0, 1\], got 2"),
    ],
)
def test_inputs_outside_their_range_are_refused_by_name(make, complaint):
    with pytest.raises(ValueError, match=complaint):
        make()


def test_presets_that_differ_in_their_method_alone_have_the_same_dense_reference():
    job = preset("quick", "lenet-300-100", seed=3)
    assert job.with_method(Joint()).reference() == job.reference()


def test_every_preset_knows_how_to_write_a_file():
    codings = {name: settings(name, "lenet-300-100") for name in preset_names()}
    for name in ("paper", "han2015"):
        assert codings.pop(name).coding == Coding(codec="huffman", sort_units=False)
    assert codings.pop("general").coding == Coding()
    assert all(each.coding == Coding() and each.few_values.bias_levels for each in codings.values())


def test_no_two_parts_of_a_pipeline_share_the_name_of_a_setting():
    """Settings are flags without a prefix, so a name may stand for one thing only."""
    for kind in METHODS.values():
        parts = [kind, Recipe, InputConfig, Coding, *([] if kind is FewValues else [FewValues])]
        names = [entry.name for part in parts for entry in fields(part)]
        assert len(names) == len(set(names)), kind
