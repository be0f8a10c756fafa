"""The page of a study shows scores, curves, where networks disagree and how alike their layers are."""

import re
from dataclasses import replace

import numpy as np
import pytest
import torch
from tiny_networks import tiny

from secateur.transfer.neighbours import disagreement
from secateur.transfer.study import study
from secateur.transfer.task import Attributes, Classification, Query, Retrieval

pytest.importorskip("bokeh", reason="the report extra is not installed")

from secateur.report.page.chart import short_number
from secateur.report.page.transfer import render_transfer_page

COLOURS = np.arange(150) % 3


@pytest.fixture
def networks():
    dense, pruned = tiny(name="dense"), tiny(seed=1, name="<pruned>")
    with torch.no_grad():
        pruned.model.hidden.weight[:3] = 0
    return dense, pruned


@pytest.fixture
def classes(pictures):
    return Classification(("red", "green", "blue"), pictures[:60], COLOURS[:60], pictures[60:], COLOURS[60:])


def test_disagreements_are_the_pictures_that_one_network_gets_wrong(pictures, tmp_path, networks, classes):
    found = disagreement(networks, "colours", classes, tmp_path, examples=3)
    [task] = next(study(networks, {"colours": classes}, cache=tmp_path)).tasks
    change = task.main.scores["<pruned>"] - task.main.scores["dense"]
    assert found.second - found.first == round(90 * change)
    assert found.first + found.second > 0
    for example in found.examples:
        assert sorted(example.scores) == [0, 1]
        colour = pictures.index(example.query) % 3
        assert example.label == classes.classes[colour]
        for near in (near for nearest in example.nearest for near in nearest):
            assert near.is_right == (pictures.index(near.picture) % 3 == colour)
            assert pictures.index(near.picture) < 60
    assert disagreement((networks[0], networks[0]), "colours", classes, tmp_path).first == 0


def test_neighbours_of_a_query_leave_out_what_is_ignored(pictures, tmp_path, networks):
    queries = tuple(
        Query(pictures[row], frozenset(range(row % 3, 30, 3)) - {row}, frozenset({row})) for row in range(6)
    )
    found = disagreement(networks, "search", Retrieval(pictures[:30], queries, "ap"), tmp_path)
    assert 0 < len(found.examples) <= 4
    for example in found.examples:
        for nearest in example.nearest:
            assert len(nearest) == 5
            assert example.query not in [near.picture for near in nearest]


def test_the_pictures_of_an_attribute_are_those_that_rank_highest(pictures, tmp_path, networks):
    labels = np.where(COLOURS[:, None] == np.arange(2), 1, -1)
    labels[100:, 1] = 0
    task = Attributes(("red", "green"), pictures[:60], labels[:60], pictures[60:], labels[60:], "ap")
    found = disagreement(networks, "hues", task, tmp_path)
    [scored] = next(study(networks, {"hues": task}, cache=tmp_path)).tasks
    for place, network in enumerate(("dense", "<pruned>")):
        mean = np.mean([scores[place] for scores in found.by_attribute.values()])
        assert mean == pytest.approx(scored.main.scores[network])
    assert (found.kind, found.measure, found.items) == ("attributes", "AP", 2)
    for example in found.examples:
        column = task.attributes.index(example.label)
        assert example.query is None
        for near in (near for nearest in example.nearest for near in nearest):
            assert near.is_right == (labels[pictures.index(near.picture), column] > 0)
            assert 60 <= pictures.index(near.picture) < (150 if column == 0 else 100)


def test_ticks_of_an_axis_have_prefixes_of_thousands():
    assert [short_number(each) for each in (0.5, 300, 1500, 3e6, 2e9)] == ["0.5", "300", "1.5 k", "3 M", "2 G"]


def test_the_page_has_every_section_and_needs_no_network(pictures, tmp_path, networks, classes):
    labels = np.where(COLOURS[:60, None] == np.arange(2), 1, -1)
    attributes = Attributes(("a", "b"), pictures[:30], labels[:30], pictures[30:60], labels[30:], "auc")
    tasks = {"colours": classes, "hues": attributes}
    *_, found = study(networks, tasks, cache=tmp_path / "cache")
    compared = [disagreement(networks, name, task, tmp_path / "cache") for name, task in tasks.items()]
    page = render_transfer_page(replace(found, versions={"torch": "2.0"}), compared)
    headings = re.findall(r"<h2[^>]*>(.*?)</h2>", page)
    assert headings == [
        "Scores",
        "Score against weights kept",
        "Where the networks disagree",
        "Similarity of layers",
    ]
    assert re.findall(r'class="plot" id="chart-(.*?)"', page) == [
        *("curve-0-colours", "curve-1-hues", "attributes-1-hues", "similarity")
    ]
    assert len(re.findall(r'src="data:image/jpeg;base64,', page)) == 4 * (1 + 2 * 5) + 2 * 2 * 5
    assert "dense: AUC" in page
    assert "Of 2 attributes, " in page
    assert re.search(r"Computed with torch 2.0; \d+ threads?, \d+\.\d minutes", page)
    assert not re.findall(r'(?:src|href)="(?!data:|#)', page)
    assert found.means[0].sentence in page
    assert "<pruned>" not in page[: page.index("<script")]
    assert len(page) < 1_500_000
