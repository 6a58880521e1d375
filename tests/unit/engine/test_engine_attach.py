"""Commits by attach: who gets segments, what they are, what holds meanwhile, what failures leave (06 S-288 … S-290)."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest

from tests.unit.engine.kit import TOPIC, WAIT_S, Store, everything, gap, numbers, seqs, values, write
from topics.engine import append as appending
from topics.engine import lifecycle, txn
from topics.engine.append import Write
from topics.engine.config import EngineConfig
from topics.engine.engine import Engine
from topics.errors import CommitFailed, EngineClosed, ShardReadOnly, StorageFull, TopicsError, WalIo
from topics.model import CommitResult
from topics.storage import attach as storage
from topics.storage.owner import InlineOwner
from topics.storage.stamper import Stamper

ID = "loader"


def records(n: int, start: int = 0) -> list[dict[str, Any]]:
    return [{"data": {"n": start + at}, "tag": "odd" if at % 2 else None} for at in range(n)]


def stage(engine: Engine, version: int = 1, n: int = 12, topics: tuple[str, ...] = (TOPIC,)) -> list[dict[str, Any]]:
    """One part with one chunk for each topic; what the commit is to be told of it."""
    for chunk, topic in enumerate(topics):
        engine.stage(ID, version, "p", chunk, topic, records(n))
    return [{"part": "p", "chunks": len(topics), "records": n * len(topics)}]


def commit(
    engine: Engine, version: int = 1, n: int = 12, topics: tuple[str, ...] = (TOPIC,), **more: Any
) -> CommitResult:
    return engine.commit_staged(ID, version, stage(engine, version, n, topics), **{"attach": "always", **more})


def attached(result: CommitResult) -> dict[str, bool]:
    return {one.topic: one.attached for one in result.topics}


@pytest.mark.parametrize(("attach", "expected"), [("always", True), ("never", False), ("auto", True)])
def test_a_commit_above_the_bound_is_attached_unless_it_is_told_otherwise(attach: str, expected: bool) -> None:
    """TXN-8: `auto` above TOPICS_TXN_WAL_BYTES."""
    store = Store(txn_wal_bytes=500)
    engine = store.put()
    assert attached(commit(engine, attach=attach)) == {TOPIC: expected}
    assert [value["n"] for value in everything(engine).values] == list(range(12))


def test_a_commit_up_to_the_bound_goes_through_the_log() -> None:
    """TXN-8"""
    engine = Store(txn_wal_bytes=5000).put()
    assert attached(commit(engine, attach="auto")) == {TOPIC: False}


def test_router_destinations_and_ephemeral_topics_are_never_attached_to() -> None:
    """TXN-8: they go through the log in the same commit."""
    store = Store()
    engine = store.put("t")
    for name, durability in (("source", "fsync"), ("dest", "fsync"), ("eph", "ephemeral"), ("disk", "disk")):
        store.put(name, durability=durability)
    engine.put_router("r", {"source": "source", "dest": "dest"})
    topics = ("t", "dest", "eph", "disk", "source")
    result = commit(engine, topics=topics)
    assert attached(result) == {"t": True, "dest": False, "eph": False, "disk": True, "source": True}
    for topic in topics:
        assert len(everything(engine, topic).records) == (24 if topic == "dest" else 12)


def test_an_engine_in_memory_takes_any_commit_as_it_is() -> None:
    """S-351: it has no segments to attach."""
    engine = Store("ram").put()
    assert attached(commit(engine)) == {TOPIC: False}


def test_segments_hold_as_many_records_as_their_bytes_allow() -> None:
    """S-288: the limit of entries does not apply, that of bytes does."""
    store = Store(segment_max_events=3, segment_max_bytes=2000)
    engine = store.put()
    write(engine, "first")
    commit(engine, n=100)
    found = engine.core.names[TOPIC].index.segments
    assert found is not None
    assert [one.first for one in found.segments][:2] == [1, 2]
    assert all(one.sealed for one in found.segments)
    assert all(one.data_len <= 2000 for one in found.segments)
    assert max(one.n for one in found.segments) > 20
    assert seqs(engine.read(TOPIC, limit=1000)) == list(range(1, 102))


def test_the_only_traffic_of_the_log_is_the_mark() -> None:
    """10 K-34: no row is written to the log."""
    store = Store()
    engine = store.put()
    before = engine.metrics()["topics_wal_bytes_written_total"]
    commit(engine, n=1000)
    assert engine.metrics()["topics_wal_bytes_written_total"] - before < 2000


@pytest.mark.parametrize("stop", ["none", "reopened", "killed", "crashed"])
def test_what_was_attached_reads_deletes_and_counts_like_anything_else(stop: str) -> None:
    """S-288 step 5: counts, tags, `ts`; after a restart too."""
    store = Store(segment_max_bytes=300)
    engine = store.put()
    write(engine, 1, 2)
    store.clock.advance(5000)
    before = store.clock.now_ms()
    commit(engine)
    write(engine, 3)
    if stop != "none":
        engine = store.stop(stop)
    assert numbers(engine)[:3] == (15, 1, 15)
    assert numbers(engine).bytes == 3 + sum(len(f'{{"n":{n}}}') for n in range(12))
    assert {record.ts for record in everything(engine).records[2:14]} == {before}
    assert seqs(engine.read(TOPIC, 0, from_ts=before)) == list(range(3, 16))
    assert engine.delete(TOPIC, match="odd").deleted == 6
    assert engine.delete(TOPIC, seqs=[3, 15]).deleted == 2
    assert engine.delete(TOPIC, before_seq=2).deleted == 1
    assert everything(engine).seqs == [2, 5, 7, 9, 11, 13]
    engine = store.reopen()
    assert everything(engine).seqs == [2, 5, 7, 9, 11, 13]


def test_a_follower_is_woken_once_and_reads_on_in_the_segments() -> None:
    """S-288 step 5: wake-ups; a long poll at the head is answered."""
    store = Store()
    engine = store.put()
    write(engine, 1)
    inbox: queue.Queue[Any] = queue.Queue()
    with engine.subscribe(TOPIC, 1, inbox):
        commit(engine)
        assert [inbox.get(timeout=WAIT_S).seq for _ in range(12)] == list(range(2, 14))


def test_a_queue_hands_out_what_was_attached() -> None:
    """S-288: jobs like any others."""
    store = Store()
    store.put("jobs", type="queue")
    engine = store.engine
    commit(engine, topics=("jobs",))
    claimed = engine.claim("jobs", "n1", 5)
    assert [job.seq for job in claimed.jobs] == [1, 2, 3, 4, 5]
    assert engine.ack("jobs", "n1", [1, 2]).acked == 2
    assert engine.state("jobs").count == 10


def test_routers_forward_what_was_attached_to_their_source() -> None:
    """05: a source's segments are a source like any other."""
    store = Store()
    store.put("source")
    store.put("dest")
    engine = store.engine
    engine.put_router("r", {"source": "source", "dest": "dest"})
    commit(engine, topics=("source",))
    engine.router("r")
    assert len(everything(engine, "dest").records) == 12


@pytest.mark.parametrize(
    ("cap", "left"), [({"cap_records": 5}, 5), ({"cap_bytes": 30}, 4), ({"cap_records": 3000}, 3000)]
)
def test_caps_hold_behind_an_attach(cap: dict[str, int], left: int) -> None:
    """S-260, S-288 step 5: at once, also where thousands go."""
    store = Store(segment_max_bytes=20_000)
    engine = store.put(**cap)
    write(engine, 1, 2, 3)
    n = 12 if left < 10 else 5000
    commit(engine, n=n)
    assert numbers(engine)[:3] == (n + 3, n + 4 - left, left)
    assert gap(engine.read(TOPIC)) == (1, n + 3 - left, "cap")
    before = numbers(engine)
    assert numbers(store.kill()) == before


def test_a_topic_that_rejects_refuses_a_commit_that_finds_no_room_when_it_is_held(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """S-288: admission is checked again; nothing is published, nothing left behind."""
    store = Store()
    engine = store.put(cap_records=14, discard="reject")
    write(engine, 1, 2)
    parts = stage(engine)
    while_stamping(monkeypatch, lambda: write_soon(engine, TOPIC))
    with pytest.raises(TopicsError, match="full"):
        engine.commit_staged(ID, 1, parts, attach="always")
    assert numbers(engine)[:3] == (3, 1, 3)
    assert left_behind(store) == []


def while_stamping(monkeypatch: pytest.MonkeyPatch, call: Callable[[], object]) -> None:
    """Have something happen during the first stamping."""
    run, calls = Stamper.run, [call]

    def busy(self: Stamper, given: Any) -> Any:
        if calls:
            calls.pop()()
        return run(self, given)

    monkeypatch.setattr(Stamper, "run", busy)


def write_soon(engine: Engine, topic: str, outcomes: list[Any] | None = None) -> None:
    core = engine.core
    done = (outcomes if outcomes is not None else []).append
    appending.append(core, Write.prepare(topic, [{"data": "meanwhile"}], core.limits), done)


def left_behind(store: Store) -> list[str]:
    """Files of stamping that nobody needs; parts of a version that may be committed again are none."""
    return [path for path in store.files() if path.startswith("staging/") and "/out" in path]


def test_writes_go_on_while_segments_are_stamped_and_come_first() -> None:
    """S-288 step 2: it starts without holding the topics; what came in between keeps its seqs."""
    for topic in (TOPIC, "other"):
        store = Store()
        engine = store.put()
        store.put("other")
        write(engine, 1)
        parts = stage(engine)
        outcomes: list[Any] = []
        with pytest.MonkeyPatch.context() as patch:
            while_stamping(patch, lambda e=engine, t=topic, o=outcomes: write_soon(e, t, o))
            result = engine.commit_staged(ID, 1, parts, attach="always")
        assert outcomes[0].last_seq == (2 if topic == TOPIC else 1)
        assert result.topics[0].first_seq == (3 if topic == TOPIC else 2)
        assert numbers(engine).head_seq == (14 if topic == TOPIC else 13)
        assert left_behind(store) == []


def test_a_topic_that_is_deleted_while_segments_are_stamped_is_created_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    """TXN-5: topics are resolved again; what was stamped for the old one goes."""
    store = Store()
    engine = store.put()
    write(engine, 1, 2)
    parts = stage(engine)
    core = engine.core

    def delete() -> None:
        lifecycle.delete(core, TOPIC, lambda outcome: None)

    while_stamping(monkeypatch, delete)
    result = engine.commit_staged(ID, 1, parts, attach="always")
    assert (result.topics[0].first_seq, result.topics[0].created) == (1, True)
    assert everything(engine).seqs == list(range(1, 13))
    assert left_behind(store) == []
    assert everything(store.kill()).seqs == list(range(1, 13))


@pytest.mark.parametrize("op", ["pwrite", "fsync", "fdatasync", "rename", "sync_dir", "makedirs", "open", "pread"])
@pytest.mark.parametrize("index", [1, 2, 3])
def test_an_error_before_the_mark_fails_the_commit_and_leaves_the_topic_as_it_was(op: str, index: int) -> None:
    """S-290: nothing is published, nothing left behind; the same call completes it."""
    store = Store(segment_max_bytes=300)
    engine = store.put()
    write(engine, 1, 2)
    parts = stage(engine)
    store.fail(op, path="staging", index=index)
    before = numbers(engine)
    try:
        engine.commit_staged(ID, 1, parts, attach="always")
    except (WalIo, CommitFailed):
        assert numbers(engine) == before
        assert left_behind(store) == []
        store.mend()
        write(engine, 3)
        engine.commit_staged(ID, 1, parts, attach="always")
    assert everything(engine).seqs == list(range(1, numbers(engine).head_seq + 1))
    assert numbers(engine).count >= 14
    view = everything(engine).records
    assert everything(store.kill()).records == view


def test_no_room_for_segments_is_told_as_such() -> None:
    """S-80, S-290: stamping leaves the log its share of the volume."""
    store = Store(min_free_bytes=0)
    engine = store.put()
    parts = stage(engine)
    store.fail("pwrite", "ENOSPC", path="out-")
    with pytest.raises(StorageFull):
        engine.commit_staged(ID, 1, parts, attach="always")
    assert left_behind(store) == []
    assert numbers(engine).head_seq == 0


@pytest.mark.parametrize("op", ["rename", "sync_dir"])
@pytest.mark.parametrize("index", range(1, 8))
def test_an_error_behind_the_mark_is_tried_again_and_the_commit_answers(op: str, index: int) -> None:
    """S-290: latches nothing; nobody notices a failure that passes."""
    store = Store(segment_max_bytes=300)
    engine = store.put()
    write(engine, 1)
    parts = stage(engine)
    store.fail(op, path="out/00000001" if op == "rename" else "topics/00000001", index=index)
    result = engine.commit_staged(ID, 1, parts, attach="always")
    assert result.topics[0].count == 12
    assert numbers(engine).head_seq == 13
    assert engine.health().ready
    assert seqs(store.kill().read(TOPIC, limit=100)) == list(range(1, 14))


def stuck(store: Store) -> Engine:
    """A commit whose segments cannot be moved in."""
    engine = store.put()
    store.put("other")
    write(engine, 1)
    parts = stage(engine)
    store.fail("rename", times="always", path="out/00000001/seg-0000000000000002")
    with pytest.raises(WalIo):
        engine.commit_staged(ID, 1, parts, attach="always")
    return engine


def test_segments_that_cannot_be_moved_in_are_shown_as_soon_as_they_can() -> None:
    """S-290: reads of the range wait, other topics go on, nothing is latched, nobody hangs."""
    store = Store(segment_max_bytes=300)
    engine = stuck(store)
    assert seqs(engine.read(TOPIC)) == [1]
    with pytest.raises(WalIo):
        write(engine, 2)
    with pytest.raises(WalIo):
        engine.delete(TOPIC, seqs=[1])
    with pytest.raises(WalIo):
        engine.delete_topic(TOPIC)
    with pytest.raises(WalIo):
        engine.commit_staged(ID, 1, [], attach="always")
    with pytest.raises(WalIo):
        engine.put_router("r", {"source": "other", "dest": TOPIC})
    write(engine, 2, name="other")
    assert engine.health().ready
    store.pass_time(3000)
    assert seqs(engine.read(TOPIC)) == [1]
    store.mend()
    store.pass_time(1000)
    assert seqs(engine.read(TOPIC)) == list(range(1, 14))
    assert engine.commit_staged(ID, 1, [], attach="always").deduped
    assert write(engine, 2).first_seq == 14
    assert left_behind(store) == []
    assert store.files("part") == []
    assert seqs(store.kill().read(TOPIC)) == list(range(1, 15))


@pytest.mark.parametrize("how", ["reopened", "killed", "crashed"])
def test_the_next_start_completes_what_could_not_be_moved_in(how: str) -> None:
    """S-289, S-290: the mark counts; a clean stop keeps it, too."""
    store = Store(segment_max_bytes=300)
    engine = stuck(store)
    store.pass_time(70_000)
    if how == "reopened":
        engine.close()
        store.mend()
        engine = store.open()
    else:
        engine = store.stop(how)
    assert seqs(engine.read(TOPIC)) == list(range(1, 14))
    assert engine.commit_staged(ID, 1, []).deduped
    assert left_behind(store) == []
    assert write(engine, 2).first_seq == 14


@pytest.mark.parametrize("stop", ["killed", "crashed"])
def test_a_mark_whose_sync_fails_leaves_its_segments_for_the_next_start_to_judge(
    monkeypatch: pytest.MonkeyPatch, stop: str
) -> None:
    """S-78, S-289, TXN-10: whether the mark is on disk is not known, so what it may speak of stays."""
    store = Store(segment_max_bytes=300)
    engine = store.put()
    write(engine, 1)
    parts = stage(engine)
    arrange = storage.arrange

    def arranged(*given: Any) -> None:
        arrange(*given)
        store.fail_log_sync()

    monkeypatch.setattr(storage, "arrange", arranged)
    with pytest.raises(CommitFailed):
        engine.commit_staged(ID, 1, parts, attach="always")
    monkeypatch.undo()
    assert seqs(engine.read(TOPIC)) == [1]
    for _ in range(2):
        with pytest.raises(ShardReadOnly):
            engine.commit_staged(ID, 1, parts, attach="always")
    assert any("/out/00000001/seg-" in path for path in store.files())
    store.mend()
    engine = store.stop(stop)
    assert seqs(engine.read(TOPIC)) == (list(range(1, 14)) if stop == "killed" else [1])
    if stop == "killed":
        assert engine.commit_staged(ID, 1, []).deduped
    else:
        assert commit(engine).topics[0].first_seq == 2
    assert seqs(engine.read(TOPIC)) == list(range(1, 14))
    assert left_behind(store) == []


def test_the_log_keeps_the_mark_until_a_snapshot_has_the_segments() -> None:
    """S-192: snapshots that are taken while segments are moved in begin at the mark."""
    store = Store(segment_max_bytes=300)
    engine = stuck(store)
    for n in range(40):
        write(engine, "x" * 3000, name="other")
        if n % 10 == 0:
            engine.checkpoint(full=True)
            store.pass_time(61_000)
    store.mend()
    assert seqs(store.kill().read(TOPIC)) == list(range(1, 14))


def test_two_writers_commit_to_the_same_topics_without_waiting_for_each_other_for_ever() -> None:
    """A-1, S-288: topics are held in ascending id; both commits are whole, one behind the other."""
    store = Store()
    engine = store.put("a")
    store.put("b")
    core = engine.core
    outcomes: list[Any] = []
    for n, topics in enumerate((("a", "b"), ("b", "a"))):
        for chunk, topic in enumerate(topics):
            engine.stage(f"w{n}", 1, "p", chunk, topic, records(5, 100 * n))
        asked = txn.Commit.parse(
            f"w{n}", 1, [{"part": "p", "chunks": 2, "records": 10}], None, None, "always", core.limits
        )
        txn.commit(core, asked, outcomes.append)
    engine.tick()
    assert [type(one) for one in outcomes] == [CommitResult, CommitResult]
    for topic in ("a", "b"):
        found = [value["n"] for value in everything(engine, topic).values]
        assert found in ([*range(5), *range(100, 105)], [*range(100, 105), *range(5)])


def test_a_move_in_that_is_repeated_changes_nothing(tmp_path: Path) -> None:
    """S-289: renames that were done are passed over, whichever they were."""
    store = Store(segment_max_bytes=300)
    engine = store.put()
    commit(engine)
    files = store.sim.files()
    storage.move_in(store.fs, "store/staging/none/out/00000001", "store/topics/00000001", [1, 6])
    assert store.sim.files() == files


def real(tmp_path: Path, **config: Any) -> Engine:
    return Engine.open(str(tmp_path / "store"), EngineConfig(min_free_bytes=0, **config))


def test_on_a_real_disk_a_helper_process_stamps_and_writers_go_on(tmp_path: Path) -> None:
    """S-288: spawned; other topics are written to meanwhile, the same topic too."""
    with real(tmp_path, segment_max_bytes=20_000) as engine:
        engine.put_topic("t", {"durability": "fsync"})
        parts = stage(engine, 1, 2000, ("t",))
        stop = threading.Event()
        written: list[int] = []

        def busy() -> None:
            while not stop.is_set():
                written.append(engine.append("t", [{"data": "x"}]).first_seq or 0)

        worker = threading.Thread(target=busy)
        worker.start()
        try:
            result = engine.commit_staged(ID, 1, parts, attach="always")
        finally:
            stop.set()
            worker.join(WAIT_S)
        assert attached(result) == {"t": True}
        head = engine.state("t").head_seq
        assert head == 2000 + len(written)
        first, last = result.topics[0].first_seq, result.topics[0].last_seq
        assert sorted([*written, *range(first, last + 1)]) == list(range(1, head + 1))
    with real(tmp_path) as engine:
        assert engine.state("t").count == head
        page = engine.read("t", first - 1, limit=3)
        assert values(page) == [{"n": 0}, {"n": 1}, {"n": 2}]


def test_an_engine_that_closes_does_not_wait_for_segments(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """S-352: the commit fails, nothing of it counts, and the helper is gone."""
    engine = real(tmp_path)
    engine.put_topic("t", {"durability": "fsync"})
    parts = stage(engine, 1, 50, ("t",))
    started, ended = threading.Event(), threading.Event()
    run, cancel = Stamper.run, Stamper.cancel

    def slow(self: Stamper, given: Any) -> Any:
        started.set()
        assert ended.wait(WAIT_S)
        return run(self, given)

    def cancelled(self: Stamper) -> None:
        cancel(self)
        ended.set()

    monkeypatch.setattr(Stamper, "run", slow)
    monkeypatch.setattr(Stamper, "cancel", cancelled)
    outcomes: list[Any] = []

    def committing() -> None:
        try:
            outcomes.append(engine.commit_staged(ID, 1, parts, attach="always"))
        except TopicsError as error:
            outcomes.append(error)

    worker = threading.Thread(target=committing)
    worker.start()
    assert started.wait(WAIT_S)
    engine.close()
    worker.join(WAIT_S)
    assert [type(one) for one in outcomes] == [EngineClosed], outcomes
    with real(tmp_path) as engine:
        assert engine.state("t").head_seq == 0
        assert not list((tmp_path / "store" / "staging").iterdir())


def test_a_full_checkpoint_says_when_a_topic_cannot_be_written_for_an_attach() -> None:
    """A-15: deletes that are not on disk because segments are on their way are no success."""
    store = Store(segment_max_bytes=300)
    engine = store.put()
    commit(engine)
    engine.delete(TOPIC, seqs=[3])
    parts = stage(engine, 2)
    store.fail("rename", times="always", path="out/00000001/seg-0000000000000013")
    with pytest.raises(WalIo):
        engine.commit_staged(ID, 2, parts, attach="always")
    with pytest.raises(WalIo, match="stay in the log"):
        engine.checkpoint(full=True)
    store.mend()
    store.pass_time(1000)
    engine.checkpoint(full=True)
    assert everything(store.kill()).seqs == [1, 2, *range(4, 25)]


def test_a_configuration_that_waits_for_an_attach_creates_the_topic_if_it_goes_meanwhile(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """TOP-1, TOP-2: a PUT creates or reconfigures; it does not say that there is no such topic."""
    store = Store()
    engine = store.put()
    core, parts = engine.core, stage(engine)
    outcomes: list[Any] = []
    gone: list[Any] = []
    arrange, calls = storage.arrange, [1]

    def busy(*given: Any) -> None:
        if calls:
            calls.pop()
            lifecycle.put(core, TOPIC, {"ttl_ms": 60_000}, outcomes.append)  # behind the commit that holds the topic
            lifecycle.delete(core, TOPIC, gone.append)
            cast(InlineOwner, core.owner).run()
            assert gone
        arrange(*given)

    monkeypatch.setattr(storage, "arrange", busy)
    engine.commit_staged(ID, 1, parts, attach="always")
    store.pass_time(0)
    ((_, config),) = outcomes
    assert config.ttl_ms == 60_000
    assert engine.state(TOPIC).config.ttl_ms == 60_000
    assert everything(engine).seqs == list(range(1, 13))


@pytest.mark.parametrize("pin_ms", [0, 60_000])
def test_a_full_checkpoint_waits_for_a_commit_that_is_being_attached(
    monkeypatch: pytest.MonkeyPatch, pin_ms: int
) -> None:
    """A-15: a backup during a bulk load is no failure; deletes made before it are on disk when it is answered."""
    store = Store(segment_max_bytes=300)
    engine = store.put()
    commit(engine)
    engine.delete(TOPIC, seqs=[3])
    parts = stage(engine, 2)
    outcomes: list[Any] = []
    arrange = storage.arrange

    def busy(*given: Any) -> None:
        engine.begin_checkpoint(outcomes.append, pin_ms)  # the topic is held by now
        arrange(*given)

    monkeypatch.setattr(storage, "arrange", busy)
    engine.commit_staged(ID, 2, parts, attach="always")
    store.pass_time(0)
    assert [isinstance(one, TopicsError) for one in outcomes] == [False], outcomes
    assert not engine.core.names[TOPIC].needed
    assert everything(store.kill()).seqs == [1, 2, *range(4, 25)]


@pytest.mark.parametrize("op", ["rmdir", "remove"])
def test_what_cannot_be_cleared_from_staging_does_not_keep_a_store_from_opening(op: str) -> None:
    """S-286: nothing there is part of the store; a commit of the same version goes over it."""
    store = Store(segment_max_bytes=300)
    engine = store.put()
    parts = stage(engine)
    store.fail("fdatasync", times="always", path="wal-")
    with pytest.raises(TopicsError):
        engine.commit_staged(ID, 1, parts, attach="always")
    store.mend()
    store.sim.makedirs("store/staging/d19f4bf230f84140-1/out-1-9")
    store._use(store.sim.kill_image(), trust=False)
    store.fail(op, path="staging")
    engine = store.open()
    assert numbers(engine).head_seq == 0
    assert commit(engine).topics[0].first_seq == 1
    assert everything(store.kill()).seqs == list(range(1, 13))
