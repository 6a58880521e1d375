"""Pages of sealed segments in one go are those of the ordinary walk [RD-1 to RD-8], whatever is dead in between."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest

from tests.unit.engine import kit
from topics.codec import kernel
from topics.codec.project import Projection
from topics.engine import read as reading
from topics.engine.engine import Engine
from topics.engine.index import Index
from topics.engine.read import Query, count_of
from topics.model import ReadResult
from topics.storage import segread
from topics.storage.tiers import blocks
from topics.testing.parity import using

needs_native = pytest.mark.skipif(kernel.installed() is None, reason="the native kernel is not installed")
WANTED = (Projection(), Projection(tags=True), Projection(metas=False))


def page(engine: Engine, query: Query, wanted: Projection) -> tuple[Any, ...]:
    """What a client is told: every member but how long it took."""
    told: list[ReadResult | Exception] = []
    with engine.core.owner:
        reading.read(engine.core, query, told.append, wanted)
    (result,) = told
    assert isinstance(result, ReadResult)
    records = json.loads(b"[%b]" % b",".join(result.records))  # type: ignore[arg-type]
    assert len(records) == count_of(result)
    cursors = (result.next_from_seq, result.head_seq, result.earliest_seq)
    fetched = result.cold_segments_read if not engine.core.config.cold_cache_bytes else None
    return records, *cursors, result.tombstone, result.scanned, result.caught_up, fetched


@needs_native
@pytest.mark.parametrize("seed", range(12))
def test_a_page_is_what_a_walk_finds(seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """RD-4, RD-6, RD-8: limits, budgets, deletes that are not on disk yet, floors, and the end of a segment."""
    chance = random.Random(seed)
    monkeypatch.setattr(segread, "PAGE_RECORDS_MIN", chance.choice((1, 4, 64)))
    events = chance.choice((3, 10, 64, 200))
    with kit.open_real(tmp_path, segment_max_events=events, checkpoint_ms=10**9) as engine:
        fill(engine, chance)
        remove(engine, chance)
        check_pages(engine, chance)


def fill(engine: Engine, chance: random.Random) -> None:
    engine.put_topic("t", {"durability": "disk", "cap_records": chance.choice((0, 90))})
    for n in range(120):
        more = {"tag": f"g{n % 4}"} | ({"meta": {"k": n}} if chance.random() < 0.3 else {})
        engine.append("t", [{"data": {"n": n, "text": "x" * chance.randrange(60)}, **more}])
        if chance.random() < 0.05:
            engine.checkpoint(full=True)


def remove(engine: Engine, chance: random.Random) -> None:
    for _ in range(chance.randrange(4)):
        first = chance.randrange(1, 121)
        engine.delete("t", seqs=list(range(first, min(first + chance.randrange(1, 15), 121))))
    if chance.random() < 0.3:
        engine.delete("t", before_seq=chance.randrange(1, 60))


def check_pages(engine: Engine, chance: random.Random) -> None:
    for _ in range(60):
        limit, most = chance.choice((1, 2, 7, 100, 1000)), chance.choice((1, 90, 700, 5000, 1 << 20))
        nodes = frozenset({b"n"}) if chance.random() < 0.1 else frozenset()
        query = Query("t", chance.randrange(125), None, limit, most, nodes, 0)
        wanted = chance.choice(WANTED)
        with using(None):
            walked = page(engine, query, wanted)
        with using(kernel.installed()):
            assert page(engine, query, wanted) == walked


@needs_native
@pytest.mark.parametrize("seed", range(8))
def test_a_page_of_the_cold_tier_is_what_a_walk_finds(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same where frames come in blocks, with a cache and without: also how many records were fetched [S-322]."""
    chance = random.Random(seed)
    monkeypatch.setattr(segread, "PAGE_RECORDS_MIN", chance.choice((1, 4, 64)))
    monkeypatch.setattr(blocks, "BLOCK_BYTES", chance.choice((300, 1000, 256 << 10)))
    events, cached = chance.choice((10, 64, 200)), chance.choice((0, 4000, 1 << 20))
    store = kit.Store("cold", segment_max_events=events, cold_cache_bytes=cached, hot_retain_segments=0)
    fill(store.engine, chance)
    store.settle()
    remove(store.engine, chance)
    check_pages(store.engine, chance)


@needs_native
def test_a_page_of_the_cold_tier_is_read_in_one_go(monkeypatch: pytest.MonkeyPatch) -> None:
    """P-10: whoever pages through old records takes little of the owner's time from everybody else [S-320]."""
    store = kit.Store("cold", segment_max_events=50, hot_retain_segments=0)
    kit.each(store.engine, 160)
    store.settle()
    walked: list[int] = []
    monkeypatch.setattr(reading._Walk, "_deliver", lambda self, run: pytest.fail("it was walked"))
    monkeypatch.setattr(Index, "walk", lambda self, *given: walked.append(1) or iter(()))  # type: ignore[func-returns-value]
    query = Query(kit.TOPIC, 10, None, 120, 1 << 20, frozenset(), 0)
    with using(kernel.installed()):
        records, *_ = page(store.engine, query, Projection())
    assert [one["$seq"] for one in records] == list(range(11, 131))
    assert not walked
    assert store.engine.metrics()["topics_cold_reads_total"] == 3


@needs_native
def test_most_pages_are_read_in_one_go(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """P-10: no entry is looked at by itself."""
    with kit.open_real(tmp_path, segment_max_events=50, checkpoint_ms=10**9) as engine:
        engine.append("t", [{"data": n} for n in range(100)])
        engine.checkpoint(full=True)
        monkeypatch.setattr(reading._Walk, "_deliver", lambda self, run: pytest.fail("it was walked"))
        with using(kernel.installed()):
            records, *_ = page(engine, Query("t", 10, None, 80, 1 << 20, frozenset(), 0), Projection())
    assert [one["data"] for one in records] == list(range(10, 90))
