"""Which ranges a backfill has to write, without Spark (10 K-49)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.api.kit import running
from topics.engine.engine import Engine
from topics.spark.failure import SourceError
from topics.spark.jobs import backfill
from topics.spark.jobs.place import Place
from topics.spark.jobs.work import Work


@pytest.fixture
def store(tmp_path: Path) -> str:
    path = str(tmp_path / "store")
    append(path, 7)
    return path


def append(path: str, records: int, **config: int) -> None:
    with Engine.open(path) as engine:
        engine.put_topic("a", {"durability": "fsync", **config})
        engine.append("a", [{"data": n} for n in range(records)])


def left(place: Place, out: Path | None = None, **options: Any) -> Any:
    work = Work("backfill", place, ("a",), None if out is None else str(out), options=options)
    return backfill.plan(work, work.store())["ranges"]


def test_an_end_beyond_the_last_record_is_the_last_record(store: str, tmp_path: Path) -> None:
    """K-49: a range that was said to be written would never be looked at again, whatever comes into it later."""
    place, out = Place(path=store), tmp_path / "out"
    assert left(place, out, last=100) == [(1, 7)]
    assert left(place, out, last=100, step=5) == [(1, 5), (6, 7)]
    assert left(place, out, last=4) == [(1, 4)]
    assert left(place, out, first=8, last=100) == []
    (out / f"upto={7:020d}").mkdir(parents=True)
    assert left(place, out, last=100) == []
    append(store, 3)
    assert left(place, out, last=100) == [(8, 10)]
    assert left(place, out, last=9) == [(8, 9)]


def test_records_that_a_crash_could_take_back_are_left_out(tmp_path: Path) -> None:
    """K-49, A-8: no range reaches beyond `durable_seq`, whatever the end is said to be."""
    with running(tmp_path / "store") as server, server.client() as http:
        http.put("/v0/topics/a", json={"durability": "ephemeral"})
        http.post("/v0/topics/a", json={"records": [{"data": n} for n in range(10)]})
        told = http.get("/v0/topics/a/segments").json()
        assert (told["durable_seq"], told["head_seq"]) == (0, 10)
        assert left(Place(url=server.url), into="b", last=10) == []


def test_a_target_that_is_further_than_the_end_is_refused(store: str, tmp_path: Path) -> None:
    """K-49, K-15: targets go forward only, so nothing of what is asked for could be written."""
    out = tmp_path / "out"
    (out / f"upto={7:020d}").mkdir(parents=True)
    with pytest.raises(SourceError, match=r"^topics: invalid_option: --to: .* is at seq 7 .* up to 4 .* — .* --out "):
        left(Place(path=store), out, first=1, last=4)
    assert left(Place(path=store), out, first=5, last=7) == [], "as it was made"


def test_the_first_range_begins_at_the_first_record_that_is_left(store: str, tmp_path: Path) -> None:
    """K-10, K-49: what a cap took before is no loss unless it is asked for; what it takes behind a range is one."""
    append(store, 13, cap_records=8)
    out = tmp_path / "out"
    assert left(Place(path=store), out) == [(13, 20)]
    assert left(Place(path=store), out, first=1) == [(1, 20)]
    (out / f"upto={7:020d}").mkdir(parents=True)
    assert left(Place(path=store), out) == [(8, 20)]
    with running(store) as server:
        assert left(Place(url=server.url), into="b") == [(13, 20)]
