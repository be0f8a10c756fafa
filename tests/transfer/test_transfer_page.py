"""The page of a study shows scores, curves, where networks disagree and how alike their layers are."""

import re

import numpy as np
import pytest
import torch
from tiny_networks import tiny

from secateur.transfer.neighbours import disagreement
from secateur.transfer.study import study
from secateur.transfer.task import Attributes, Classification, Query, Retrieval

pytest.importorskip("bokeh", reason="the report extra is not installed")

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


def test_the_page_has_every_section_and_needs_no_network(pictures, tmp_path, networks, classes):
    labels = np.where(COLOURS[:60, None] == np.arange(2), 1, -1)
    attributes = Attributes(("a", "b"), pictures[:30], labels[:30], pictures[30:60], labels[30:], "auc")
    tasks = {"colours": classes, "hues": attributes}
    *_, found = study(networks, tasks, cache=tmp_path / "cache")
    assert disagreement(networks, "hues", attributes, tmp_path / "cache") is None
    page = render_transfer_page(found, [disagreement(networks, "colours", classes, tmp_path / "cache")])
    headings = re.findall(r"<h2[^>]*>(.*?)</h2>", page)
    assert headings == [
        "Scores",
        "Score against weights kept",
        "Where the networks disagree",
        "Similarity of layers",
    ]
    assert re.findall(r'class="plot" id="chart-(.*?)"', page) == ["curve-0-colours", "curve-1-hues", "similarity"]
    assert len(re.findall(r'src="data:image/jpeg;base64,', page)) == 4 * (1 + 2 * 5)
    assert not re.findall(r'(?:src|href)="(?!data:|#)', page)
    assert found.means[0].sentence in page
    assert "<pruned>" not in page[: page.index("<script")]
    assert len(page) < 1_500_000
