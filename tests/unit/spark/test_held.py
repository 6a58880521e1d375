"""Plans whose files a server holds until they were read [A-8]."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.api.kit import Running, running
from tests.unit.spark.kit import rows
from topics.clock import SystemClock
from topics.engine.engine import Engine
from topics.fs import OsFs
from topics.spark.export import export
from topics.spark.failure import SourceError
from topics.spark.held import held
from topics.spark.options import parse_read


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Running]:
    with running(tmp_path / "store") as one, one.client() as client:
        for n in range(3):
            client.post(f"/v0/topics/n{n}", json={"records": [{"data": n}]})
        yield one


def pins(server: Running) -> int:
    engine = server.server.app.engine
    assert engine is not None
    return server.on_loop(lambda: len(engine._core.pins))


def planned(server: Running, **options: str) -> Any:
    return held(OsFs(), parse_read({"url": server.url, **options}), 0)


@pytest.mark.parametrize("chosen", [{"topics": "n0,n1,n2"}, {"subscribePattern": "n.*"}])
def test_pins_are_given_back_when_what_was_planned_is_done(server: Running, chosen: dict[str, str]) -> None:
    """A-8, K-40: there are 64 of them for everybody."""
    with planned(server, **chosen) as parts:
        assert pins(server) == 3
        assert [row["data"] for row in rows(OsFs(), parts)] == ["0", "1", "2"]
    assert pins(server) == 0


def test_pins_are_given_back_when_it_fails(server: Running) -> None:
    """A-8: in the middle of reading, or of planning."""
    with pytest.raises(KeyboardInterrupt), planned(server, topics="n0,n1"):
        raise KeyboardInterrupt
    assert pins(server) == 0
    with pytest.raises(SourceError, match="topic_not_found"), planned(server, topics="n0,none"):
        pass
    assert pins(server) == 0


def test_a_directory_is_planned_as_ever(tmp_path: Path) -> None:
    """S-345: nothing is held there."""
    path = str(tmp_path / "store")
    with Engine.open(path) as engine:
        engine.put_topic("a", {"durability": "fsync"})
        engine.append("a", [{"data": 1}])
    with held(OsFs(), parse_read({"path": path, "topics": "a"}), 0) as parts:
        assert [row["data"] for row in rows(OsFs(), parts)] == ["1"]


def test_an_export_gives_its_pins_back(server: Running, tmp_path: Path) -> None:
    """A-8"""
    options = parse_read({"url": server.url, "topics": "n0,n1"})
    assert export(OsFs(), SystemClock(), options, str(tmp_path / "out.parquet"), "parquet").rows == 2
    assert pins(server) == 0
