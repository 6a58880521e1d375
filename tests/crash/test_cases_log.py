"""C11, C17, C19, C41: failed syncs, large writes among small ones, keys of lost records, checkpoints of an idle log."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.crash.kit_engine import (
    DIR,
    TINY,
    Seen,
    Store,
    appended_seqs,
    at_every_disk_call,
    is_prefix,
    is_right,
    is_told,
    is_whole,
    read_all,
    start_again,
)
from topics.engine.config import EngineConfig
from topics.engine.engine import Engine
from topics.errors import TopicsError, WalCorrupt
from topics.model import AppendResult
from topics.paths import SegmentKind
from topics.testing import ManualClock, SimFs
from topics.testing.simfs import SYNC_MODES, SyncMode


@pytest.mark.parametrize("mode", SYNC_MODES)
@pytest.mark.parametrize("records", [1, 60])
def test_c11_a_failed_sync_and_a_later_power_loss_take_no_acknowledged_fsync_write(
    records: int, mode: SyncMode
) -> None:
    """C11, S-78, S-88, R-1: the next start writes the tail again, so pages marked clean do not stay behind."""
    store = Store().start()
    store.put("f")
    store.put("d", "disk")
    store.write("f", 5)
    store.write("d", 20)
    store.latch(mode=mode)
    with pytest.raises(TopicsError):
        for _ in range(3):
            store.write("f")
    start_again(store.kill())
    is_whole(store, "f")
    store.write("f", records, size=200)
    store.write("d", 5)
    started = 0
    for fork in store.crashes():
        try:
            fork.start()
        except WalCorrupt:
            continue  # a loud refusal
        started += 1
        is_whole(fork, "f")
        is_told(fork, "d")
        fork.write("f", 3)
        fork.kill().start()
        is_whole(fork, "f")
    assert started, "no image started at all"


@pytest.mark.parametrize("mode", ["clean", "partial"])
def test_c11_failed_syncs_in_several_lives_add_up_to_no_loss(mode: SyncMode) -> None:
    """C11, S-78, S-245: latched, killed, started, latched again; then the power goes."""
    store = Store().start()
    store.put("f")
    store.put("d", "disk")
    for _ in range(3):
        store.write("f", 5)
        store.write("d", 20)
        store.latch(mode=mode)
        with pytest.raises(TopicsError):
            store.write("f")
        store.kill().start()
        is_whole(store, "f")
        is_told(store, "d")
    store.write("f", 5)
    for fork in store.crashes():
        fork.start()
        is_whole(fork, "f")
        is_told(fork, "d")


class Real:
    """An engine with its own threads, on a simulated disk."""

    def __init__(self, **config: object) -> None:
        self.sim = SimFs(7)
        self.config = EngineConfig(**{**TINY, **config})
        self.engine = Engine.open(DIR, self.config, fs=self.sim)
        self.acked: dict[str, dict[int, str]] = {}
        self._lock = threading.Lock()

    def note(self, topic: str, result: AppendResult, texts: list[str]) -> None:
        assert result.seqs is not None
        with self._lock:
            mine = self.acked.setdefault(topic, {})
            assert not set(result.seqs) & set(mine)
            mine.update(zip(result.seqs, texts, strict=True))

    def judge(self) -> None:
        """Take the disk of a kill, end the engine, and look."""
        image = self.sim.kill_image()
        self.engine.close()
        for seqs in appended_seqs(image).values():
            assert seqs == sorted(seqs), "WAL order is not seq order"
            assert len(seqs) == len(set(seqs))
        found = Engine.open(DIR, self.config, clock=ManualClock(), fs=image)
        for topic, mine in self.acked.items():
            seen: Seen = read_all(found, topic, limit=1000)
            assert {seq: record.data for seq, record in seen.records.items()} == mine
            assert seen.gaps == []
            assert seen.seqs == list(range(1, len(mine) + 1))


def texts(topic: str, writer: int, n: int, count: int) -> list[str]:
    return [f"{topic}/{writer}/{n}/{k}" for k in range(count)]


@pytest.mark.parametrize("file_bytes", [65536, 1 << 22])
@pytest.mark.parametrize("durability", ["fsync", "disk"])
def test_c17_a_large_write_among_small_ones_is_logged_in_seq_order(durability: str, file_bytes: int) -> None:
    """C17, A-1, S-72, S-105: threads write 10 000 records at once and one by one; all are back after a kill."""
    real = Real(wal_file_bytes=file_bytes)
    for topic in ("t", "u"):
        real.engine.put_topic(topic, {"durability": durability})

    def write(topic: str, writer: int, count: int, times: int) -> None:
        for n in range(times):
            mine = texts(topic, writer, n, count)
            real.note(topic, real.engine.append(topic, [{"data": text} for text in mine]), mine)

    jobs: list[tuple[str, int, int, int]] = [
        ("t", 0, 10_000, 1),
        ("t", 1, 1, 60),
        ("t", 2, 3, 40),
        ("u", 3, 1, 60),
        ("u", 4, 10_000, 1),
    ]
    with ThreadPoolExecutor(len(jobs)) as pool:
        for done in [pool.submit(write, *job) for job in jobs]:
            done.result(120)
    real.judge()


@pytest.mark.parametrize("durability", ["fsync", "disk"])
def test_c17_on_an_event_loop_a_large_write_is_not_overtaken(durability: str) -> None:
    """C17, A-1: framing in slices gives the loop to others; later writes of the topic wait behind it."""
    real = Real()

    async def write(topic: str, writer: int, count: int, times: int) -> None:
        for n in range(times):
            mine = texts(topic, writer, n, count)
            real.note(topic, await real.engine.aio.append(topic, [{"data": text} for text in mine]), mine)

    async def main() -> None:
        for topic in ("t", "u"):
            await real.engine.aio.put_topic(topic, {"durability": durability})
        jobs = [("t", 0, 10_000, 1), ("t", 1, 1, 40), ("u", 2, 1, 40), ("t", 3, 10_000, 1), ("t", 4, 5, 20)]
        await asyncio.gather(*(write(*job) for job in jobs))

    asyncio.run(main())
    real.judge()


def test_c17_a_large_write_is_all_or_nothing_at_every_disk_call() -> None:
    """C17, S-241, INV-2: a submission of many frames over a small file, killed or crashed anywhere in it."""
    store = Store().start()
    store.put("t")
    store.put("u")
    store.write("t", 3)

    def judge(fork: Store) -> None:
        fork.start()
        seen = is_whole(fork, "t")
        assert len(seen.records) in (3, 3 + 2000), f"{fork.label}: {len(seen.records)} records"
        is_whole(fork, "u")

    with at_every_disk_call(store, judge, crashes=3):
        store.write("u")
        store.write("t", 2000, batch=2000)
    assert is_whole(store, "t").head == 2003


Retry = Callable[[Store], AppendResult]


def keyed(topic: str, n: int) -> Retry:
    return lambda store: store.engine.append(topic, [{"data": f"k{n}"}] * (1 + n % 3), idempotency_key=f"key-{n}")


def produced(topic: str, n: int) -> Retry:
    producer = {"id": "p", "epoch": 1, "index": n}
    return lambda store: store.engine.append(topic, [{"data": f"p{n}"}] * (1 + n % 2), producer=producer)


@pytest.mark.parametrize("durability", ["disk", "fsync", "memory"])
@pytest.mark.parametrize("snapshot", ["snapshot", "full", "none"])
@pytest.mark.parametrize("make", [keyed, produced])
def test_c19_a_retry_is_deduped_exactly_if_its_record_is_there(
    make: Callable[[str, int], Retry], snapshot: str, durability: str
) -> None:
    """C19, IDM-6, A-3, A-4, S-219: no crash makes a key outlive its records or the records outlive their key."""
    store = Store().start()
    store.put("t", durability)
    writes: list[tuple[Retry, AppendResult]] = []
    for n in range(30):
        retry = make("t", n)
        writes.append((retry, retry(store)))
        if n == 10:
            store.sync()
        if n == 20 and snapshot == "snapshot":
            store.engine.snapshot()
        if n == 20 and snapshot == "full":
            store.engine.checkpoint(full=True)
    for fork in store.ends():
        fork.start()
        before = fork.look("t")
        for n, (retry, first) in enumerate(writes):
            assert first.seqs is not None
            there = set(first.seqs) <= set(before.records)
            assert there or not set(first.seqs) & set(before.records), f"{fork.label}: write {n} is there in part"
            again = retry(fork)
            assert again.deduped == there, f"{fork.label}: write {n} is there: {there}, answer {again}"
            if not there:
                assert again.seqs is not None
                assert again.first_seq is not None
                assert again.first_seq > before.head, f"{fork.label}: an acknowledged seq was given out again"
            elif make is keyed:
                assert again.seqs == first.seqs, fork.label
        after = fork.look("t")
        for retry, _ in writes:
            assert retry(fork).deduped, fork.label
        assert fork.look("t") == after
        if durability == "fsync" or fork.label == "kill":
            assert after == before, f"{fork.label}: nothing acknowledged was lost, so nothing is appended"


@pytest.mark.parametrize("make", [keyed, produced])
def test_c19_a_key_survives_trim_and_further_crashes(make: Callable[[str, int], Retry]) -> None:
    """C19, S-219: keys of records that moved to segments come from the snapshot."""
    store = Store().start()
    store.put("t", "disk")
    firsts = [make("t", n)(store) for n in range(6)]
    store.trim()
    store.crash().start()
    lost = make("t", 6)(store)
    store.trim()
    store.kill().start()
    again = [make("t", n)(store) for n in range(7)]
    assert all(result.deduped for result in again)
    assert again[6].seqs == lost.seqs
    if make is keyed:
        assert [result.seqs for result in again[:6]] == [result.seqs for result in firsts]


@pytest.mark.parametrize("durability", ["disk", "memory"])
@pytest.mark.parametrize("make", [keyed, produced])
def test_c19_a_snapshot_beside_a_latched_shard_keeps_no_key_of_a_lost_record(
    make: Callable[[str, int], Retry], durability: str
) -> None:
    """C19, S-219: keys are as of `ck`; records above it were never synced, and the snapshot is."""
    store = Store(wal_shards=4).start()
    topics = [f"t{n}" for n in range(8)]
    for topic in topics:
        store.put(topic, durability)
    writes: list[tuple[str, Retry, AppendResult]] = []
    refused = 0
    for n in range(12):
        for topic in topics:
            retry = make(topic, n)
            try:
                writes.append((topic, retry, retry(store)))
            except TopicsError:
                refused += 1
        if n == 5:
            store.latch("shard-01")
            store.sync()
    assert refused, "the history needs topics in the latched shard"
    assert "read_only" in store.engine.health().shards.values()
    for _ in range(2):
        with pytest.raises(TopicsError, match="takes no marks"):  # it says what it left out
            store.engine.checkpoint(full=True)
    for fork in store.ends():
        fork.start()
        before = {topic: fork.look(topic) for topic in topics}
        for topic, retry, first in writes:
            assert first.seqs is not None
            there = set(first.seqs) <= set(before[topic].records)
            assert retry(fork).deduped == there, f"{fork.label}: {topic} {first.seqs} is there: {there}"


@pytest.mark.parametrize("kinds", [("data",), ("data", "idx")], ids="-".join)
@pytest.mark.parametrize("which", [0, 1])
def test_c19_a_key_of_a_record_known_to_be_damaged_is_forgotten(which: int, kinds: tuple[SegmentKind, ...]) -> None:
    """C19, S-219, S-250: an entry with a seq inside a gap of reason 2 is dropped, so the retry appends."""
    store = Store(segment_max_events=10).start()
    store.put("t")
    writes = [(keyed("t", n), keyed("t", n)(store)) for n in range(20)]
    store.trim()
    lost = store.segments("t")[which]
    store.kill()
    for kind in kinds:
        store.sim.lose_file(lost.path(kind))
    store.start()
    before = store.look("t")
    assert before.gaps == [(lost.first, lost.last, "corrupt")]
    for retry, first in writes:
        assert first.seqs is not None
        there = set(first.seqs) <= set(before.records)
        again = retry(store)
        assert again.deduped == there, f"{first.seqs} is there: {there}, answer {again}"


@pytest.mark.parametrize("full", [False, True])
@pytest.mark.parametrize("shards", [1, 4])
@pytest.mark.parametrize("records", [0, 3, 300])
def test_c41_two_checkpoints_of_an_idle_log_and_two_kills_start(records: int, shards: int, full: bool) -> None:
    """C41, S-21, S-44, S-64: files that hold nothing but marks, prepared files, and `CURRENT` agree."""
    store = Store(wal_shards=shards).start()
    store.put("f")
    store.put("d", "disk")
    store.write("f", records, batch=10)
    store.write("d", records, batch=10)
    for _ in range(2):
        store.engine.checkpoint(full=full)
    for _ in range(2):
        store.kill().start()
        is_whole(store, "f")
        is_whole(store, "d")
    for _ in range(2):
        store.engine.checkpoint(full=full)
    for fork in store.ends():
        fork.start()
        is_whole(fork, "f")
        is_prefix(fork, "d", durable=records)
        fork.crash("random", 3).start()
        is_whole(fork, "f")
        is_right(fork, "d", fork.look("d"))
        assert fork.write("f") == [records + 1]


def test_c41_a_store_without_any_topic_survives_checkpoints_and_kills() -> None:
    """C41, S-20: an engine that writes nothing makes no file; one that only checkpoints starts again all the same."""
    store = Store().start()
    for _ in range(2):
        store.engine.checkpoint(full=True)
        store.engine.snapshot()
        store.tick(70_000)
    for how in ("kill", "kill", "crash", "stop", "kill"):
        store.end(how).start()
        store.engine.checkpoint(full=True)
    store.put("f")
    store.write("f", 3)
    is_whole(store.kill().start(), "f")
