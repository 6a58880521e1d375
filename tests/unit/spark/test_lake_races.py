"""Two runs at one lake table, step by step, without Spark (10 K-44…K-47).

A run plans by the state it saw. Whatever another run commits before it does, an append or a cursor of deletes alone,
makes it start over: rows that it read may have been deleted meanwhile, and rows that it looked for may have come.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from topics.fs import OsFs
from topics.spark.jobs.erase import Erasures
from topics.spark.jobs.lake import FORMATS, Lake, LostRace, Shape, make_shape, open_lake
from topics.spark.jobs.place import Place
from topics.spark.jobs.work import Work

Open = Callable[[], Lake]


@pytest.fixture(params=FORMATS)
def table(request: pytest.FixtureRequest, tmp_path: Path) -> Open:
    """Opens the table as a run does that begins now: it knows the topic up to seq 10."""
    out, shape = str(tmp_path / "lake"), Shape(request.param, "store")
    make_shape(OsFs(), out, shape)

    def opened() -> Lake:
        lake = open_lake(OsFs(), out, shape)
        lake.refresh()
        lake.done(["1-1", "2-2"])
        return lake

    commit(opened(), 10, tmp_path)
    return opened


def run(tmp_path: Path) -> Work:
    return Work("archive", Place(path=str(tmp_path / "store")), out=str(tmp_path / "lake"))


def commit(lake: Lake, upto: int, tmp_path: Path, key: str = "1-1") -> None:
    """As far as a range without records."""
    work = run(tmp_path)
    with lake.staging(work.run):
        lake.commit(work, [], {key: upto})


def erase(lake: Lake, upto: int, tmp_path: Path) -> None:
    erasures = Erasures()
    erasures.add({"id": 1, "epoch": 1, "seqs": [15]})
    assert lake.erase(run(tmp_path), erasures, upto) == 0


def test_rows_are_not_added_when_deletes_were_applied_since_they_were_planned(table: Open, tmp_path: Path) -> None:
    """K-47: the cursor is behind a delete that the plan did not know, so nobody would apply it any more."""
    first, other = table(), table()
    erase(other, 7, tmp_path)
    with pytest.raises(LostRace):
        commit(first, 20, tmp_path)
    again = table()
    assert (again.done(["1-1"]), again.deletes()) == ({"1-1": 10}, 7)
    commit(again, 20, tmp_path)
    assert (table().done(["1-1"]), table().deletes()) == ({"1-1": 20}, 7)


def test_deletes_are_not_counted_as_applied_to_rows_that_came_meanwhile(table: Open, tmp_path: Path) -> None:
    """K-47: rows are looked for in the table as it is when the cursor goes on."""
    first, other = table(), table()
    commit(other, 20, tmp_path)
    with pytest.raises(LostRace):
        erase(first, 7, tmp_path)
    assert (table().done(["1-1"]), table().deletes()) == ({"1-1": 20}, 0)
    erase(table(), 7, tmp_path)
    assert table().deletes() == 7


def test_a_range_is_not_added_twice(table: Open, tmp_path: Path) -> None:
    """K-44…K-46: also where neither run has a file to add."""
    first, other = table(), table()
    commit(other, 20, tmp_path)
    with pytest.raises(LostRace):
        commit(first, 15, tmp_path)
    assert table().done(["1-1"]) == {"1-1": 20}


def test_of_two_runs_that_make_the_table_one_starts_over(tmp_path: Path) -> None:
    """K-45, K-46, K-47: neither saw a table; what the other one did with it counts all the same."""
    for format in FORMATS:
        out, shape = str(tmp_path / format / "lake"), Shape(format, "store")
        make_shape(OsFs(), out, shape)
        first, other, third = (open_lake(OsFs(), out, shape) for _ in range(3))
        for lake in (first, other, third):
            lake.refresh()
            assert (lake.done(["1-1"]), lake.deletes()) == ({}, 0)
        erase(other, 7, tmp_path / format)
        with pytest.raises(LostRace):
            commit(first, 20, tmp_path / format)
        with pytest.raises(LostRace):
            erase(third, 8, tmp_path / format)
        other.refresh()
        assert (other.done(["1-1"]), other.deletes()) == ({}, 7)
