"""C1 to C7: `disk` topics through kills, failed syncs and machine crashes, and what is told of the reservation."""

from __future__ import annotations

from typing import Any

import pytest

from tests.crash.kit_engine import (
    CRASHES,
    GapRange,
    Store,
    at_every_disk_call,
    is_prefix,
    is_right,
    is_told,
    is_whole,
    look,
    same_after_restarts,
)
from topics.errors import ShardReadOnly
from topics.testing.simfs import Style, SyncMode

RESERVE = 64
SIZES: list[dict[str, Any]] = [
    {"reserve_min": RESERVE, "reserve_max": RESERVE},
    {"reserve_min": 5000, "reserve_max": 5000},
]
"""Reservations that leave a short run (entries of a segment) and a long one (a gap segment) [S-129]."""
SIZE_NAMES = ["short-run", "long-run"]


def with_crash_run(records: int = 100, **config: Any) -> tuple[Store, GapRange]:
    """A running store whose `disk` topic lost its unsynced tail with the machine, and the run told for it."""
    store = Store(**config).start()
    store.put("t", "disk")
    store.write("t", records)
    store.crash("nothing").start()
    seen = is_told(store, "t")
    assert len(seen.gaps) == 1, "the history needs a run"
    return store, seen.gaps[0]


@pytest.mark.parametrize("reserve", [{}, {"reserve_min": 256, "reserve_max": 2**20}], ids=["small", "default"])
@pytest.mark.parametrize("quiet_ms", [0, 6000])
@pytest.mark.parametrize("shards", [1, 4])
@pytest.mark.parametrize("batch", [1, 7, 300])
def test_c01_three_kills_lose_no_disk_record_and_skip_no_seq(
    batch: int, shards: int, quiet_ms: int, reserve: dict[str, Any]
) -> None:
    """C1, DUR-4, A-16: 900 records, seqs 1 to 900, no jump, no gap; also with checkpoints between the kills."""
    store = Store(wal_shards=shards, **reserve).start()
    store.put("t", "disk")
    for life in range(1, 4):
        store.write("t", 300, batch=batch)
        store.tick(quiet_ms)
        store.kill().start()
        assert is_whole(store, "t").seqs == list(range(1, 300 * life + 1))
    assert store.write("t") == [901]


@pytest.mark.parametrize("mode", ["clean", "reverted", "partial"])
@pytest.mark.parametrize("writes", [0, 1])
def test_c02_what_a_failed_sync_made_us_tell_stays_told(writes: int, mode: SyncMode) -> None:
    """C2, S-78, S-245: after a latched shard the reservation counts, once; later kills change nothing."""
    store = Store().start()
    store.put("t", "disk")
    store.write("t", 300)
    store.latch(mode=mode)
    store.sync()
    with pytest.raises(ShardReadOnly):
        store.write("t")
    store.kill().start()
    first = is_told(store, "t")
    assert first.gaps, "the open reservation of a run with a failed sync is told"
    assert store.write("t", writes) == list(range(first.head + 1, first.head + 1 + writes))
    for _ in range(2):
        store.kill().start()
        again = is_told(store, "t")
        assert again.gaps == first.gaps
        assert again.head == first.head + writes
    assert store.write("t") == [first.head + writes + 1]


@pytest.mark.parametrize("mode", ["clean", "reverted"])
def test_c02_a_start_after_a_failed_sync_can_be_interrupted_at_every_disk_call(mode: SyncMode) -> None:
    """C2, S-11, S-230, S-245: the line in the lock file outlives every such start until what it told of is logged."""
    store = Store(wal_shards=2).start()
    store.put("t", "disk")
    store.put("u", "disk")
    store.write("t", 100)
    store.write("u", 100)
    store.latch(mode=mode)
    store.sync()
    assert "read_only" in store.engine.health().shards.values()
    store.kill()
    whole = {topic: look(store.killed().start().engine, topic) for topic in ("t", "u")}
    assert whole["t"].gaps or whole["u"].gaps

    def judge(fork: Store) -> None:
        fork.start()
        for topic in ("t", "u"):
            seen = is_told(fork, topic)
            if fork.label.startswith("kill"):
                assert (seen.gaps, seen.head) == (whole[topic].gaps, whole[topic].head), fork.label

    with at_every_disk_call(store, judge):
        store.start()
    for topic in ("t", "u"):
        assert store.look(topic) == whole[topic]


@pytest.mark.parametrize("durability", ["fsync", "memory", "ephemeral", "disk"])
@pytest.mark.parametrize("end", ["kill", "crash", "stop"])
def test_c03_a_class_change_leaves_head_and_crash_run_as_they_are(end: str, durability: str) -> None:
    """C3, S-245 (a class change voids nothing), CFG-10."""
    store, run = with_crash_run()
    before = store.look("t")
    store.put("t", durability, ttl_ms=10**9)
    store.end(end).start()
    after = store.look("t")
    assert after.head == before.head
    assert after.gaps == [run]
    assert after.records == before.records
    assert store.write("t") == [before.head + 1]


@pytest.mark.parametrize("reserve", SIZES, ids=SIZE_NAMES)
@pytest.mark.parametrize("records", [0, 5])
def test_c04_a_crash_run_is_still_told_after_snapshot_and_trim(records: int, reserve: dict[str, Any]) -> None:
    """C4, S-124, S-129, S-245: the run lives on in the segments when the Gap frame is gone."""
    store, run = with_crash_run(**reserve)
    store.write("t", records)
    store.trim()
    before = is_told(store, "t")
    assert before.gaps == [run]
    store.rest()
    for fork in store.ends():
        fork.start()
        after = is_told(fork, "t")
        assert (after.gaps, after.head) == ([run], before.head), fork.label
        assert after.records == before.records
        assert fork.write("t") == [before.head + 1]
    same_after_restarts(store, "t")


def test_c05_only_the_open_reservation_of_the_last_run_is_told() -> None:
    """C5, S-88, S-245: what a kill left was synced by the next start; a later crash takes none of it."""
    store = Store().start()
    store.put("t", "disk")
    store.write("t", 300)
    store.kill().start()
    assert is_whole(store, "t").head == 300
    for fork in store.crashes():
        assert is_whole(fork.start(), "t").head == 300, "no reservation was open"
    store.write("t", 100)
    for fork in store.crashes():
        seen = is_prefix(fork.start(), "t", durable=300)
        assert len(seen.gaps) <= 1, fork.label
        assert all(first > 300 for first, _, _ in seen.gaps), fork.label
        assert seen.head <= 400 + 2 * RESERVE, f"{fork.label}: more is told than a run reserves"
        same_after_restarts(fork, "t")


@pytest.mark.parametrize("reserve", SIZES, ids=SIZE_NAMES)
def test_c06_two_machine_crashes_before_any_checkpoint_tell_both_runs(reserve: dict[str, Any]) -> None:
    """C6, S-245: a gap is logged before anything else, so the second crash finds it."""
    store, first = with_crash_run(**reserve)
    between = store.write("t", 50)
    assert between[0] == first[1] + 1
    store.sync()
    lost = store.write("t", 50)
    assert not any("/seg-" in path for path in store.sim.files()), "a checkpoint came in between"
    for fork in store.crashes():
        seen = is_told(fork.start(), "t")
        assert seen.gaps[0] == first, fork.label
        assert len(seen.gaps) <= 2, fork.label
        assert set(between) <= set(seen.records), f"{fork.label}: synced records between the runs"
        if fork.label.startswith("crash nothing"):
            assert len(seen.gaps) == 2
            assert seen.gaps[1][1] >= lost[-1]
        same_after_restarts(fork, "t")


@pytest.mark.parametrize("size", [3, 8, 40])
@pytest.mark.parametrize("between", [5, 30, 100])
def test_c06_runs_stay_apart_when_what_lay_between_them_was_deleted_and_dropped(between: int, size: int) -> None:
    """C6, FLR-5, S-125, S-274, TMB-3: holes stay told below `delete_below`, deleted seqs are never part of a run."""
    store = Store(segment_max_events=size, reserve_min=8, reserve_max=8).start()
    store.put("t", "disk")
    for count in (10, between, between):
        store.write("t", count)
        store.sync()
        store.write("t", 3)
        store.crash().start()
    before = is_told(store, "t")
    assert len(before.gaps) == 3
    last = store.write("t", 10)[4]
    store.engine.checkpoint(full=True)
    store.engine.delete("t", before_seq=last)
    store.deleted["t"] = set(range(1, last))
    for _ in range(3):
        seen = is_told(store, "t")
        assert seen.gaps == before.gaps
        assert seen.seqs[0] == last
        store.write("t")
        store.engine.checkpoint(full=True)
    store.rest()
    same_after_restarts(store, "t")


@pytest.mark.parametrize(("style", "seed"), [("nothing", 1), ("everything", 1), ("random", 2), ("random", 5)])
def test_c06_a_start_after_a_machine_crash_can_be_interrupted_at_every_disk_call(style: Style, seed: int) -> None:
    """C6, S-230, S-245, S-249: interrupted starts decide the same run, and none of them loses a survivor."""
    store = Store(wal_shards=2).start()
    for topic in ("t", "u"):
        store.put(topic, "disk")
    for _ in range(30):
        store.write("t", 3, batch=3)
        store.write("u")
    store.crash(style, seed)
    whole = {topic: look(store.crashed("everything").start().engine, topic) for topic in ("t", "u")}

    def judge(fork: Store) -> None:
        fork.start()
        for topic in ("t", "u"):
            assert is_prefix(fork, topic, durable=1) == whole[topic], fork.label

    with at_every_disk_call(store, judge, crashes=2):
        store.start()
    for topic in ("t", "u"):
        assert store.look(topic) == whole[topic]


@pytest.mark.parametrize("step_ms", [100, 1000])
@pytest.mark.parametrize("durability", ["disk", "memory", "fsync"])
def test_c07_an_idle_topic_gave_its_reservation_back(durability: str, step_ms: int) -> None:
    """C7, A-2: a minute after the last write a machine crash loses nothing, tells nothing and skips nothing."""
    store = Store().start()
    store.put("t", durability)
    store.write("t", 20)
    store.tick(60_000, step_ms)
    for fork in store.crashes():
        assert is_whole(fork.start(), "t").head == 20, fork.label
        assert fork.write("t") == [21]


def test_c07_a_reservation_given_back_does_not_excuse_later_writes() -> None:
    """C7, A-2, S-103: from the give-back on the topic has no ceiling; its next write reserves anew."""
    store = Store().start()
    store.put("t", "disk")
    store.write("t", 20)
    store.tick(60_000)
    store.write("t", 10)
    for fork in store.crashes():
        is_prefix(fork.start(), "t", durable=20)


def test_c07_giving_a_reservation_back_excuses_nothing_at_any_disk_call() -> None:
    """C7, A-2, S-103: a write after the give-back was staged is acknowledged under a ceiling of its own."""
    store = Store().start()
    store.put("t", "disk")
    store.put("f")
    store.write("t", 20)
    store.sync()
    store.tick(8000, 500)

    def judge(fork: Store) -> None:
        is_prefix(fork.start(), "t", durable=20)

    with at_every_disk_call(store, judge, crashes=3):
        for _ in range(2):
            for _ in range(8):
                store.clock.advance(500)
                store.engine.tick()
                if store.clock.now_ms() % 2000 == 0:
                    store.write("t")
            store.write("t", 2)
            store.write("f")
            for _ in range(23):
                store.clock.advance(500)
                store.engine.tick()
            store.write("t", 3)


@pytest.mark.parametrize(("style", "seed"), CRASHES)
def test_c05_c06_a_disk_topic_stays_a_told_prefix_through_many_lives(style: Any, seed: int) -> None:
    """C1, C5, C6, DUR-4: kills and machine crashes in turn; no seq twice, nothing silent, runs stay as first told."""
    store = Store().start()
    store.put("t", "disk")
    told: list[GapRange] = []
    for life in range(8):
        store.write("t", 5 + 17 * life % 60, batch=1 + life % 3)
        if life % 3 == 1:
            store.sync()
        if life % 4 == 2:
            store.engine.checkpoint(full=life % 8 == 2)
        if (life + seed) % 2:
            store.kill().start()
            assert store.look("t").gaps == told
        else:
            store.crash(style, seed + life).start()
        seen = store.look("t")
        is_right(store, "t", seen)
        assert seen.gaps[: len(told)] == told, "a run changed"
        told = seen.gaps
        assert not set(store.live("t")) - set(seen.records) - seen.told(), "silent loss"
