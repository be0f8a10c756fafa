from dataclasses import replace

import pytest

from secateur.budget import Budget
from secateur.experiments.presets import _differences, preset, run_name
from secateur.methods import Dense, Han2015

WHOLE = preset("quick", "lenet-300-100", to_file=True)


def with_epochs(job, epochs):
    return replace(job, recipe=replace(job.recipe, epochs=epochs))


@pytest.mark.parametrize(
    ("job", "name"),
    [
        (WHOLE, "lenet-300-100-mnist-quick-seed0"),
        (replace(WHOLE, seed=12), "lenet-300-100-mnist-quick-seed12"),
        (preset("quick", "lenet-300-100"), "lenet-300-100-mnist-quick-budget-seed0"),
        (WHOLE.reference(), "lenet-300-100-mnist-quick-dense-seed0"),
        (preset("paper", "lenet-5", data="digits"), "lenet-5-digits-paper-manessi2018-seed0"),
        (preset("paper", "alexnet", to_file=True), "alexnet-mnist-paper-seed0"),
        (WHOLE.with_method(Han2015()), "lenet-300-100-mnist-quick-han2015+few-values-seed0"),
    ],
)
def test_a_run_is_named_after_network_data_preset_and_seed(job, name):
    assert run_name(job) == name


@pytest.mark.parametrize(
    "job",
    [
        with_epochs(WHOLE, 3),
        replace(WHOLE, inputs=replace(WHOLE.inputs, augment=0.25)),
        replace(WHOLE, coding=replace(WHOLE.coding, codec="rans")),
        replace(WHOLE, methods=(replace(WHOLE.methods[0], budget=Budget(ratio=30)), WHOLE.methods[1])),
        with_epochs(WHOLE.reference(), 3),
        WHOLE.with_method(Han2015(rounds=2)),
    ],
)
def test_what_differs_from_the_preset_shows_as_a_digest_that_is_the_same_for_every_seed(job):
    *_, digest, seed = run_name(job).split("-")
    assert (len(digest), seed) == (6, "seed0")
    assert run_name(replace(job, seed=5)) == run_name(job).removesuffix("0") + "5"


def test_two_settings_have_two_names():
    assert len({run_name(with_epochs(WHOLE, epochs)) for epochs in range(20)}) == 20


def test_folders_of_the_same_name_in_different_places_have_two_names():
    first, second = (run_name(replace(WHOLE, data=place)) for place in ("/a/photos", "/b/photos"))
    assert first != second
    assert first.startswith("lenet-300-100-photos-quick-")


def test_a_setting_that_is_added_later_does_not_rename_runs():
    usual, own = {"a": 1, "b": [{"c": 2}]}, {"a": 1, "b": [{"c": 3}]}
    assert _differences(usual, own) == {".b[0].c": 3}
    assert _differences(usual | {"new": 0}, own | {"new": 0}) == {".b[0].c": 3}


def test_a_name_is_short():
    longest = replace(with_epochs(preset("best-augmented", "lenet-300-100"), 3), data="fashion-mnist")
    assert len(run_name(longest)) < 80


def test_a_dense_job_of_a_preset_is_its_reference():
    assert WHOLE.with_method(Dense()).recipe == WHOLE.reference().recipe
