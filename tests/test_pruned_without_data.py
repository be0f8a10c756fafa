"""The benchmark of pruning without training data, on a tiny network and made-up pictures."""

import copy
import sys
from argparse import Namespace
from dataclasses import replace
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

from secateur import coded_bits
from secateur.measure import count
from secateur.networks.preprocessing import Preprocessing

sys.path.append(str(Path(__file__).parent.parent / "benchmarks"))

import pruned_without_data
from pruned_without_data import (
    centres,
    crops,
    digest,
    distil,
    divergence,
    find_photographs,
    kept_array,
    paired,
    photographs,
    prune,
    quantise,
    ranks_of,
    sensitivities,
    source,
    with_grids,
)

SETTINGS = {"lr": 1e-3, "temperature": 1.0, "bf16": False, "batch_norm": "frozen"}


@pytest.fixture
def teacher():
    torch.manual_seed(0)
    return (
        nn.Sequential(
            nn.Conv2d(3, 8, 3, 2),
            nn.BatchNorm2d(8),
            nn.ReLU(),
            nn.Conv2d(8, 8, 3, groups=8),
            nn.Conv2d(8, 50, 1),
            nn.ReLU(),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
            nn.Linear(50, 10),
        )
        .eval()
        .requires_grad_(False)
    )


def inputs():
    generator = torch.Generator().manual_seed(0)
    while True:
        yield torch.randn(8, 3, 12, 12, generator=generator)


@pytest.fixture
def information(teacher):
    return sensitivities(teacher, inputs(), 2, 0, bf16=False)


def test_half_the_information_times_a_squared_change_is_the_divergence_it_causes(teacher):
    x = torch.randn(2000, 3, 5, 5, generator=torch.Generator().manual_seed(1))
    model = nn.Sequential(nn.Flatten(), nn.Linear(75, 4)).eval()
    found = sensitivities(model, iter(x.split(20)), 100, 0, bf16=False)["1.weight"]
    changed = copy.deepcopy(model)
    with torch.no_grad():
        changed[1].weight += 1e-2 * torch.randn(4, 75, generator=torch.Generator().manual_seed(2))
        caused = float(divergence(changed(x), model(x)))
    assert 300 * found * 1e-4 / 2 == pytest.approx(caused, rel=0.25)  # one random direction of 300


def test_the_share_of_zeros_is_met_and_the_teacher_left_alone(teacher, information):
    before = {name: tensor.clone() for name, tensor in teacher.state_dict().items()}
    pruned = prune(teacher, inputs(), information, 0.5, 20, **SETTINGS)
    tally = count(pruned).prunable
    assert tally.kept == tally.weights // 2
    kept = pruned[8].weight != 0
    assert not torch.equal(pruned[8].weight[kept], teacher[8].weight[kept])  # it was trained
    assert all(torch.equal(tensor, before[name]) for name, tensor in teacher.state_dict().items())


def test_a_layer_that_matters_more_loses_fewer_weights(teacher, information):
    one = prune(teacher, inputs(), information, 0.5, 1, **SETTINGS)
    other = prune(teacher, inputs(), information | {"8.weight": 100 * information["8.weight"]}, 0.5, 1, **SETTINGS)
    assert other[8].weight.count_nonzero() > one[8].weight.count_nonzero()


def test_few_values_keep_the_zeros_and_grids_are_finer_where_weights_matter_more(teacher, information):
    pruned = prune(teacher, inputs(), information, 0.5, 5, **SETTINGS)
    few = quantise(teacher, pruned, inputs(), information, 900, 5, **SETTINGS)
    assert torch.equal(few[8].weight == 0, pruned[8].weight == 0)
    assert len(few[8].weight.unique()) < len(pruned[8].weight.unique())
    more = quantise(teacher, pruned, inputs(), information | {"8.weight": 100.0}, 900, 5, **SETTINGS)
    assert len(more[8].weight.unique()) > len(few[8].weight.unique())


@pytest.mark.parametrize("size_bytes", [850, 950])
def test_grids_are_as_fine_as_the_estimated_size_allows(teacher, information, size_bytes):
    found = coded_bits(with_grids(teacher, information, size_bytes)).item() / 8
    assert 0.95 * size_bytes < found <= size_bytes


def test_a_size_below_that_of_the_coarsest_grids_is_refused(teacher, information):
    with pytest.raises(SystemExit, match=r"--bytes 500: the coarsest grids take \d+ bytes: prune more weights"):
        with_grids(teacher, information, 500)


@pytest.mark.parametrize(("batch_norm", "changes"), [("frozen", False), ("training", True)])
def test_statistics_are_frozen_unless_they_are_to_be_trained(teacher, information, batch_norm, changes):
    student = prune(teacher, inputs(), information, 0.5, 3, **SETTINGS | {"batch_norm": batch_norm})
    assert torch.equal(student[1].running_mean, teacher[1].running_mean) is not changes


def test_a_student_comes_closer_to_its_teacher(teacher):
    x = next(inputs())
    student = nn.Sequential(*teacher[:-1], nn.Linear(50, 10)).requires_grad_(True)
    before = divergence(student(x), teacher(x))
    distil(teacher, student, inputs(), steps=30, **SETTINGS)
    assert divergence(student(x), teacher(x)) < before / 2


def test_the_divergence_is_zero_for_equal_answers_whatever_is_added_to_them():
    logits = torch.randn(4, 10)
    assert divergence(logits + 3, logits, 2.0) == pytest.approx(0, abs=1e-6)
    expected = (torch.tensor([0.75, 0.25]) * torch.tensor([1.5, 0.5]).log()).sum()
    assert divergence(torch.zeros(1, 2), torch.tensor([[3.0, 1.0]]).log()) == pytest.approx(float(expected))


def test_crops_are_a_function_of_the_seed_and_scaled_as_the_network_needs():
    images = torch.full((9, 3, 256, 256), 255, dtype=torch.uint8)
    images[:, :, :128] = 0
    preprocessing = Preprocessing(mean=(0.5,) * 3, std=(0.5,) * 3, size=224, short_side=256)
    first, again, other = (list(islice(crops(images, preprocessing, 32, 4, seed), 3)) for seed in (0, 0, 1))
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
    assert not all(torch.equal(a, b) for a, b in zip(first, other, strict=True))
    assert {batch.shape for batch in first} == {(4, 3, 32, 32)}
    assert set(torch.cat(first).unique().tolist()) == {-1.0, 1.0}


def test_photographs_come_evenly_from_all_folders_without_those_of_the_test(tmp_path):
    for folder, number in (("a", 9), ("b", 3)):
        (tmp_path / folder / "class").mkdir(parents=True)
        for index in range(number):
            Image.new("RGB", (300, 280), (10 * index, 0, 0)).save(tmp_path / folder / "class" / f"{folder}{index}.png")
    folders = [tmp_path / "a", tmp_path / "b"]
    found = find_photographs(folders, 7, [Path("test/a0.webp"), Path("test/b1.webp")])
    assert found == find_photographs(folders, 7, [Path("test/a0.webp"), Path("test/b1.webp")])
    assert sorted(path.stem[0] for path in found) == ["a"] * 5 + ["b"] * 2
    assert not {"a0", "b1"} & {path.stem for path in found}
    for rows in (photographs(found), iter(())):  # the second time nothing is read
        images = kept_array(tmp_path / "photographs.npy", (7, 3, 256, 256), rows)
        assert images[:, 0, 0, 0].tolist() == [10 * int(path.stem[1]) for path in found]
    (tmp_path / "empty").mkdir()
    with pytest.raises(SystemExit, match="empty has no pictures"):
        find_photographs([tmp_path / "empty"], 7, [])


def test_photographs_are_named_by_their_folder_unless_a_name_is_given():
    assert source("pictures/birds") == ("birds", Path("pictures/birds"))
    assert source("birds=pictures/train") == ("birds", Path("pictures/train"))


def test_the_difference_of_two_networks_on_the_same_pictures_is_narrower_than_each_score():
    reference = torch.arange(1000) < 500
    hits = torch.arange(1000) < 510
    difference, half = paired(hits, reference)
    assert difference == pytest.approx(1.0)
    assert half == pytest.approx(1.96 * 100 * (0.01 * 0.99 / 999) ** 0.5)
    assert paired(reference, reference) == (0.0, 0.0)


def test_test_pictures_are_seen_as_the_network_sees_them(tmp_path):
    noise = np.random.default_rng(0).integers(0, 256, (50, 40, 3), dtype=np.uint8)
    Image.fromarray(noise).save(tmp_path / "noise.png")
    preprocessing = Preprocessing(mean=(0.4, 0.5, 0.6), std=(0.2, 0.3, 0.4), size=32, short_side=48)
    (seen,) = centres([(tmp_path / "noise.png", 0)], preprocessing)
    expected = preprocessing(torch.from_numpy(noise).permute(2, 0, 1)[None])
    assert torch.equal(replace(preprocessing, short_side=32)(seen[None]), expected)


@pytest.mark.parametrize(("label", "place"), [(0, 1), (1, 0), (2, 2), (3, 3)])
def test_of_equal_logits_one_is_right(label, place):
    assert ranks_of(torch.tensor([[1.0, 2.0, 1.0, 0.0]]), torch.tensor([label])).tolist() == [place]


def test_other_pictures_have_another_place(tmp_path):
    assert digest([Path("a"), Path("b")]) == digest([Path("a"), Path("b")]) != digest([Path("a"), Path("c")])


def test_an_interrupted_evaluation_is_continued(tmp_path, monkeypatch):
    study = pruned_without_data.Study.__new__(pruned_without_data.Study)
    study.options, study.work = Namespace(network="a", bf16=False), tmp_path
    study.preprocessing = Preprocessing(mean=(0.0,) * 3, std=(1.0,) * 3, size=2, short_side=2)
    study.tested = [(Path(), 2), (Path(), 0), (Path(), 1)]
    np.save(tmp_path / "a-pictures.npy", np.zeros((3, 3, 2, 2), np.uint8))
    evaluated = []

    class Network(nn.Module):
        def forward(self, x):
            evaluated.append(len(x))
            return torch.tensor([[3.0, 2.0, 1.0]]).expand(len(x), 3)

    monkeypatch.setattr(pruned_without_data, "PART", 2)
    study.teacher = Network()
    assert study.ranks(study.teacher, "a-dense").tolist() == [2, 0, 1]
    np.save(tmp_path / "a-pruned.ranks.npy", [2, 0])
    found = study.scores(study.teacher, "a-pruned")
    assert evaluated == [2, 1, 1]
    assert (found["images"], found["top5"], found["top1_difference"]) == (3, 100.0, (0.0, 0.0))
    assert found["top1"] == pytest.approx(100 / 3)
