"""Reading while the store is written to, sealed, rewritten, moved, capped and deleted from."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from topics.engine.config import EngineConfig
from topics.engine.engine import Engine
from topics.fs import OsFs
from topics.spark.options import parse_read
from topics.spark.reader import plan_read, read_partition

RUNS = 50


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[Engine]:
    config = EngineConfig(
        wal_file_bytes=1 << 20, segment_max_events=20, reclaim_rewrite=True, rewrite_min_bytes=1, rewrite_every_ms=0,
        cold_dir=str(tmp_path / "cold"), hot_retain_segments=3,
    )  # fmt: skip
    (tmp_path / "cold").mkdir()
    with Engine.open(str(tmp_path / "store"), config) as one:
        yield one


def live(engine: Engine, name: str) -> set[int]:
    found: set[int] = set()
    at = 0
    while True:
        page = engine.read(name, at, limit=1000)
        found |= {record.seq for record in page.records}
        at = page.next_from_seq
        if page.caught_up:
            return found


def test_a_read_beside_a_busy_engine_gives_what_was_live_at_its_plan_and_still_is(
    engine: Engine, tmp_path: Path
) -> None:
    """T15, K-11: rows ⊆ the view at the plan, ⊇ that view ∩ the view at the end; payloads are their own."""
    engine.put_topic("t", {"durability": "disk", "cap_records": 600})
    stop, failed = threading.Event(), []

    def work() -> None:
        pick = random.Random(5)
        try:
            while not stop.is_set():
                first = engine.append("t", [{"data": "x" * pick.randint(1, 200)} for _ in range(15)]).first_seq
                assert first is not None
                engine.delete("t", seqs=[max(first - pick.randint(1, 500), 1) for _ in range(5)])
                engine.checkpoint(full=pick.random() < 0.3)
                engine.tick()
        except Exception as error:
            failed.append(error)
            raise

    for _ in range(20):
        engine.append("t", [{"data": "y" * 50} for _ in range(30)])
    engine.checkpoint(full=True)
    worker = threading.Thread(target=work)
    worker.start()
    try:
        told = 0
        for _ in range(RUNS):
            told += _compared(engine, str(tmp_path / "store"))
        assert told > RUNS * 100
    finally:
        stop.set()
        worker.join()
    assert failed == []


def _compared(engine: Engine, path: str) -> int:
    earlier = live(engine, "t")
    options = parse_read({"path": path, "topics": "t", "onDataLoss": "emit", "partitionBytes": "20000"})
    parts = plan_read(OsFs(), options, 0)
    rows = [row for part in parts for batch in read_partition(OsFs(), part) for row in batch.to_pylist()]
    later = live(engine, "t")
    seen = [row["seq"] for row in rows if row["kind"] == "record"]
    gone = {seq for row in rows if row["kind"] == "gap" for seq in range(row["seq"], row["gap_to"] + 1)}
    last = parts[-1].pieces[-1].stretch.last
    assert seen == sorted(set(seen))
    assert not gone & set(seen)
    assert {row["reason"] for row in rows if row["kind"] == "gap"} <= {"cap"}
    # The plan is a snapshot's: what was live before it and is live behind the read was live all the time.
    assert set(seen) >= {seq for seq in earlier & later if seq <= last}
    assert all(row["data"].strip('"').strip("xy") == "" for row in rows if row["kind"] == "record")
    return len(seen)
