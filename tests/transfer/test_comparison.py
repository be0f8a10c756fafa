"""Two networks are compared on every kind of task."""

import json

import numpy as np
import pytest
from tiny_networks import tiny

from secateur.data import DataError
from secateur.plain_data import from_plain, to_plain
from secateur.transfer.evaluate import Comparison, compare
from secateur.transfer.task import Attributes, Classification, Query, Retrieval

COLOURS = np.arange(150) % 3


def classification(pictures):
    return Classification(("red", "green", "blue"), pictures[:60], COLOURS[:60], pictures[60:], COLOURS[60:])


def attributes(pictures, score):
    labels = np.where(COLOURS[:, None] == np.arange(2), 1, -1)
    labels[::7] = 0
    return Attributes(("red", "green"), pictures[:60], labels[:60], pictures[60:], labels[60:], score)


def retrieval(pictures, score):
    queries = tuple(
        Query(pictures[index], frozenset(range(index % 3, 60, 3)) - {index}, frozenset({index})) for index in range(20)
    )
    return Retrieval(pictures[:60], queries, score)


def test_a_network_does_not_differ_from_itself(pictures, tmp_path):
    found = compare(tiny(), tiny(), classification(pictures), name="colours", cache=tmp_path)
    assert (found.measure, found.items, found.difference, found.low, found.high) == ("accuracy", 90, 0, 0, 0)
    assert found.p_value == 1
    assert found.dense == found.pruned
    assert found.dense.score > 0.6
    assert found.dense.neighbours_score > 0.6
    assert found.sentence == "no loss greater than 0.0 points with 95 % probability"
    assert [each.layer for each in found.similarity] == ["conv", "hidden", "last"]


def test_networks_of_different_feature_sizes_are_compared(pictures, tmp_path):
    found = compare(tiny(), tiny(seed=1, units=9), classification(pictures), name="colours", cache=tmp_path)
    assert (found.dense.features, found.pruned.features) == (6, 9)
    assert found.difference == pytest.approx(found.pruned.score - found.dense.score)
    assert found.low <= found.difference <= found.high
    assert from_plain(Comparison, json.loads(json.dumps(to_plain(found)))).task == "colours"


@pytest.mark.parametrize(("score", "measure"), [("ap11", "mAP (11 points)"), ("ap", "mAP"), ("auc", "mAUC")])
def test_attributes_are_compared(score, measure, pictures, tmp_path, monkeypatch):
    monkeypatch.setattr("secateur.transfer.evaluate.swap_test", lambda *_, **__: 0.5)
    found = compare(tiny(), tiny(seed=1), attributes(pictures, score), name="colours", cache=tmp_path)
    assert found.measure == measure
    assert found.low <= found.difference <= found.high
    assert found.difference == pytest.approx(found.pruned.score - found.dense.score)
    assert len(found.dense.penalties) == 2


@pytest.mark.parametrize(("score", "measure"), [("ap", "mAP"), ("recall@4", "Recall@4")])
def test_retrieval_is_compared(score, measure, pictures, tmp_path):
    steps = []
    found = compare(
        tiny(),
        tiny(seed=1),
        retrieval(pictures, score),
        name="colours",
        cache=tmp_path,
        progress=lambda done, total: steps.append((done, total)),
    )
    assert (found.measure, found.items, found.dense.penalties) == (measure, 20, ())
    assert found.dense.score > 0.4
    assert np.isnan(found.dense.neighbours_score)
    assert steps[-1] == (160, 160)


def test_a_task_without_test_pictures_is_refused(pictures, tmp_path):
    empty = Classification(("a", "b"), pictures[:2], COLOURS[:2], (), COLOURS[:0])
    with pytest.raises(DataError, match="colours has no test pictures"):
        compare(tiny(), tiny(), empty, name="colours", cache=tmp_path)
