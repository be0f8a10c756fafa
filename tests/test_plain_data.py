"""Dataclasses survive the way to JSON and back, and what does not fit is named by its place."""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from secateur.plain_data import PlainDataError, from_plain, to_plain


@dataclass(frozen=True)
class Inner:
    name: str
    shape: tuple[int, ...] = ()

    def __post_init__(self):
        if self.name == "bad":
            raise ValueError("name must not be bad")


@dataclass(frozen=True)
class Outer:
    number: float
    kind: Literal["a", "b"] = "a"
    inner: Inner = field(default_factory=lambda: Inner("x"))
    several: tuple[Inner, ...] = ()
    by_name: Mapping[str, float] = field(default_factory=dict)
    perhaps: int | None = None
    flag: bool = False
    anything: Any = None


inners = st.builds(Inner, st.text().filter(lambda name: name != "bad"), st.lists(st.integers()).map(tuple))
outers = st.builds(
    Outer,
    st.floats(allow_nan=False, allow_infinity=False),
    st.sampled_from("ab"),
    inners,
    st.lists(inners, max_size=3).map(tuple),
    st.dictionaries(st.text(), st.floats(allow_nan=False, allow_infinity=False)),
    st.none() | st.integers(),
    st.booleans(),
)


@given(outers)
def test_a_value_survives_json(value):
    assert from_plain(Outer, json.loads(json.dumps(to_plain(value), allow_nan=False))) == value


@pytest.mark.parametrize("value", [math.inf, -math.inf])
def test_infinity_survives_json(value):
    assert from_plain(Outer, json.loads(json.dumps(to_plain(Outer(value)), allow_nan=False))) == Outer(value)


def test_a_number_that_is_not_known_is_null():
    assert to_plain(Outer(math.nan))["number"] is None
    assert math.isnan(from_plain(Outer, {"number": None}).number)


@dataclass(frozen=True)
class Mixed:
    pair: tuple[int, float]
    either: int | str = 0


@pytest.mark.parametrize("value", [Mixed((1, 2.5)), Mixed((1, 2.0), "x"), Mixed((1, 2.0), 7)])
def test_pairs_and_alternatives_survive_json(value):
    assert from_plain(Mixed, json.loads(json.dumps(to_plain(value)))) == value


def test_a_pair_of_three_is_refused():
    with pytest.raises(PlainDataError, match="pair must be a list of 2"):
        from_plain(Mixed, {"pair": [1, 2.0, 3]})


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        ([], "the content must be an object, got []"),
        ({}, "number is missing"),
        ({"number": "1"}, "number must be a number, got '1'"),
        ({"number": True}, "number must be a number, got True"),
        ({"number": 1, "colour": 2}, "colour is unknown"),
        ({"number": 1, "kind": "c"}, "kind must be one of a, b, got 'c'"),
        ({"number": 1, "perhaps": 1.5}, "perhaps must be a whole number, got 1.5"),
        ({"number": 1, "flag": 1}, "flag must be true or false, got 1"),
        ({"number": 1, "several": {}}, "several must be a list, got {}"),
        ({"number": 1, "several": [{"name": "y"}, {"name": 3}]}, "several[1].name must be text, got 3"),
        ({"number": 1, "inner": {"name": "y", "shape": [1, "2"]}}, "inner.shape[1] must be a whole number, got '2'"),
        ({"number": 1, "inner": {"name": "bad"}}, "inner: name must not be bad"),
        ({"number": 1, "by_name": {"x": "y"}}, "by_name.x must be a number, got 'y'"),
        ({"number": 1, "by_name": []}, "by_name must be an object, got []"),
    ],
)
def test_what_does_not_fit_is_named_by_its_place(content, complaint):
    with pytest.raises(PlainDataError) as error:
        from_plain(Outer, content)
    assert str(error.value) == complaint
