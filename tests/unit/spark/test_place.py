"""A store as jobs see it, without Spark (10 §5)."""

from __future__ import annotations

from pathlib import Path

from tests.api.kit import running
from topics.engine.engine import Engine
from topics.fs import OsFs
from topics.spark.jobs.place import Place, look


def test_a_topic_that_is_named_twice_counts_once(tmp_path: Path) -> None:
    """K-40, K-42: in the order of the first names; in a directory, and by a server."""
    path = str(tmp_path / "store")
    with Engine.open(path) as engine:
        for name in ("a", "b"):
            engine.put_topic(name, {"durability": "fsync"})
            engine.append(name, [{"data": 1}])
    names = ("b", "a", "b", "b")
    assert [one.name for one in look(OsFs(), Place(path=path), names).instances] == ["b", "a"]
    with running(path) as server:
        assert [one.name for one in look(OsFs(), Place(url=server.url), names).instances] == ["b", "a"]
