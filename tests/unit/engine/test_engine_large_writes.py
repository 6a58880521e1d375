"""Large writes are framed in slices, and nothing in their topic overtakes them [A-1, P-10]."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from topics.engine import append as appending
from topics.engine import delete as deleting
from topics.engine import lifecycle
from topics.engine.append import Write
from topics.engine.config import EngineConfig
from topics.engine.engine import Engine
from topics.errors import CommitFailed, EngineClosed, LimitReached, TopicNotEmpty, TopicNotFound
from topics.model import AppendResult
from topics.testing import Fault, FaultFs, ManualClock, SimFs

LARGE = 1000


class Store:
    """An engine whose framing waits until it is told to go on."""

    def __init__(self) -> None:
        self.fs = FaultFs(SimFs())
        self.clock = ManualClock()
        self.engine = Engine.open("store", EngineConfig(min_free_bytes=0), clock=self.clock, fs=self.fs)
        self.core: Any = self.engine.core
        self.core.frames_aside_bytes = LARGE
        self.framing: list[tuple[Callable[[], object], Callable[[BaseException | None], None]]] = []
        owner: Any = self.core.owner
        aside, sliced = owner.aside, owner.sliced

        def hold(lane: str, work: Callable[[], object], done: Callable[[BaseException | None], None]) -> None:
            if lane == "frames":
                self.framing.append((work, done))
            else:
                aside(lane, work, done)

        def hold_steps(work: Any, done: Callable[[BaseException | None], None]) -> None:
            if work.__name__ == "frame_in_steps":
                self.framing.append((lambda: list(work), done))
            else:
                sliced(work, done)

        owner.aside, owner.sliced = hold, hold_steps

    def write(self, *values: object, **more: Any) -> list[Any]:
        """Begin a write; its outcome, once there is one."""
        outcome: list[Any] = []
        write = Write.prepare("t", [{"data": value} for value in values], self.core.limits, **more)
        with self.engine._owner:
            appending.append(self.core, write, outcome.append)
        return outcome

    def do(self, start: Callable[[Callable[[Any], None]], None]) -> list[Any]:
        outcome: list[Any] = []
        with self.engine._owner:
            start(outcome.append)
        return outcome

    def frame(self) -> None:
        """Let the oldest framing come to its end."""
        work, done = self.framing.pop(0)
        work()
        with self.engine._owner:
            done(None)

    def read(self) -> list[Any]:
        return [record.data for record in self.engine.read("t", limit=1000).records]


@pytest.fixture
def store() -> Iterator[Store]:
    one = Store()
    one.engine.put_topic("t", {"durability": "fsync"})
    yield one
    while one.framing:
        one.frame()
    one.engine.close()


def seqs(outcome: list[Any]) -> tuple[int | None, int | None]:
    (one,) = outcome
    assert isinstance(one, AppendResult), one
    return one.first_seq, one.last_seq


def test_what_comes_behind_a_large_write_waits_for_it(store: Store) -> None:
    small = store.write("a")
    large = store.write("x" * LARGE, "y")
    behind = store.write("b")
    removed = store.do(
        lambda done: deleting.delete(
            store.core, "t", deleting.Removal.parse(3, None, None, store.core.limits), False, done
        )
    )
    config = store.do(lambda done: lifecycle.put(store.core, "t", {"durability": "fsync", "ttl_ms": 5000}, done))
    assert (seqs(small), large, behind, removed, config) == ((1, 1), [], [], [], [])
    store.frame()
    assert (seqs(large), seqs(behind)) == ((2, 3), (4, 4))
    assert removed[0].deleted == 2
    assert config[0][1].ttl_ms == 5000
    assert store.read() == ["y", "b"]


def test_other_topics_do_not_wait(store: Store) -> None:
    large = store.write("x" * LARGE)
    assert store.engine.append("other", [{"data": 1}]).first_seq == 1
    assert not large


def test_reads_go_on_meanwhile_and_see_nothing_of_it(store: Store) -> None:
    store.write("a")
    store.write("x" * LARGE)
    assert store.read() == ["a"]


def test_a_topic_deleted_meanwhile_is_created_anew_by_the_write(store: Store) -> None:
    """[NAME-5]: as any write that comes behind the delete."""
    store.write("a")
    large = store.write("x" * LARGE)
    assert store.engine.delete_topic("t") is True
    store.frame()
    while store.framing:
        store.frame()
    assert large[0].created is True
    assert seqs(large) == (1, 1)
    assert store.engine.state("t").count == 1


def test_writes_in_line_of_a_topic_that_is_deleted_meanwhile_follow_it_into_the_new_one(store: Store) -> None:
    """[NAME-5]: in their order, as any writes that come behind the delete."""
    store.write("a")
    large = store.write("x" * LARGE)
    behind = [store.write("b"), store.write("c", create=False), store.write("d")]
    assert store.engine.delete_topic("t") is True
    while store.framing:
        store.frame()
    assert (seqs(large), large[0].created) == ((1, 1), True)
    assert [(seqs(one), one[0].created) for one in behind] == [((n, n), False) for n in (2, 3, 4)]
    assert store.read() == ["x" * LARGE, "b", "c", "d"]


def test_each_write_in_line_says_whether_it_makes_a_topic_anew_that_is_gone(store: Store) -> None:
    """[NAME-5]"""
    refused = [store.write("x" * LARGE, create=False), store.write("b", create=False)]
    creating, behind = store.write("c"), store.write("d", create=False)
    assert store.engine.delete_topic("t") is True
    store.frame()
    assert [type(one) for (one,) in refused] == [TopicNotFound, TopicNotFound]
    assert (seqs(creating), creating[0].created) == ((1, 1), True)
    assert (seqs(behind), behind[0].created) == ((2, 2), False)
    assert store.read() == ["c", "d"]


@pytest.mark.parametrize("anew", [False, True])
def test_a_delete_of_an_empty_topic_in_line_finds_what_is_there_at_its_turn(store: Store, anew: bool) -> None:
    """[TOP-11, TOP-12]: a topic that is gone by then needs no deleting."""
    large = store.write("x" * LARGE, create=anew)
    removed = store.do(lambda done: lifecycle.delete(store.core, "t", done, if_empty=True))
    assert store.engine.delete_topic("t") is True
    assert removed == []
    while store.framing:
        store.frame()
    if anew:
        assert seqs(large) == (1, 1)
        assert isinstance(removed[0], TopicNotEmpty)
    else:
        assert isinstance(large[0], TopicNotFound)
        assert removed == [lifecycle.TopicDeleted(False, [])]


def test_a_large_write_of_one_producer_too_many_is_refused(store: Store) -> None:
    """[A-4, RES-2]: another one came first while it was framed; it is told so, and the line behind it goes on."""
    store.core.producers.max_producers = 1
    large = store.write("x" * LARGE, producer={"id": "late", "epoch": 0, "index": 1})
    behind = store.write("b")
    assert store.engine.append("other", [{"data": 1}], producer={"id": "early", "epoch": 0, "index": 1}).first_seq == 1
    store.frame()
    (refused,) = large
    assert isinstance(refused, LimitReached)
    assert (refused.limit, refused.max) == ("max_producers", 1)
    assert seqs(behind) == (1, 1)
    assert store.core.staged_bytes == 0
    assert store.read() == ["b"]


def test_a_failed_write_in_front_frees_its_seqs_for_the_large_one(store: Store) -> None:
    """[S-110]: seqs are consecutive, whatever was refused."""
    large: list[Any] = []
    outcome: list[Any] = []
    small = Write.prepare("t", [{"data": "lost"}], store.core.limits)
    big = Write.prepare("t", [{"data": "x" * LARGE}], store.core.limits)
    store.fs.inject(Fault("pwrite", 1, "ENOSPC"))
    with store.engine._owner:
        appending.append(store.core, small, outcome.append)
        appending.append(store.core, big, large.append)
    assert isinstance(outcome[0], CommitFailed)
    store.clock.advance(ms=1100)
    store.engine.tick()
    assert store.engine.health().ready
    store.frame()
    while store.framing:
        store.frame()
    assert seqs(large) == (1, 1)
    assert store.read() == ["x" * LARGE]


def test_a_repeat_of_a_large_write_waits_and_is_known(store: Store) -> None:
    """[IDM-3]"""
    large = store.write("x" * LARGE, idempotency_key="k")
    again = store.write("x" * LARGE, idempotency_key="k")
    store.frame()
    assert not store.framing
    assert seqs(large) == seqs(again) == (1, 1)
    assert again[0].deduped is True


def test_a_large_write_of_a_topic_that_rejects_is_admitted_once(store: Store) -> None:
    """[CAP-3]: nobody else takes the room meanwhile."""
    store.engine.put_topic("t", {"durability": "fsync", "cap_records": 2, "discard": "reject"})
    large = store.write("x" * LARGE, "y")
    behind = store.write("z")
    store.frame()
    assert seqs(large) == (1, 2)
    assert behind[0].code == "topic_full"


def test_the_quota_counts_a_large_write_that_is_being_framed() -> None:
    """[RES-3]"""
    store = Store()
    object.__setattr__(store.core.config, "max_total_bytes", LARGE + 100)
    store.engine.put_topic("t", {"durability": "fsync"})
    large = store.write("x" * LARGE)
    with pytest.raises(Exception, match="max_total_bytes"):
        store.engine.append("other", [{"data": "y" * 200}])
    store.frame()
    assert seqs(large) == (1, 1)
    store.engine.close()


def test_an_engine_that_closes_meanwhile_says_so(store: Store) -> None:
    large = store.write("x" * LARGE)
    store.core.closing = True
    store.frame()
    store.core.closing = False
    assert isinstance(large[0], EngineClosed)


def test_a_disk_topic_reserves_in_front_of_a_large_write() -> None:
    """[A-2]: acknowledged seqs are under a synced ceiling, and a machine crash brings none of them back."""
    store = Store()
    store.engine.put_topic("t", {"durability": "disk"})
    large = store.write("x" * LARGE)
    store.frame()
    assert seqs(large) == (1, 1)
    assert store.core.names["t"].reservation.covers(1)
    store.engine.close()


def large_records(count: int) -> list[dict[str, Any]]:
    """Of several sizes; one of them is a piece of its own."""
    records: list[dict[str, Any]] = [{"data": [n, "é" * (n % 7) * 200]} for n in range(count)]
    records[5] = {"data": "x" * 90_000, "tag": "long", "node": "n"}
    for n in range(0, count, 3):
        records[n] = {**records[n], "tag": f"t:{n % 9}"}
    for n in range(0, count, 4):
        records[n] = {**records[n], "node": "a", "meta": {"n": n}}
    return records


def log_of(store: Store) -> bytes:
    """The bytes of all WAL files."""
    files = sorted(name for name in store.fs.listdir("store/wal") if name.startswith("wal-"))
    found = []
    for name in files:
        file = store.fs.open(f"store/wal/{name}", "r")
        found.append(file.pread(file.size(), 0))
        file.close()
    return b"".join(found)


@pytest.mark.parametrize("durability", ["disk", "fsync"])
@pytest.mark.parametrize("more", [{}, {"idempotency_key": "k"}])
def test_a_write_framed_in_pieces_is_logged_and_read_like_one_framed_at_once(
    durability: str, more: dict[str, str]
) -> None:
    """[S-72, P-10]: the same frames at the same places, the same index, the same answers."""
    records, stores = large_records(200), []
    for aside_bytes in (LARGE, None):
        store = Store()
        store.engine.put_topic("t", {"durability": durability})
        store.core.frames_aside_bytes = aside_bytes
        store.write("before")
        outcome: list[Any] = []
        write = Write.prepare("t", records, store.core.limits, **more)
        with store.engine._owner:
            appending.append(store.core, write, outcome.append)
        assert bool(store.framing) == (aside_bytes is not None)
        while store.framing:
            store.frame()
        assert seqs(outcome) == (2, 201)
        store.write("behind")
        stores.append(store)
    pieced, whole = stores
    assert log_of(pieced) == log_of(whole)
    for store in (*stores, *stores):
        page = store.engine.read("t", limit=1000)
        assert [one.data for one in page.records] == ["before", *(one["data"] for one in records), "behind"]
        assert [one.meta for one in page.records][1:201] == [one.get("meta") for one in records]
        store.core.recent.forget(store.core.names["t"].id)
    assert pieced.engine.state("t") == whole.engine.state("t")
    for store in stores:
        assert store.engine.delete("t", match="t:*").deleted == 67
        store.engine.close()


def test_the_newest_pieces_of_a_large_write_are_read_from_memory(store: Store) -> None:
    """[S-154]: with the places they have in their piece."""
    records = large_records(150)
    write = Write.prepare("t", records, store.core.limits)
    outcome: list[Any] = []
    with store.engine._owner:
        appending.append(store.core, write, outcome.append)
    store.frame()
    topic = store.core.names["t"]
    found = store.core.recent.find_all(topic.id, list(range(1, 151)))
    assert all(one is not None for one in found)
    assert len({id(frames) for frames, _ in found}) > 4
    assert store.read() == [one["data"] for one in records]


def test_of_a_very_large_write_only_what_memory_keeps_is_put_there(store: Store) -> None:
    """[S-154]: at most 4096 records of a topic; the others are read from the log."""
    store.write("before")
    write = Write.prepare("t", [{"data": n} for n in range(5000)], store.core.limits)
    outcome: list[Any] = []
    with store.engine._owner:
        appending.append(store.core, write, outcome.append)
    store.frame()
    found = store.core.recent.find_all(store.core.names["t"].id, list(range(1, 5002)))
    kept = [seq for seq, one in enumerate(found, 1) if one is not None]
    assert kept == list(range(kept[0], 5002))
    assert 4000 < len(kept) <= 4096
    read = [store.engine.read("t", from_seq=at, limit=1000).records for at in range(0, 5001, 1000)]
    assert [one.data for page in read for one in page] == ["before", *range(5000)]


def test_what_a_large_write_needs_no_more_is_freed(store: Store) -> None:
    """[P-10]: in slices, for freeing megabytes at once takes milliseconds."""
    write = Write.prepare("t", large_records(100), store.core.limits)
    outcome: list[Any] = []
    with store.engine._owner:
        appending.append(store.core, write, outcome.append)
    store.frame()
    assert seqs(outcome) == (1, 100)
    assert write.prepared.envelopes == []


def test_a_large_write_that_the_log_refuses_leaves_no_trace(store: Store) -> None:
    """[S-71, WR-8]: all or nothing."""
    store.write("a")
    store.fs.inject(Fault("pwrite", 2, "ENOSPC"))
    write = Write.prepare("t", large_records(100), store.core.limits)
    outcome: list[Any] = []
    with store.engine._owner:
        appending.append(store.core, write, outcome.append)
    store.frame()
    assert isinstance(outcome[0], CommitFailed)
    store.clock.advance(ms=1100)
    store.engine.tick()
    assert seqs(store.write("b")) == (2, 2)
    assert store.read() == ["a", "b"]


def test_a_large_write_that_finds_no_room_keeps_what_it_is_made_of(store: Store) -> None:
    """[08 §6, S-71]: it waits with all its records, and is framed anew when there is room."""
    store.core.admission.patient = True
    for shard in store.core.wal.shards:
        shard._max_pending_bytes = 50_000
    other: list[Any] = []
    large = store.write(*("x" * 1000 for _ in range(100)))
    work, done = store.framing.pop()
    work()
    with store.engine._owner:
        appending.append(store.core, Write.prepare("other", [{"data": 1}], store.core.limits), other.append)
        appending.append(store.core, Write.prepare("other", [{"data": 2}], store.core.limits), other.append)
        done(None)
        assert sum(shard.counters.refused for shard in store.core.wal.shards) == 1
    while store.framing:
        store.frame()
    assert seqs(large) == (1, 100)
    assert store.read() == ["x" * 1000] * 100
