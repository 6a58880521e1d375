"""Waiting for the next write, and many threads on one engine: the real disk, real threads (02 §5; 06 §6.3; 00 A-1)."""

from __future__ import annotations

import threading
import time
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.unit.engine import kit
from tests.unit.engine.kit import TOPIC, finish, seqs, spawn, write
from topics.errors import (
    CommitFailed,
    EngineClosed,
    LimitReached,
    ShardReadOnly,
    TopicFull,
    TopicNotFound,
    WalFull,
)
from topics.fs import OsFs
from topics.model import new
from topics.testing import Fault, FaultFs

LONG_MS = 30_000
"""As long as a read may wait."""
SHORT_MS = 50


@pytest.fixture
def engine(tmp_path: Path) -> Any:
    with kit.open_real(tmp_path / "store") as engine:
        engine.put_topic(TOPIC, {"durability": "fsync"})
        yield engine


def waiting_read(engine: Any, from_seq: int = 0, **options: Any) -> Any:
    """A read that waits, in a thread; returned when it is about to begin."""
    begun = threading.Event()

    def read() -> Any:
        begun.set()
        return engine.read(TOPIC, from_seq, wait_ms=LONG_MS, **options)

    future = spawn(read)
    assert begun.wait(kit.WAIT_S)
    return future


# Long-poll


def test_a_waiting_read_is_woken_by_a_write(engine: Any) -> None:
    """[DIF-4]"""
    reader = waiting_read(engine)
    write(engine, "news")
    result = reader.result(kit.WAIT_S)
    assert (kit.values(result), result.next_from_seq, result.caught_up) == (["news"], 1, True)


def test_a_read_that_waits_in_vain_answers_what_it_read_first(engine: Any) -> None:
    """[DIF-4]"""
    write(engine, 1)
    start = time.monotonic()
    result = engine.read(TOPIC, 1, wait_ms=SHORT_MS)
    assert time.monotonic() - start >= SHORT_MS / 1000 * 0.9
    assert (seqs(result), result.next_from_seq, result.head_seq, result.caught_up) == ([], 1, 1, True)


@pytest.mark.parametrize("case", ["records", "tombstone", "recreated"])
def test_a_read_that_has_something_to_say_does_not_wait(engine: Any, case: str) -> None:
    """[DIF-4]: records or a tombstone."""
    engine.put_topic(TOPIC, {"durability": "fsync", "cap_records": 1})
    kit.each(engine, 3)
    if case == "tombstone":
        engine.delete(TOPIC, seqs=[3])
    start = time.monotonic()
    result = engine.read(TOPIC, {"records": 2, "tombstone": 0, "recreated": 99}[case], wait_ms=LONG_MS)
    assert time.monotonic() - start < LONG_MS / 1000 * 0.9
    assert (result.tombstone is None) == (case == "records")


def test_own_records_wake_a_reader_with_an_advanced_cursor(engine: Any) -> None:
    """[DIF-4, RD-3]"""
    reader = waiting_read(engine, node="own")
    write(engine, 1, node="own")
    result = reader.result(kit.WAIT_S)
    assert (seqs(result), result.next_from_seq, result.caught_up) == ([], 1, True)


def test_one_write_wakes_every_reader_that_waits(engine: Any) -> None:
    """[S-106]"""
    readers = [waiting_read(engine) for _ in range(8)]
    write(engine, "news")
    assert [kit.values(result) for result in finish(readers)] == [["news"]] * 8


def test_a_write_to_another_topic_does_not_wake_a_reader(engine: Any) -> None:
    """[DIF-4]"""
    engine.put_topic("other")
    reader = waiting_read(engine)
    write(engine, 1, name="other")
    assert not reader.done()
    write(engine, 2)
    assert kit.values(reader.result(kit.WAIT_S)) == [2]


def test_a_delete_does_not_wake_a_reader(engine: Any) -> None:
    """[DEL-12]"""
    write(engine, 1)
    begun = threading.Event()

    def read() -> tuple[Any, float]:
        start = time.monotonic()
        begun.set()
        return engine.read(TOPIC, 1, wait_ms=300), time.monotonic() - start

    reader = spawn(read)
    assert begun.wait(kit.WAIT_S)
    engine.delete(TOPIC, seqs=[1])
    result, waited = reader.result(kit.WAIT_S)
    assert (seqs(result), result.caught_up) == ([], True)
    assert waited >= 0.27


def test_no_write_slips_between_the_first_look_and_the_wait(engine: Any) -> None:
    """[DIF-5]: each of many writes, racing with the reader, is seen at once."""
    engine.put_topic(TOPIC, {"durability": "memory"})

    def follow() -> list[int]:
        got: list[int] = []
        while len(got) < 300:
            result = engine.read(TOPIC, got[-1] if got else 0, wait_ms=LONG_MS)
            got += seqs(result)
        return got

    readers = [spawn(follow) for _ in range(3)]
    for n in range(300):
        write(engine, n)
    assert finish(readers) == [list(range(1, 301))] * 3


def test_the_deletion_of_the_topic_ends_a_wait(engine: Any) -> None:
    """[DIF-6]: with the first read, or with the news that there is no topic."""
    reader = waiting_read(engine)
    engine.delete_topic(TOPIC)
    try:
        result = reader.result(kit.WAIT_S)
    except TopicNotFound:
        return
    assert (seqs(result), result.caught_up) == ([], True)


def test_closing_the_engine_ends_a_wait(tmp_path: Path) -> None:
    """[S-352], 02 API-5"""
    engine = kit.open_real(tmp_path / "store")
    engine.put_topic(TOPIC)
    reader = waiting_read(engine)
    engine.close()
    try:
        result = reader.result(LONG_MS / 1000 * 0.9)
    except EngineClosed:
        return
    assert seqs(result) == []


# Many threads


def test_many_writers_share_their_syncs(engine: Any) -> None:
    """[DUR-3, S-74, S-105]: fewer syncs than writes, every seq once, each writer's records in its order."""
    before = kit.metric(engine, "topics_wal_fsyncs_total")

    def writer(who: int) -> list[int]:
        return [write(engine, [who, n]).first_seq for n in range(25)]

    answers = finish([spawn(partial(writer, who)) for who in range(16)])
    syncs = kit.metric(engine, "topics_wal_fsyncs_total") - before
    assert sorted(seq for mine in answers for seq in mine) == list(range(1, 401))
    assert all(mine == sorted(mine) for mine in answers)
    assert syncs < 400
    seen = kit.everything(engine, limit=1000)
    assert [record.seq for record in seen.records] == list(range(1, 401))
    for who, mine in enumerate(answers):
        assert [r.seq for r in seen.records if r.data[0] == who] == mine
        assert [r.data[1] for r in seen.records if r.data[0] == who] == list(range(25))


def test_writers_that_gather_behind_a_sync_share_the_next_one(tmp_path: Path) -> None:
    """[S-75, DUR-1]: nobody is answered, and nothing is visible, before the sync that covers it."""
    fs = kit.GatedFs()
    with kit.open_real(tmp_path / "store", fs) as engine:
        engine.put_topic(TOPIC, {"durability": "fsync"})
        write(engine, "first")
        before = kit.metric(engine, "topics_wal_fsyncs_total")
        fs.gate.clear()
        writers = [spawn(partial(write, engine, "lead"))]
        assert fs.waiting.acquire(timeout=kit.WAIT_S)
        writers += [spawn(partial(write, engine, n)) for n in range(10)]
        assert kit.values(engine.read(TOPIC)) == ["first"]
        assert not any(writer.done() for writer in writers)
        fs.gate.set()
        answers = finish(writers)
        assert sorted(answer.last_seq or 0 for answer in answers) == list(range(2, 13))
        assert kit.metric(engine, "topics_wal_fsyncs_total") - before <= 6


def test_a_bounded_queue_refuses_what_it_cannot_hold(tmp_path: Path) -> None:
    """[S-71, WR-5]: and appends nothing of it."""
    fs = kit.GatedFs()
    with kit.open_real(tmp_path / "store", fs, queue_submissions=3) as engine:
        engine.put_topic(TOPIC, {"durability": "fsync"})
        write(engine, 0)
        fs.gate.clear()
        writers = [spawn(partial(write, engine, n)) for n in range(1, 10)]
        assert fs.waiting.acquire(timeout=kit.WAIT_S)
        refused = [writer for writer in writers if isinstance(outcome(writer, 0.5), WalFull)]
        fs.gate.set()
        done = [writer for writer in writers if outcome(writer, kit.WAIT_S) is None]
        assert refused
        assert len(done) + len([w for w in writers if isinstance(outcome(w, 0), WalFull)]) == 9
        assert kit.everything(engine).seqs == list(range(1, len(done) + 2))
        assert write(engine, "again").seqs == [len(done) + 2]


def outcome(future: Future[Any], timeout_s: float) -> BaseException | str | None:
    try:
        return future.exception(timeout_s)
    except TimeoutError:
        return "waiting"


def test_concurrent_creations_make_one_topic(engine: Any) -> None:
    """[NAME-8]: exactly one `created:true`, by put and by write."""
    barrier = threading.Barrier(8)

    def put(name: str) -> Any:
        barrier.wait(kit.WAIT_S)
        return engine.put_topic(name, {"durability": "fsync"})[0]

    assert sorted(finish([spawn(partial(put, "by-put")) for _ in range(8)])) == [False] * 7 + [True]

    def lazily(name: str) -> bool:
        barrier.wait(kit.WAIT_S)
        return write(engine, 1, name=name, config={"durability": "fsync"}).created

    assert sorted(finish([spawn(partial(lazily, "by-write")) for _ in range(8)])) == [False] * 7 + [True]
    assert kit.numbers(engine, "by-write").count == 8
    assert list(engine.topics()) == ["by-put", "by-write", TOPIC]


@pytest.mark.parametrize("kind", ["key", "producer"])
def test_concurrent_writes_of_one_name_append_once(engine: Any, kind: str) -> None:
    """[IDM-3, A-4]: the others wait and are answered with the same seqs."""
    barrier = threading.Barrier(8)
    more: dict[str, Any] = {"idempotency_key": "k"}
    if kind == "producer":
        more = {"producer": {"id": "p", "epoch": 1, "index": 1}}

    def attempt() -> Any:
        barrier.wait(kit.WAIT_S)
        return write(engine, "a", "b", **more)

    answers = finish([spawn(attempt) for _ in range(8)])
    assert [answer.seqs for answer in answers] == [[1, 2]] * 8
    assert sorted(answer.deduped for answer in answers) == [False] + [True] * 7
    assert kit.numbers(engine).count == 2


def test_the_limit_on_topics_holds_under_concurrency(tmp_path: Path) -> None:
    """[RES-3]"""
    with kit.open_real(tmp_path / "store", max_topics=3) as engine:
        barrier = threading.Barrier(8)

        def put(n: int) -> bool:
            barrier.wait(kit.WAIT_S)
            try:
                return engine.put_topic(f"t{n}")[0]
            except LimitReached:
                return False

        assert sum(finish([spawn(partial(put, n)) for n in range(8)])) == 3
        assert len(list(engine.topics())) == 3


def test_a_topic_that_rejects_is_never_overfilled_by_concurrent_writers(engine: Any) -> None:
    """[CAP-3, INV-12]: what is staged counts."""
    engine.put_topic(TOPIC, {"durability": "fsync", "cap_records": 50, "discard": "reject"})
    barrier = threading.Barrier(8)

    def writer() -> int:
        barrier.wait(kit.WAIT_S)
        taken = 0
        for n in range(20):
            try:
                write(engine, n)
            except TopicFull:
                continue
            taken += 1
        return taken

    assert sum(finish([spawn(writer) for _ in range(8)])) == 50
    assert kit.numbers(engine).count == 50
    assert kit.everything(engine).ranges == []


def test_a_disk_write_waits_only_for_a_reservation_that_does_not_cover_it(tmp_path: Path) -> None:
    """[S-103, A-2]: a seq is acknowledged under a synced ceiling; below it no sync is waited for."""
    fs = kit.GatedFs()
    with kit.open_real(tmp_path / "store", fs, reserve_min=64, reserve_max=64) as engine:
        engine.put_topic(TOPIC, {"durability": "disk"})
        fs.gate.clear()
        first = spawn(lambda: write(engine, "first"))
        assert fs.waiting.acquire(timeout=kit.WAIT_S)
        assert outcome(first, 0.3) == "waiting"
        assert kit.values(engine.read(TOPIC)) == []
        fs.gate.set()
        assert first.result(kit.WAIT_S).seqs == [1]
        fs.gate.clear()
        covered = spawn(lambda: kit.each(engine, 20))
        covered.result(kit.WAIT_S)
        beyond = spawn(lambda: engine.append(TOPIC, [new(n) for n in range(200)]))
        assert outcome(beyond, 0.3) == "waiting"
        fs.gate.set()
        assert beyond.result(kit.WAIT_S).first_seq == 22


@pytest.mark.parametrize(("before", "after"), [("memory", "fsync"), ("disk", "fsync"), ("fsync", "disk")])
def test_a_write_during_a_class_change_obeys_the_stricter_class(tmp_path: Path, before: str, after: str) -> None:
    """[CFG-10, DUR-1]: it is neither answered nor visible before a sync that covers it."""
    fs = kit.GatedFs()
    with kit.open_real(tmp_path / "store", fs) as engine:
        engine.put_topic(TOPIC, {"durability": before})
        write(engine, "first")
        fs.gate.clear()
        change = spawn(lambda: engine.put_topic(TOPIC, {"durability": after}))
        assert fs.waiting.acquire(timeout=kit.WAIT_S)
        writer = spawn(lambda: write(engine, "during"))
        assert outcome(writer, 0.3) == "waiting"
        assert kit.values(engine.read(TOPIC)) == ["first"]
        assert engine.state(TOPIC).config.durability == before
        fs.gate.set()
        assert change.result(kit.WAIT_S)[0] is False
        assert writer.result(kit.WAIT_S).seqs == [2]
        assert engine.state(TOPIC).config.durability == after


def test_operations_behind_a_topics_deletion_meet_its_outcome(tmp_path: Path) -> None:
    """[S-276, A-1]: they wait for it, then find no topic, or make a new one."""
    fs = kit.GatedFs()
    with kit.open_real(tmp_path / "store", fs) as engine:
        engine.put_topic(TOPIC, {"durability": "fsync"})
        write(engine, "old")
        fs.gate.clear()
        deletion = spawn(lambda: engine.delete_topic(TOPIC))
        assert fs.waiting.acquire(timeout=kit.WAIT_S)
        refused = spawn(lambda: write(engine, "no", create=False))
        again = spawn(lambda: engine.delete_topic(TOPIC))
        assert outcome(refused, 0.2) == "waiting"
        fs.gate.set()
        assert deletion.result(kit.WAIT_S) is True
        assert isinstance(outcome(refused, kit.WAIT_S), TopicNotFound)
        assert again.result(kit.WAIT_S) is False
        answer = write(engine, "new")
        assert (answer.created, answer.seqs) == (True, [1])
        assert kit.everything(engine).values == ["new"]


def test_whoever_waits_for_a_write_that_fails_is_not_told_that_it_succeeded(tmp_path: Path) -> None:
    """[IDM-3, IDM-4]: the same key, while the first attempt's sync is on its way and then fails."""
    faults = FaultFs(OsFs())
    fs = kit.GatedFs(faults)
    with kit.open_real(tmp_path / "store", fs) as engine:
        engine.put_topic(TOPIC, {"durability": "fsync"})
        fs.gate.clear()
        first = spawn(lambda: write(engine, "x", idempotency_key="k"))
        assert fs.waiting.acquire(timeout=kit.WAIT_S)
        repeats = [spawn(lambda: write(engine, "x", idempotency_key="k")) for _ in range(3)]
        assert outcome(repeats[0], 0.2) == "waiting"
        faults.inject(Fault("fdatasync", 1, "EIO", "always", path="wal-"))
        fs.gate.set()
        assert isinstance(outcome(first, kit.WAIT_S), CommitFailed)
        for repeat in repeats:
            assert isinstance(outcome(repeat, kit.WAIT_S), (CommitFailed, ShardReadOnly))
        assert kit.everything(engine).values == []


def test_all_operations_may_run_at_once(engine: Any) -> None:
    """[S-350, A-1]: writers, readers, deleters, configuration, checkpoints and snapshots on one engine."""
    stop = threading.Event()

    def reader() -> int:
        cursor, got = 0, 0
        while not stop.is_set() or cursor < engine.state(TOPIC).head_seq:
            result = engine.read(TOPIC, cursor, limit=50)
            kit.check_page(result, cursor)
            assert result.tombstone is None
            cursor, got = result.next_from_seq, got + len(result.records)
        return got

    def deleter() -> int:
        gone = 0
        for _ in range(20):
            gone += engine.delete(TOPIC, match="drop").deleted
        return gone

    def keeper() -> None:
        for n in range(6):
            engine.checkpoint(full=bool(n % 2))
            engine.put_topic(TOPIC, {"durability": "fsync", "priority": n})
            engine.snapshot()

    def writer(who: int) -> None:
        for n in range(60):
            engine.append(TOPIC, [new([who, n], tag="drop" if n % 3 == 0 else "keep")])

    readers = [spawn(reader) for _ in range(2)]
    others = [spawn(deleter), spawn(keeper)]
    finish([spawn(partial(writer, who)) for who in range(4)])
    for future in others:
        future.result(kit.WAIT_S * 2)
    stop.set()
    finish(readers)
    engine.delete(TOPIC, match="drop")
    seen = kit.everything(engine, limit=1000)
    assert seen.ranges == []
    assert sorted(seen.values) == [[who, n] for who in range(4) for n in range(60) if n % 3]
    assert kit.numbers(engine)[:1] == (240,)
    assert kit.numbers(engine).count == 160
