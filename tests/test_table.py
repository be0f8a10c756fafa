"""Tables of entries, and those that other packages register."""

import sys
from dataclasses import dataclass
from importlib.metadata import EntryPoint

import pytest

from secateur import table as tables
from secateur.table import Table


@dataclass(frozen=True)
class Thing:
    name: str


FURTHER = Thing("further")
NOT_A_THING = "further"


@pytest.fixture
def table():
    return Table("thing", "secateur.things", Thing, [Thing("first"), Thing("second")])


@pytest.fixture
def registered(monkeypatch):
    """Let the next table find these entry points, each a module and a name; returns the groups that were asked for."""
    asked = []

    def install(**values: str) -> list[str]:
        def points(group: str) -> list[EntryPoint]:
            asked.append(group)
            return [EntryPoint(name, value, group) for name, value in values.items()]

        monkeypatch.setattr(tables, "entry_points", points)
        return asked

    return install


def test_entries_come_in_their_order_and_registered_ones_last(table, registered):
    asked = registered(further=f"{__name__}:FURTHER")
    assert list(table) == ["first", "second", "further"]
    assert (len(table), table["further"], table.find("further")) == (3, FURTHER, FURTHER)
    assert asked == ["secateur.things"]


def test_a_built_in_entry_is_found_without_loading_the_others(table, registered):
    asked = registered(broken="no_such_module:ENTRY")
    assert table["first"] == table.find("first") == Thing("first")
    assert asked == []


@pytest.mark.parametrize(
    ("value", "fault"),
    [
        ("no_such_module:ENTRY", "ModuleNotFoundError: No module named 'no_such_module'"),
        (f"{__name__}:ABSENT", r"AttributeError: .*ABSENT"),
        (f"{__name__}:NOT_A_THING", "it is of type str, not Thing"),
        ("raises:ENTRY", "RuntimeError: first line$"),
    ],
)
def test_a_broken_entry_point_is_skipped_with_a_warning(table, registered, monkeypatch, tmp_path, value, fault):
    (tmp_path / "raises.py").write_text("raise RuntimeError('first line\\nsecond line')")
    monkeypatch.syspath_prepend(tmp_path)
    registered(broken=value, further=f"{__name__}:FURTHER")
    with pytest.warns(UserWarning, match=f"^the thing broken that a package registers as {value} is skipped: {fault}"):
        assert list(table) == ["first", "second", "further"]
    assert "broken" not in table  # and no second warning
    sys.modules.pop("raises", None)


def test_a_name_that_is_taken_stays_with_its_first_owner(registered):
    table = Table("thing", "secateur.things", Thing, [Thing("further")])
    own = table["further"]
    registered(other=f"{__name__}:FURTHER")
    with pytest.warns(UserWarning, match='is skipped: the name "further" is already taken'):
        assert list(table) == ["further"]
    assert table["further"] is own


def test_an_unknown_name_is_answered_with_the_nearest(table):
    with pytest.raises(ValueError, match='there is no thing "frist": did you mean "first"'):
        table.find("frist")
    with pytest.raises(KeyError):
        table["frist"]


def test_entries_can_be_added_and_taken_away(table):
    table["third"] = Thing("third")
    assert "third" in table
    del table["third"]
    assert list(table) == ["first", "second"]
