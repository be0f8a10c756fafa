"""Retrieval from a set that was made for classification: find the other pictures of a class."""

from __future__ import annotations

from collections import defaultdict
from typing import Literal

from secateur.transfer.task import Classification, Query, Retrieval


def by_class(task: Classification, score: Literal["ap", "recall@4"] = "ap") -> Retrieval:
    """Return the test pictures as a task of retrieval: each is a query for the others of its class.

    The query itself is ignored. A picture that is alone in its class is searched, but is no query.
    """
    members: dict[int, set[int]] = defaultdict(set)
    for index, label in enumerate(task.test_labels.tolist()):
        members[label].add(index)
    queries = [
        Query(picture, frozenset(members[label] - {index}), frozenset({index}))
        for index, (picture, label) in enumerate(zip(task.test, task.test_labels.tolist(), strict=True))
        if len(members[label]) > 1
    ]
    return Retrieval(task.test, tuple(queries), score)
