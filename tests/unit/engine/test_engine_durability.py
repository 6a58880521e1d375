"""The four classes, every way to stop, reservations, checkpoints, snapshots, shards (01 §4; 06 §7, §12-§14; 15)."""

from __future__ import annotations

import threading
from functools import partial
from typing import Any

import pytest

from tests.unit.engine import kit
from tests.unit.engine.kit import PATH, TOPIC, Store, numbers, write
from topics.engine import recover
from topics.engine.config import EngineConfig
from topics.engine.engine import Engine
from topics.errors import MetadataLost, WalCorrupt
from topics.model import new
from topics.testing import PowerLoss, SimFs
from topics.testing.simfs import STYLES

CLASSES = ("ephemeral", "memory", "disk", "fsync")


def filled(durability: str, count: int = 10, **options: Any) -> Store:
    """A topic of a class with `count` records, each written alone."""
    store = Store(**options)
    kit.each(store.put(durability=durability), count)
    return store


# What each class keeps (01 §4)


@pytest.mark.parametrize("durability", CLASSES)
def test_a_clean_stop_loses_nothing_but_ephemeral_records(durability: str) -> None:
    """01 §4, [DUR-7, S-352]: and the seqs go on."""
    store = filled(durability)
    engine = store.reopen()
    kept = [] if durability == "ephemeral" else list(range(1, 11))
    seen = kit.everything(engine)
    assert (seen.values, seen.ranges) == (kept, [])
    assert numbers(engine).head_seq == 10
    assert numbers(engine).count == len(kept)
    assert engine.state(TOPIC).config.durability == durability
    assert write(engine, "next").seqs == [11]


@pytest.mark.parametrize("durability", ["disk", "fsync"])
def test_a_killed_process_loses_no_acknowledged_record(durability: str) -> None:
    """01 §4, [DUR-4, A-16]: nothing is skipped and the head does not jump."""
    store = filled(durability)
    engine = store.kill()
    seen = kit.everything(engine)
    assert (seen.values, seen.ranges) == (list(range(1, 11)), [])
    assert numbers(engine) == (10, 1, 10, 11)
    assert write(engine, "next").seqs == [11]


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("seed", range(4))
def test_a_machine_crash_loses_no_acknowledged_fsync_record(style: Any, seed: int) -> None:
    """01 §4, [INV-4, R-1]"""
    store = filled("fsync")
    engine = store.crash(style, seed)
    seen = kit.everything(engine)
    assert (seen.values, seen.ranges) == (list(range(1, 11)), [])
    assert write(engine, "next").seqs == [11]


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("seed", range(6))
def test_a_machine_crash_leaves_a_prefix_of_a_disk_topic_and_tells_the_rest(style: Any, seed: int) -> None:
    """[DUR-4, INV-1]: an acknowledged seq is not handed out again, what is missing is one run of reason `crash`."""
    store = filled("disk")
    engine = store.crash(style, seed)
    seen = kit.everything(engine)
    kept = len(seen.records)
    assert seen.values == list(range(1, kept + 1))
    head = numbers(engine).head_seq
    assert head >= 10
    assert seen.ranges == ([(kept + 1, head, "crash")] if kept < head else [])
    assert write(engine, "next").seqs == [head + 1]


@pytest.mark.parametrize("stop", ["killed", "crashed"])
@pytest.mark.parametrize("seed", range(4))
def test_a_memory_topic_invents_nothing_and_tells_nothing(stop: str, seed: int) -> None:
    """[DUR-5, DUR-6, DUR-8]"""
    store = filled("memory")
    engine = store.kill() if stop == "killed" else store.crash("random", seed)
    seen = kit.everything(engine)
    assert set(seen.values) <= set(range(1, 11))
    assert [record.data == record.seq for record in seen.records].count(False) == 0
    assert seen.ranges == []
    head = numbers(engine).head_seq
    assert head <= 10
    assert write(engine, "next").seqs == [head + 1]


@pytest.mark.parametrize("stop", ["killed", "crashed"])
def test_an_ephemeral_topic_is_empty_after_a_restart_and_its_head_no_lower_than_at_the_checkpoint(stop: str) -> None:
    """[DUR-7, DUR-8]"""
    store = filled("ephemeral", 5)
    store.engine.checkpoint(full=True)
    kit.each(store.engine, 3, start=6)
    engine = store.stop(stop)
    head = numbers(engine).head_seq
    assert 5 <= head <= 8
    assert numbers(engine) == (head, head + 1, 0, 0)
    result = engine.read(TOPIC, head)
    assert (result.tombstone, result.caught_up) == (None, True)
    assert kit.gap(engine.read(TOPIC, 9)) == (1, head, "recreated")


def test_a_clean_stop_keeps_the_head_of_an_ephemeral_topic_in_a_run_that_logged_nothing_else() -> None:
    """[DUR-7]: also when it was the only thing that changed, several runs in a row."""
    store = Store()
    store.put(durability="ephemeral")
    for run in range(1, 4):
        engine = store.reopen()
        assert write(engine, "x").seqs == [run]
    assert numbers(store.reopen()) == (3, 4, 0, 0)


def test_ephemeral_records_never_reach_the_disk() -> None:
    """[S-102]"""
    store = Store()
    engine = store.put(durability="ephemeral")
    write(engine, "a-very-special-payload", tag="a-very-special-tag")
    engine.checkpoint(full=True)
    engine.snapshot()
    engine.close()
    for path, content in store.sim.files().items():
        assert b"a-very-special" not in content, path


@pytest.mark.parametrize("durability", CLASSES)
def test_caps_expiry_and_deletes_work_alike_in_all_classes(durability: str) -> None:
    """[DUR-14, S-101]"""
    store = Store()
    engine = store.put(durability=durability, cap_records=4, ttl_ms=100)
    kit.each(engine, 6, tag="x")
    engine.delete(TOPIC, seqs=[4])
    assert numbers(engine) == (6, 3, 3, 3)
    assert kit.gap(engine.read(TOPIC)) == (1, 2, "cap")
    store.clock.advance(101)
    write(engine, 7)
    assert numbers(engine) == (7, 7, 1, 1)


# How much syncing a class costs


def test_a_write_of_class_fsync_waits_for_a_sync_and_the_others_do_not() -> None:
    """01 §4, [DUR-3]: the first `disk` write of a run reserves its seqs with a sync, later ones ride on nothing."""
    for durability, least, most in [("ephemeral", 0, 0), ("memory", 0, 0), ("disk", 0, 0), ("fsync", 10, 10)]:
        store = filled(durability, 1, reserve_min=256)
        before = kit.metric(store.engine, "topics_wal_fsyncs_total")
        kit.each(store.engine, 10)
        assert least <= kit.metric(store.engine, "topics_wal_fsyncs_total") - before <= most, durability


def test_reserving_does_not_cost_a_sync_per_write() -> None:
    """[A-2]: a new reservation is asked for when half of the last one is used, and rides on a sync."""
    store = Store("active", reserve_min=256)
    engine = store.put(durability="disk")
    before = kit.metric(engine, "topics_wal_fsyncs_total")
    for n in range(2000):
        write(engine, n)
        if n % 20 == 0:
            store.clock.advance(1)
            engine.tick()
    assert kit.metric(engine, "topics_wal_fsyncs_total") - before <= 60
    head = numbers(store.crash()).head_seq
    assert 2000 <= head <= 2000 + 2**20


def test_a_reservation_is_bounded() -> None:
    """[A-2]: about 2 s at the rate of the topic, at least `reserve_min`."""
    store = Store(reserve_min=32)
    engine = store.put(durability="disk")
    for n in range(10):
        write(engine, n)
        store.pass_time(500)
    head = numbers(store.crash()).head_seq
    assert 10 <= head <= 10 + 32


def test_a_write_larger_than_the_reservation_is_acknowledged_safely() -> None:
    """[S-103]: it carries a ceiling of its own."""
    store = Store(reserve_min=16)
    engine = store.put(durability="disk")
    engine.append(TOPIC, [new(n) for n in range(1, 1001)])
    head = numbers(store.crash()).head_seq
    assert head >= 1000


# Named histories (15)


@pytest.mark.parametrize("durability", ["disk", "fsync"])
def test_three_kills_lose_none_of_nine_hundred_records(durability: str) -> None:
    """C1 [A-16]: write 300, kill, start; three times."""
    store = Store(reserve_min=256)
    store.put(durability=durability)
    for round in range(3):
        kit.each(store.engine, 300, start=300 * round + 1)
        store.kill()
    seen = kit.everything(store.engine, limit=1000)
    assert (seen.values, seen.ranges) == (list(range(1, 901)), [])
    assert seen.seqs == list(range(1, 901))
    assert numbers(store.engine).head_seq == 900


@pytest.mark.parametrize("write_between", [False, True])
def test_a_sync_failure_on_a_disk_topic_is_told_once_and_for_all(write_between: bool) -> None:
    """C2: write 300, the sync fails, restart, (write,) kill, restart."""
    store = Store(reserve_min=256)
    engine = store.put(durability="disk")
    kit.each(engine, 300)
    acked = 300
    store.fail_log_sync(mode="clean", times="always")
    store.pass_time(3000)
    assert not engine.health().ready
    store.mend()
    engine = store.kill()
    first = kit.everything(engine, limit=1000)
    head = numbers(engine).head_seq
    assert head >= acked
    assert first.values == list(range(1, len(first.records) + 1))
    if write_between:
        assert write(engine, "between").seqs == [head + 1]
        head += 1
    for _ in range(2):
        engine = store.kill()
        again = kit.everything(engine, limit=1000)
        assert again.ranges == first.ranges
        assert again.values == first.values + (["between"] if write_between else [])
        assert numbers(engine).head_seq == head


@pytest.mark.parametrize("durability", ["fsync", "memory"])
def test_a_run_stays_told_through_a_class_change_and_a_kill(durability: str) -> None:
    """C3"""
    store = Store()
    run = kit.lose_tail(store)
    store.engine.put_topic(TOPIC, {"durability": durability})
    head = numbers(store.engine).head_seq
    engine = store.kill()
    assert kit.everything(engine).ranges == [(*run, "crash")]
    assert numbers(engine).head_seq == head == run[1]


@pytest.mark.parametrize("reserve", [56, 3000])
def test_a_run_stays_told_when_a_snapshot_passes_and_the_log_is_trimmed(reserve: int) -> None:
    """C4 [S-129]: a short run becomes entries, a long one a segment of its own."""
    store = Store(reserve_min=reserve)
    run = kit.lose_tail(store)
    kit.each(store.engine, 4, start=run[1] + 1)
    store.trim()
    for stop in ("killed", "reopened", "killed"):
        engine = store.stop(stop)
        seen = kit.everything(engine)
        assert seen.ranges == [(*run, "crash")]
        assert seen.seqs == [1, *range(run[1] + 1, run[1] + 5)]


def test_only_the_open_reservation_of_the_last_run_is_told() -> None:
    """C5: write, kill, go on, then a machine crash; what the first kill left is whole."""
    store = filled("disk", 5)
    store.kill()
    kit.each(store.engine, 2, start=6)
    store.pass_time(100, 20)
    kit.each(store.engine, 2, start=8)
    engine = store.crash()
    seen = kit.everything(engine)
    assert seen.values == [1, 2, 3, 4, 5, 6, 7]
    assert seen.ranges == [(8, numbers(engine).head_seq, "crash")]


def test_an_idle_disk_topic_loses_and_skips_nothing_with_the_machine() -> None:
    """C7 [A-2]: its reservation was given back."""
    store = filled("disk", 5)
    store.pass_time(60_000)
    engine = store.crash()
    seen = kit.everything(engine)
    assert (seen.values, seen.ranges) == ([1, 2, 3, 4, 5], [])
    assert write(engine, 6).seqs == [6]


def test_a_topic_that_gave_its_reservation_back_reserves_anew() -> None:
    """[A-2]: acknowledged seqs are safe after the idle time too."""
    store = filled("disk", 5)
    store.pass_time(60_000)
    kit.each(store.engine, 3, start=6)
    engine = store.crash()
    assert numbers(engine).head_seq >= 8
    assert (write(engine, "next").first_seq or 0) > 8


def test_a_changed_number_of_shards_keeps_every_record() -> None:
    """C8 [S-70, S-211]: 8 → 3 → 8 with kills and snapshots in each layout."""
    store = Store(wal_shards=8)
    names = [f"topic-{n}" for n in range(6)]
    for name in names:
        store.put(name)
    for round, shards in enumerate([8, 3, 8, 1, 2]):
        store.options["wal_shards"] = shards
        store.kill()
        for name in names:
            write(store.engine, round, name=name)
        if round % 2:
            store.engine.checkpoint(full=True)
            store.engine.snapshot()
            for name in names:
                write(store.engine, f"{round}b", name=name)
    engine = store.crash()
    for name in names:
        seen = kit.everything(engine, name)
        assert (seen.values, seen.ranges) == ([0, 1, "1b", 2, 3, "3b", 4], [])


def test_a_deleted_topics_frames_do_not_disturb_its_successor() -> None:
    """C10: snapshot in between, recreate the name, kill."""
    store = Store()
    engine = store.put()
    kit.each(engine, 5)
    engine.delete_topic(TOPIC)
    engine.snapshot()
    store.put()
    write(engine, "new")
    assert kit.everything(store.kill()).values == ["new"]
    assert kit.everything(store.crash()).values == ["new"]


def test_two_checkpoints_of_an_idle_engine_and_two_kills() -> None:
    """C41"""
    store = filled("fsync", 3)
    store.engine.checkpoint(full=True)
    store.engine.checkpoint(full=True)
    store.kill()
    assert kit.everything(store.kill()).values == [1, 2, 3]


@pytest.mark.parametrize("mode", ["before", "middle", "after"])
def test_an_acknowledged_write_survives_power_loss_at_every_disk_call(mode: Any) -> None:
    """[R-1, INV-2, INV-4, S-362]: through writes, deletes, a config change, checkpoints, a snapshot and a close."""

    def workload(store: Store) -> None:
        store.open()
        engine = store.put(cap_records=6)
        for n in range(1, 9):
            engine.append(TOPIC, [new([n, 1], tag=f"t{n % 3}"), new([n, 2])])
            acked.append(n)
            if n == 3:
                engine.delete(TOPIC, match="t1")
                deletes.append("t1")
            if n == 4:
                engine.checkpoint(full=True)
            if n == 5:
                store.put(cap_records=20)
            if n == 6:
                engine.snapshot()
        engine.close()

    acked: list[int] = []
    deletes: list[str] = []
    dry = Store(opened=False)
    workload(dry)
    calls = dry.sim.disk_calls
    assert acked == list(range(1, 9))
    for call in range(1, calls + 1):
        acked.clear()
        deletes.clear()
        store = Store(opened=False)
        store.sim.crash_at(call, mode)
        with pytest.raises(PowerLoss):
            workload(store)
        was = list(acked)
        engine = store.crash("random", call)
        if TOPIC not in set(engine.topics()):
            assert was == []
            continue
        seen = kit.everything(engine)
        assert [told for told in seen.ranges if told[2] != "cap"] == [], call
        got = seen.values
        writes = [n for n, part in got if part == 2]
        # Whole writes, in order, nothing acknowledged missing at the end and at most one more.
        assert writes == sorted(writes)
        if was:
            assert writes[-1] in (was[-1], was[-1] + 1), call
        for n, part in got:
            assert part == 2 or n in writes
            assert not (deletes and part == 1 and n in (1,)), call
        floor = min((record.seq for record in seen.records), default=1)
        head = numbers(engine).head_seq
        missing = set(range(floor, head + 1)) - set(seen.seqs)
        assert missing <= {1}, call
        assert kit.snapshot_of(store.kill()) == kit.snapshot_of(engine)


@pytest.mark.parametrize("durability", ["disk", "fsync"])
@pytest.mark.parametrize("style", ["nothing", "random", "everything"])
def test_counts_agree_with_what_is_read_after_power_loss_in_a_checkpoint_of_deletes(
    durability: str, style: Any
) -> None:
    """[STA-1, S-157, S-174]: a delete that is witnessed anywhere on the disk is missing from the numbers as well."""
    for call in range(1, 200):
        store = Store(segment_max_events=2)
        engine = store.put(durability=durability)
        kit.tagged(engine, "x", "x", "x", "x", "x")
        engine = store.reopen()
        engine.delete(TOPIC, seqs=[2, 3, 5])
        store.sim.crash_at(store.sim.disk_calls + call, "before")
        try:
            engine.checkpoint(full=True)
        except PowerLoss:
            pass
        else:
            assert call > 10
            break
        engine = store.crash(style, call)
        seen = kit.everything(engine)
        assert set(seen.seqs) <= {1, 2, 3, 4, 5}
        assert seen.ranges == []
        assert durability == "disk" or seen.seqs == [1, 4]
        assert numbers(engine) == (5, min(seen.seqs), len(seen.seqs), len(seen.seqs)), call
        assert engine.delete(TOPIC, match="x").deleted == len(seen.seqs), call


# Checkpoints and snapshots


def test_a_full_checkpoint_brings_everything_into_segments() -> None:
    """[A-15], 06 §12"""
    store = Store(segment_max_events=4)
    engine = store.put("a")
    store.put("b", durability="disk")
    kit.each(engine, 9, name="a")
    kit.each(engine, 3, name="b")
    assert kit.metric(engine, "topics_tail_records") == 12
    result = engine.checkpoint(full=True)
    assert result.topics == 2
    assert result.sealed >= 2
    assert kit.metric(engine, "topics_tail_records") == 0
    assert kit.metric(engine, "topics_segments") >= 4
    assert numbers(engine, "a") == (9, 1, 9, 9)


def test_a_snapshot_is_a_file_of_its_number() -> None:
    """[S-213]"""
    store = filled("fsync", 3)
    first = store.engine.snapshot()
    assert f"meta/snapshot-{first:016d}.bin" in store.files()
    write(store.engine, 4)
    store.clock.advance(60_000)
    second = store.engine.snapshot()
    assert second > first
    assert f"meta/snapshot-{second:016d}.bin" in store.files()


def test_the_log_is_trimmed_and_two_snapshots_are_kept() -> None:
    """[S-89, S-213, R-4]: disk use stays bounded while an engine runs."""
    store = Store(wal_file_bytes=4096, segment_max_events=50)
    engine = store.put(cap_records=100)
    for round in range(12):
        for _ in range(50):
            write(engine, "x" * 100)
        store.pass_time(70_000, 5000)
        if round > 4:
            assert len(store.files(".log")) <= 12
            assert len([path for path in store.files() if path.startswith("meta/snapshot")]) <= 2
    assert len(kit.segment_files(store)) <= 8
    assert numbers(store.kill()) == (600, 501, 100, 10_200)


def test_a_busy_topic_is_checkpointed_by_the_clock_and_a_small_one_is_left_in_the_log() -> None:
    """06 §12: triggers and selection."""
    store = Store("active", checkpoint_records=8)
    engine = store.put("busy")
    store.put("small")
    kit.each(engine, 8, name="busy")
    kit.each(engine, 7, name="small")
    store.pass_time(4000)
    assert kit.metric(engine, "topics_tail_records") == 15
    store.pass_time(2000)
    assert kit.metric(engine, "topics_tail_records") == 7
    assert kit.everything(engine, "busy").values == list(range(1, 9))
    assert kit.everything(engine, "small").values == list(range(1, 8))


def test_a_small_topic_is_checkpointed_before_its_log_file_grows_old() -> None:
    """06 §12 selection (2): so that one quiet topic does not keep the log for ever."""
    store = Store(wal_file_bytes=8192, wal_retain_files=2, checkpoint_records=1000, checkpoint_bytes=1 << 30)
    engine = store.put("quiet")
    store.put("loud", cap_records=10)
    write(engine, "quiet", name="quiet")
    for _ in range(20):
        for _ in range(10):
            write(engine, "x" * 500, name="loud")
        store.pass_time(30_000, 5000)
    assert len(store.files(".log")) <= 10
    assert kit.everything(store.kill(), "quiet").values == ["quiet"]


@pytest.mark.parametrize("bound", [{"tail_records_max": 20}, {"tail_bytes_max": 2000}])
def test_the_tail_is_bounded_by_a_checkpoint(bound: dict[str, int]) -> None:
    """[S-153, A-10]: whatever the clock says."""
    store = Store(**bound)
    engine = store.put()
    for n in range(1, 201):
        write(engine, n)
        if n % 10 == 0:
            engine.tick()
            assert kit.metric(engine, "topics_tail_records") <= 60
    assert kit.everything(engine).values == list(range(1, 201))
    assert kit.everything(store.kill()).values == list(range(1, 201))


def test_an_idle_topic_is_sealed_after_its_time() -> None:
    """[S-127]: of any size, at most one checkpoint interval after `segment_max_age_ms`."""
    store = Store("active", segment_max_age_ms=60_000)
    write(store.put(), 1)
    store.pass_time(60_000 + 10_000, 1000)
    assert kit.metric(store.engine, "topics_tail_records") == 0
    idx = [path for path in store.files(".idx") if path.startswith("topics/")]
    assert len(idx) == 1
    assert store.sim.files()[f"{PATH}/{idx[0]}"][-20:-16] == b"TIX1"


def test_recovering_twice_shows_the_same() -> None:
    """[S-249, INV-13]"""
    store = Store()
    engine = store.put(cap_records=7)
    kit.each(engine, 5, tag="x")
    engine.checkpoint(full=True)
    kit.each(engine, 5, start=6)
    engine.delete(TOPIC, match="x", before_seq=5)
    before = kit.snapshot_of(engine)
    assert kit.snapshot_of(store.kill()) == before
    assert kit.snapshot_of(store.kill()) == before
    assert kit.snapshot_of(store.crash()) == before


@pytest.mark.parametrize("ending", [".idx", ".tag", "topic.json"])
def test_files_that_can_be_made_again_may_be_lost(ending: str) -> None:
    """[S-1, S-13, S-130, S-187]"""
    store = Store("sealed")
    engine = store.put()
    kit.each(engine, 9, tag="x")
    engine.checkpoint(full=True)
    # In a segment already, so that its frame carries the mark as well.
    engine.delete(TOPIC, seqs=[2])
    before = kit.snapshot_of(engine)
    engine.close()
    for path in store.files(ending):
        if path.startswith("topics/"):
            store.sim.lose_file(f"{PATH}/{path}")
    engine = store.open()
    assert kit.snapshot_of(engine) == before
    assert engine.delete(TOPIC, match="x").deleted == 8


def test_the_older_snapshot_is_enough_when_the_newer_is_damaged() -> None:
    """[S-215, R-4]"""
    store = filled("fsync", 5)
    engine = store.engine
    engine.snapshot()
    kit.each(engine, 5, start=6)
    engine.delete(TOPIC, seqs=[3])
    store.clock.advance(60_000)
    engine.checkpoint(full=True)
    newest = engine.snapshot()
    kit.each(engine, 2, start=11)
    before = kit.snapshot_of(engine)
    store.sim.flip_bit(f"{PATH}/meta/snapshot-{newest:016d}.bin", 40, 3)
    assert kit.snapshot_of(store.kill()) == before


def test_lost_metadata_is_a_refusal_to_start_that_changes_nothing() -> None:
    """[S-216]"""
    store = filled("fsync", 5)
    store.trim()
    store.engine.close()
    for path in store.files():
        if path.startswith("meta/snapshot"):
            store.sim.flip_bit(f"{PATH}/{path}", 40, 3)
    before = without_lock(store.sim)
    with pytest.raises(MetadataLost):
        store.open()
    assert without_lock(store.sim) == before
    with pytest.raises(MetadataLost):
        store.open()


def test_damage_in_the_synced_log_is_a_refusal_to_start_that_changes_nothing() -> None:
    """[S-65, R-3]: and names the file."""
    store = Store()
    engine = store.put()
    for n in range(1, 9):
        write(engine, f"payload-{n}")
    image = store.sim.kill_image()
    files = [path for path in store.files(".log") if b"payload-3" in image.files()[f"{PATH}/{path}"]]
    assert len(files) == 1
    kit.flip_in(store, files[0], b"payload-3")
    before = without_lock(store.sim)
    with pytest.raises(WalCorrupt) as caught:
        store.kill()
    assert files[0].rpartition("/")[2] in str(caught.value)
    assert without_lock(store.sim) == before


@pytest.mark.parametrize("durability", ["memory", "disk"])
@pytest.mark.parametrize(("first", "last"), [(4, 6), (7, 8)], ids=["sealed", "active"])
def test_a_segment_that_is_given_up_is_silent_in_a_memory_topic(first: int, last: int, durability: str) -> None:
    """[DUR-8, S-130, S-250]: no frame is left of it; every start says the same."""
    store = Store()
    kit.each(store.put(durability=durability), 8)
    store.engine.close()
    (data,) = [path for path in store.files(".data") if path.endswith(f"{first:04}.data")]
    store.sim.remove(f"{PATH}/{data}")
    left = [n for n in range(1, 9) if not first <= n <= last]
    for _ in range(3):
        engine = store.open()
        seen = kit.everything(engine)
        assert seen.seqs == left
        assert seen.ranges == ([] if durability == "memory" else [(first, last, "corrupt")])
        assert numbers(engine).count == len(left)
        engine.close()


def test_a_refused_start_does_not_write_a_missing_store_id() -> None:
    """[S-65], 06 §14 step 1: it is taken from a snapshot, and written once the log has its verdicts."""
    store = Store()
    engine = store.put()
    write(engine, "before")
    engine.snapshot()
    for n in range(1, 9):
        write(engine, f"payload-{n}")
    id = store.sim.files()[f"{PATH}/meta/STORE"]
    store.sim.remove(f"{PATH}/meta/STORE")
    damaged = Store(sim=store.sim.kill_image(), opened=False)
    damaged.engine = engine
    kit.flip_in(damaged, damaged.files(".log")[-1], b"payload-3")
    before = without_lock(damaged.sim)
    with pytest.raises(WalCorrupt):
        damaged.open()
    assert without_lock(damaged.sim) == before
    engine = store.kill()
    assert kit.everything(engine).values[-1] == "payload-8"
    assert store.sim.files()[f"{PATH}/meta/STORE"] == id


def without_lock(sim: SimFs) -> dict[str, bytes]:
    return {path: content for path, content in sim.files().items() if not path.endswith(".topics.lock")}


def test_assuming_a_crash_tells_the_open_reservation() -> None:
    """[S-245]: `assume_crash`"""
    store = filled("disk", 3)
    store._use(store.sim.kill_image(), trust=False)
    engine = store.open(assume_crash=True)
    head = numbers(engine).head_seq
    assert head > 3
    assert kit.everything(engine).ranges == [(4, head, "crash")]
    assert kit.everything(engine).values == [1, 2, 3]


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("machine", [False, True])
def test_threads_that_are_killed_at_work_lose_nothing_they_were_told(seed: int, machine: bool) -> None:
    """[INV-2, INV-4, SEQ-3], C17: large and small writes, deletes and background work, images taken in the midst."""
    sim = SimFs(seed)
    options: dict[str, Any] = {"wal_file_bytes": 65536, "wal_init_zero": False, "segment_max_events": 50}
    busy: dict[str, Any] = {"checkpoint_ms": 1, "checkpoint_records": 1, "snapshot_bytes": 1, "snapshot_gap_ms": 0}
    engine = Engine.open(PATH, EngineConfig(**options, **busy), fs=sim)
    engine.put_topic(TOPIC, {"durability": "fsync"})
    acked: list[list[int]] = [[] for _ in range(5)]
    deleted: list[int] = []
    stop = threading.Event()

    def writer(who: int) -> None:
        n = 0
        while not stop.is_set():
            batch = [new([who, n, part], tag=f"w{who}") for part in range(300 if who == 0 else 3)]
            answer = engine.append(TOPIC, batch)
            assert answer.last_seq is not None
            acked[who].append(answer.last_seq)
            n += 1

    def deleter() -> None:
        while not stop.is_set():
            head = engine.state(TOPIC).head_seq
            engine.delete(TOPIC, before_seq=head // 2, match="w1")
            deleted.append(head // 2)

    threads = [kit.spawn(partial(writer, who)) for who in range(5)] + [kit.spawn(deleter)]
    images: list[tuple[int, int, SimFs]] = []
    for _ in range(4):
        while len(deleted) < 2 * len(images) + 2 or not all(acked):
            assert not any(one.done() for one in threads)
        told, gone = max(map(max, acked)), deleted[-1]
        images.append((told, gone, sim.crash_image(seed, "random") if machine else sim.kill_image()))
    stop.set()
    kit.finish(threads)
    engine.close()
    for told, gone, image in images:
        store = Store(sim=image, opened=False, **options)
        store.boot = int(machine)
        engine = store.open()
        seen = kit.everything(engine, limit=1000)
        assert seen.ranges == []
        assert numbers(engine).head_seq >= told
        assert [r.seq for r in seen.records if r.seq < gone and r.tag == "w1"] == []
        writes: dict[tuple[int, int], list[int]] = {}
        for who, n, part in seen.values:
            writes.setdefault((who, n), []).append(part)
        for (who, _), parts in writes.items():
            assert who == 1 or parts == list(range(300 if who == 0 else 3)), "a write is all or nothing"


def test_what_was_committed_but_not_answered_appears_once_or_never() -> None:
    """[R-6, S-241]: power loss inside the write itself, over all its disk calls."""
    store = filled("fsync", 2)
    image = store.sim.kill_image
    probe = Store(sim=image(), opened=False)
    engine = probe.open()
    before = probe.sim.disk_calls
    write(engine, "a", "b", "c")
    calls = probe.sim.disk_calls - before
    assert calls
    for n in range(1, calls + 1):
        for mode in ("before", "middle", "after"):
            one = Store(sim=image(), opened=False)
            engine = one.open()
            one.sim.crash_at(one.sim.disk_calls + n, mode)
            with pytest.raises(PowerLoss):
                write(engine, "a", "b", "c")
            got = kit.everything(one.crash("random", n)).values
            assert got in ([1, 2], [1, 2, "a", "b", "c"])


def test_a_long_run_of_records_is_replayed_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """P-10, S-240: nothing is lost or told twice where a piece ends, of several topics whose records alternate."""
    monkeypatch.setattr(recover, "RUN_ROWS", 4)
    store = Store(checkpoint_ms=10**9, segment_max_events=1000)
    for n in range(30):
        for name in ("t", "u")[: 1 + n % 2]:
            store.engine.append(name, [{"data": n, "tag": f"g{n % 3}"}, {"data": -n}])
    store.engine.delete("t", match="g1")
    before = {name: (kit.everything(store.engine, name), numbers(store.engine, name)) for name in ("t", "u")}
    engine = store.kill()
    assert {name: (kit.everything(engine, name), numbers(engine, name)) for name in ("t", "u")} == before
    assert engine.delete("u", match="g2").deleted == 5
