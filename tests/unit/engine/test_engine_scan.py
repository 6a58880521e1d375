"""The binary scan against reading: the same records, the same losses, whatever happened to the topic [A-21]."""

from __future__ import annotations

import threading
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.engine import kit
from tests.unit.engine.kit import TOPIC, Store
from topics.codec import control, envelope, segment
from topics.codec.frame import NotAFrame
from topics.codec.place import topic_mask
from topics.engine import scan as scanning
from topics.engine.engine import Engine
from topics.engine.scan import Query, ScanResult
from topics.errors import CallerError, StoreUnavailable, TopicNotFound, WalIo
from topics.model import new
from topics.testing import SimFs

Row = tuple[int, int, str | None, str | None, bytes, bytes | None]


def scan(engine: Engine, name: str = TOPIC, *asked: Any) -> ScanResult:
    query = Query.parse(name, *asked)
    result = engine._call(lambda done: scanning.scan(engine.core, query, done))
    assert isinstance(result, ScanResult)
    return result


def rows_of(engine: Engine, found: ScanResult, name: str = TOPIC) -> list[Row]:
    """The records of an answer, by way of its bytes."""
    mask = topic_mask(engine.core.names[name].id)
    scanned = segment.decode_scan(found.body(), mask)
    rows = []
    for seq, entry in zip(scanned.seqs.tolist(), scanned.entries, strict=True):
        one = segment.decode(scanned.frames, int(entry["offset"]), seq, mask)
        data, meta = envelope.parts(one.data)
        assert (one.ts, one.flags) == (entry["ts"], entry["flags"])
        node = None if one.node is None else one.node.decode()
        tag = None if one.tag is None else one.tag.decode()
        rows.append((seq, one.ts, node, tag, data, meta))
    return rows


def by_scanning(engine: Engine, max_bytes: int, name: str = TOPIC) -> tuple[list[Row], list[tuple[int, int, str]]]:
    """Everything, page by page: records and what was told to be lost."""
    rows: list[Row] = []
    gaps: list[tuple[int, int, str]] = []
    cursor = 1
    for _ in range(10_000):
        page = scan(engine, name, cursor, None, max_bytes)
        got = rows_of(engine, page, name)
        assert len(page.body()) <= max_bytes or len(got) <= 1
        assert all(cursor <= row[0] < page.next_seq for row in got)
        rows += got
        if page.tombstone is not None:
            gaps.append((page.tombstone.gap_from, page.tombstone.gap_to, page.tombstone.reason))
            assert page.tombstone.head_seq == page.head_seq
        if page.next_seq > page.head_seq:
            return rows, gaps
        assert page.next_seq > cursor
        cursor = page.next_seq
    raise AssertionError("the scan never ends")


def by_reading(engine: Engine, name: str = TOPIC) -> tuple[list[Row], list[tuple[int, int, str]]]:
    seen = kit.everything(engine, name)
    rows = [(one.seq, one.ts, one.node, one.tag, one.raw_data, one.raw_meta) for one in seen.records]
    return rows, seen.ranges


class History:
    """A topic that something random happens to."""

    def __init__(self, draw: st.DataObject) -> None:
        self.draw = draw
        self.store = Store(segment_max_events=draw.draw(st.sampled_from([1, 4, 50])), recent_cache_bytes=4000)
        self.store.put(cap_records=draw.draw(st.sampled_from([0, 0, 12])))
        self.n = 0

    def write(self) -> None:
        some = self.draw.draw(st.integers(1, 9))
        sizes = self.draw.draw(st.lists(st.sampled_from([0, 5, 300]), min_size=some, max_size=some))
        records = []
        for size in sizes:
            self.n += 1
            meta = {"k": self.n} if self.n % 3 == 0 else None
            tag, node = (f"t{self.n % 3}", "é")[: self.n % 3 and 2] if self.n % 3 else (None, None)
            records.append(new({"n": self.n, "x": "y" * size}, tag=tag, node=node, meta=meta))
        self.store.engine.append(TOPIC, records)

    def delete(self) -> None:
        head = self.store.engine.state(TOPIC).head_seq
        self.store.engine.delete(TOPIC, seqs=self.draw.draw(st.lists(st.integers(1, head + 1), min_size=1, max_size=6)))

    def delete_tag(self) -> None:
        self.store.engine.delete(TOPIC, match=self.draw.draw(st.sampled_from(["t1", "t2", "t*"])))

    def delete_before(self) -> None:
        head = self.store.engine.state(TOPIC).head_seq
        self.store.engine.delete(TOPIC, before_seq=self.draw.draw(st.integers(1, head // 2 + 1)))

    def checkpoint(self) -> None:
        self.store.engine.checkpoint(full=True)

    def compact(self) -> None:
        self.store.engine.compact(TOPIC, min_dead_ratio=0)

    def restart(self) -> None:
        self.store.stop(self.draw.draw(st.sampled_from(kit.STOPS)))

    def in_memory(self) -> None:
        self.store.put(durability=self.draw.draw(st.sampled_from(["ephemeral", "fsync", "disk"])))

    def step(self) -> None:
        ways = [self.write, self.write, self.delete, self.delete_tag, self.delete_before, self.checkpoint,
                self.compact, self.restart, self.in_memory]  # fmt: skip
        self.draw.draw(st.sampled_from(ways))()


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_a_scan_finds_what_reading_finds_after_any_history(draw: st.DataObject) -> None:
    """A-21: records and tombstones, for answers of any size."""
    history = History(draw)
    history.write()
    for _ in range(draw.draw(st.integers(3, 12))):
        history.step()
    engine = history.store.engine
    expected = by_reading(engine)
    for max_bytes in (1, 500, 8 << 20):
        assert by_scanning(engine, max_bytes) == expected


@kit.at_every_place
def test_a_scan_gives_the_same_bytes_wherever_the_records_lie(place: str) -> None:
    """A-21: as a checkpoint would write them."""
    store = Store(place)
    engine = store.put()
    for n in range(8):
        kit.write(engine, {"n": n}, tag="t" * n or None, node=None if n % 2 else "n")
    before = scan(engine).body()
    assert scan(store.settle()).body() == before
    assert len(rows_of(store.engine, scan(store.engine))) == 8


@pytest.mark.parametrize("place", ["tail", "sealed", "reopened"])
def test_hops_of_copies_are_those_that_segments_keep(place: str) -> None:
    """S-27: a frame of the log keeps 8 hops as 7; the scan's frames have what a checkpoint writes."""
    store = Store(place)
    engine = store.engine
    names = [f"c{n}" for n in range(10)]
    for name in names:
        store.put(name)
    for source, dest in pairwise(names):
        engine.put_router(f"{source}-{dest}", {"source": source, "dest": dest})
    kit.write(engine, 1, name="c0")
    engine = store.settle()
    hops = []
    for name in names[:9]:
        (one,) = rows_of(engine, scan(engine, name), name)
        assert one[4] == b"1"
        hops.append(scan(engine, name).frames[0][4] >> segment.HOPS_SHIFT)
    assert hops == list(range(9))
    before = scan(engine, "c8").body()
    engine.checkpoint(full=True)
    assert scan(engine, "c8").body() == before


def test_a_scan_over_a_cold_tier_that_is_gone_gives_what_is_here_and_then_says_so() -> None:
    """S-323: it is no loss, and no tombstone tells of one."""
    store = Store("cold")
    store.put()
    kit.each(store.engine, 20)
    engine = store.settle()
    files = {path: raw for path, raw in store.sim.files().items() if path.startswith("cold/")}
    for path in files:
        store.sim.lose_file(path)
    with pytest.raises(StoreUnavailable):
        scan(engine)
    sealed = [one for one in engine.plan(TOPIC).segments if one.tier == "cold"]
    found = scan(engine, TOPIC, sealed[-1].last_seq + 1)
    assert [row[0] for row in rows_of(engine, found)] == list(range(sealed[-1].last_seq + 1, 21))
    store.sim.load(files)
    store.pass_time(30_000)
    assert by_scanning(engine, 8 << 20) == by_reading(engine)
    assert by_scanning(engine, 100) == by_reading(engine)


def test_what_cannot_be_read_is_told_as_a_read_tells_it() -> None:
    """S-176: damage is a tombstone in front of what follows it, and never a frame."""
    store = Store("sealed")
    engine = store.put()
    for n in range(1, 10):
        kit.write(engine, f"payload {n}")
    engine.checkpoint(full=True)
    path = next(path for path in store.sim.files() if path.endswith("0000000000000004.data"))
    at = store.sim.files()[path].index(b"payload 5")
    file = store.sim.open(path, "rw")
    file.pwrite(b"X", at)
    file.close()
    rows, gaps = by_scanning(engine, 8 << 20)
    assert [row[0] for row in rows] == [1, 2, 3, 4, 6, 7, 8, 9]
    assert gaps == [(5, 5, "corrupt")]


def between(monkeypatch: pytest.MonkeyPatch, stretch: int, call: Callable[[], object]) -> None:
    """Have something happen behind a stretch of the next scan."""
    walk, count = scanning._Scan._walk, 0

    def walked(self: scanning._Scan) -> bool:
        nonlocal count
        more = walk(self)
        count += 1
        if count == stretch:
            assert more
            call()
        return more

    monkeypatch.setattr(scanning._Scan, "_walk", walked)


@pytest.mark.parametrize("place", ["tail", "sealed"])
def test_a_record_that_is_deleted_while_the_scan_runs_does_not_leave(
    place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A-21: whatever went between two stretches is taken out before the answer."""
    store = Store(place, segment_max_events=500, recent_cache_bytes=0)
    engine = store.put()
    engine.append(TOPIC, [new(f"secret {n:05d}") for n in range(1, 3001)])
    engine = store.settle()
    topic, gone = engine.core.names[TOPIC], (1, 7, 300, 2999)
    body = control.Delete(seqs=gone, bound=3001, cap_floor=1, ttl_floor=1)
    between(monkeypatch, 4, lambda: topic.apply(body, None))
    found = scan(engine)
    assert [row[0] for row in rows_of(engine, found)] == [seq for seq in range(1, 3001) if seq not in gone]
    assert not any(b"secret %05d" % seq in found.body() for seq in gone)


def test_a_topic_that_goes_while_the_scan_runs_is_not_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """NAME-8: nor is one of the same name mixed in."""
    store = Store()
    engine = store.put()
    engine.append(TOPIC, [new(n) for n in range(3000)])
    between(monkeypatch, 3, lambda: engine.core.topics.pop(engine.core.names[TOPIC].id))
    with pytest.raises(TopicNotFound):
        scan(engine)


def test_a_disk_that_fails_in_the_middle_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """S-353: as a read tells it."""
    store = Store("sealed", segment_max_events=50)
    engine = store.put()
    engine.append(TOPIC, [new(n) for n in range(3000)])
    engine = store.settle()
    between(monkeypatch, 3, lambda: store.fail("open", times="always", path=".idx"))
    engine.core.maps.clear()
    with pytest.raises(WalIo):
        scan(engine)
    store.mend()


def test_threads_scan_while_others_write_and_delete() -> None:
    """A-1: with an engine's own threads every stretch is the owner's."""
    sim = SimFs(5)
    with Engine.open(kit.PATH, kit.EngineConfig(segment_max_events=300), fs=sim) as engine:
        engine.put_topic(TOPIC, {"durability": "memory"})
        engine.append(TOPIC, [new(f"first {n}") for n in range(1, 2001)])
        engine.checkpoint(full=True)

        def disturb() -> None:
            for n in range(20):
                engine.append(TOPIC, [new(f"more {n}-{m}") for m in range(50)])
                engine.delete(TOPIC, seqs=[n * 40 + 1, n * 40 + 2])

        other = threading.Thread(target=disturb)
        other.start()
        while True:
            seqs = [row[0] for row in rows_of(engine, scan(engine))]
            assert seqs == sorted(set(seqs))
            if not other.is_alive():
                break
        other.join()
        assert by_scanning(engine, 8 << 20) == by_reading(engine)


def test_a_scan_applies_retention_first_and_counts_as_reading() -> None:
    """TTL-3, PRI-4"""
    store = Store()
    engine = store.put(ttl_ms=1000)
    kit.each(engine, 3)
    store.clock.advance(5000)
    kit.write(engine, 4)
    rows, gaps = by_scanning(engine, 8 << 20)
    assert ([row[0] for row in rows], gaps) == ([4], [(1, 3, "ttl")])
    assert engine.state(TOPIC, touch=False).last_read_ts == store.clock.now_ms()


def test_a_scan_that_makes_no_sense_is_refused() -> None:
    store = Store()
    store.put()
    for asked in ((-1,), ("1",), (5, 4), (1, None, -1), (True,), (1, 2**64)):
        with pytest.raises(CallerError):
            Query.parse(TOPIC, *asked)
    with pytest.raises(TopicNotFound):
        scan(store.engine, "nowhere")


def test_a_body_that_is_no_scan_is_refused_by_its_decoder() -> None:
    """A-21, R-13: truncated anywhere, with any byte changed, of another topic: never a wrong record."""
    store = Store()
    engine = store.put()
    for n in range(3):
        kit.write(engine, n, tag="t", node="n")
    body, mask = scan(engine).body(), topic_mask(engine.core.names[TOPIC].id)
    right = segment.decode_scan(body, mask)
    assert right.seqs.tolist() == [1, 2, 3]
    for end in range(len(body)):
        with pytest.raises(NotAFrame):
            segment.decode_scan(body[:end], mask)
    with pytest.raises(NotAFrame):
        segment.decode_scan(body, mask ^ 1)
    with pytest.raises(NotAFrame):
        segment.decode_scan(body + b"\0", mask)
    unchecked = {4 + n * segment.ENTRY_BYTES + 17 + byte for n in range(3) for byte in range(3)}  # ovh: a hint
    for at in sorted({*range(len(body))} - unchecked):
        damaged = bytearray(body)
        damaged[at] ^= 0xD5
        with pytest.raises(NotAFrame):
            segment.decode_scan(bytes(damaged), mask)
