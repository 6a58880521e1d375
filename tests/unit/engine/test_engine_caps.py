"""Caps: what a full topic evicts or refuses, and that no eviction is ever taken back (01 §9)."""

from __future__ import annotations

import random
from typing import Any

import pytest

from tests.unit.engine import kit
from tests.unit.engine.kit import TOPIC, Store, gap, numbers, seqs, write
from topics.engine import retention
from topics.engine.index import CHUNK
from topics.errors import RecordTooLarge, TopicFull
from topics.model import new


@kit.at_every_place
def test_the_worked_example_of_live_counting(place: str) -> None:
    """01 §9, literally."""
    store = Store(place)
    engine = store.put(cap_records=3, discard="old")
    for n in (1, 2, 3):
        write(engine, n, tag=f"tag-{n}")
    engine.delete(TOPIC, match="tag-2")
    assert seqs(engine.read(TOPIC)) == [1, 3]
    write(engine, 4)
    assert seqs(engine.read(TOPIC)) == [1, 3, 4]
    assert engine.read(TOPIC).tombstone is None
    write(engine, 5)
    engine = store.settle()
    assert gap(engine.read(TOPIC, 0)) == (1, 1, "cap")
    at = engine.read(TOPIC, 1)
    assert (gap(at), seqs(at)) == (None, [3, 4, 5])


@kit.at_every_place
@pytest.mark.parametrize("cap", [1, 2, 5, 100])
def test_the_newest_live_records_up_to_the_cap_stay(place: str, cap: int) -> None:
    """[CAP-1, CAP-2, STA-1]"""
    store = Store(place)
    engine = store.put(cap_records=cap)
    for n in range(1, 9):
        write(engine, n)
        live = min(n, cap)
        assert numbers(engine) == (n, n - live + 1, live, live)
    engine = store.settle()
    live = min(8, cap)
    assert numbers(engine) == (8, 9 - live, live, live)
    assert kit.everything(engine).seqs == list(range(9 - live, 9))


@kit.at_every_place
def test_a_cap_on_bytes_evicts_until_it_holds(place: str) -> None:
    """[CAP-1, CAP-2]: accounted bytes, one record after the other from the lowest."""
    store = Store(place)
    engine = store.put(cap_bytes=10)
    write(engine, "12")
    write(engine, "1234")
    assert numbers(engine) == (2, 1, 2, 10)
    write(engine, 1)
    assert numbers(engine) == (3, 2, 2, 7)
    write(engine, "123")
    engine = store.settle()
    assert numbers(engine) == (4, 3, 2, 6)
    assert gap(engine.read(TOPIC)) == (1, 2, "cap")


def test_either_cap_triggers() -> None:
    """[CAP-1]"""
    engine = Store().put(cap_records=3, cap_bytes=6)
    kit.each(engine, 3)
    assert numbers(engine).count == 3
    write(engine, 4)
    assert numbers(engine) == (4, 2, 3, 3)
    write(engine, 55555)
    assert numbers(engine) == (5, 4, 2, 6)


def test_a_batch_larger_than_the_cap_evicts_records_of_its_own() -> None:
    """[CAP-2]"""
    engine = Store().put(cap_records=3)
    write(engine, "old")
    result = write(engine, *range(5))
    assert (result.seqs, result.head_seq) == ([2, 3, 4, 5, 6], 6)
    assert numbers(engine) == (6, 4, 3, 3)
    assert gap(engine.read(TOPIC)) == (1, 3, "cap")


def test_a_record_larger_than_the_cap_on_bytes_is_evicted_at_once() -> None:
    """[CAP-2]: `old` admits it; nothing fits, so nothing stays."""
    engine = Store().put(cap_bytes=3)
    write(engine, 1)
    assert write(engine, "12345").seqs == [2]
    assert numbers(engine) == (2, 3, 0, 0)
    result = engine.read(TOPIC)
    assert (gap(result), seqs(result), result.next_from_seq) == ((1, 2, "cap"), [], 2)
    write(engine, 3)
    assert numbers(engine) == (3, 3, 1, 1)


def test_deleted_records_count_towards_neither_cap() -> None:
    """[CAP-1]"""
    engine = Store().put(cap_records=3, cap_bytes=20)
    kit.tagged(engine, "a", "b", "a")
    engine.delete(TOPIC, match="a")
    write(engine, 4)
    write(engine, 5)
    assert seqs(engine.read(TOPIC)) == [2, 4, 5]
    assert engine.read(TOPIC).tombstone is None


def test_expired_records_count_towards_neither_cap() -> None:
    """[CAP-1, S-260]: their loss is that of their age."""
    store = Store()
    engine = store.put(cap_records=3, ttl_ms=100)
    kit.each(engine, 3)
    store.clock.advance(101)
    write(engine, 4)
    result = engine.read(TOPIC)
    assert (gap(result), seqs(result)) == ((1, 3, "ttl"), [4])


# Topics that reject


def test_a_full_topic_that_rejects_refuses_and_appends_nothing() -> None:
    """[CAP-3, INV-12]: at the cap, and one above."""
    engine = Store().put(cap_records=3, cap_bytes=50, discard="reject")
    write(engine, 1, 2)
    with kit.nothing_changes(engine), pytest.raises(TopicFull) as caught:
        write(engine, 3, 4)
    error = caught.value
    assert error.code == "topic_full"
    assert (error.topic, error.cap_records, error.cap_bytes, error.head_seq, error.earliest_seq) == (TOPIC, 3, 50, 2, 1)
    assert write(engine, 3).seqs == [3]
    with kit.nothing_changes(engine), pytest.raises(TopicFull):
        write(engine, 4)


def test_a_topic_full_by_bytes_refuses_what_does_not_fit_and_takes_what_does() -> None:
    """[CAP-3]"""
    engine = Store().put(cap_bytes=10, discard="reject")
    write(engine, "12345")
    with kit.nothing_changes(engine), pytest.raises(TopicFull):
        write(engine, "12")
    write(engine, "1")
    assert numbers(engine).bytes == 10


@pytest.mark.parametrize(
    ("caps", "values"), [({"cap_records": 2}, (1, 2, 3)), ({"cap_bytes": 4}, ("123",)), ({"cap_bytes": 4}, (1, 2, 333))]
)
def test_a_write_that_could_never_fit_is_too_large_whether_full_or_not(
    caps: dict[str, int], values: tuple[Any, ...]
) -> None:
    """[CAP-4]"""
    engine = Store().put(discard="reject", **caps)
    with kit.nothing_changes(engine), pytest.raises(RecordTooLarge) as caught:
        write(engine, *values)
    assert caught.value.code == "record_too_large"
    write(engine, 1)
    with pytest.raises(RecordTooLarge):
        write(engine, *values)


def test_a_write_of_exactly_the_cap_fits() -> None:
    """[CAP-3, CAP-4, REC-13]"""
    engine = Store().put(cap_records=2, cap_bytes=4, discard="reject")
    write(engine, 11, 22)
    assert numbers(engine) == (2, 1, 2, 4)


def test_room_made_by_deletes_and_expiry_is_usable_at_once() -> None:
    """[CAP-3, TTL-3]"""
    store = Store()
    engine = store.put(cap_records=2, discard="reject", ttl_ms=100)
    write(engine, 1, 2)
    engine.delete(TOPIC, seqs=[1])
    assert write(engine, 3).seqs == [3]
    store.clock.advance(101)
    assert write(engine, 4, 5).seqs == [4, 5]
    assert numbers(engine) == (5, 4, 2, 2)


def test_a_topic_that_rejects_never_evicts_by_cap() -> None:
    """[CAP-5], 01 §18.3: a tightened cap refuses until the topic has drained."""
    store = Store()
    engine = store.put(discard="reject")
    kit.each(engine, 5)
    store.put(discard="reject", cap_records=2)
    assert numbers(engine) == (5, 1, 5, 5)
    assert engine.read(TOPIC).tombstone is None
    with pytest.raises(TopicFull):
        write(engine, 6)
    engine.delete(TOPIC, before_seq=4)
    with pytest.raises(TopicFull):
        write(engine, 6)
    engine.delete(TOPIC, before_seq=5)
    assert write(engine, 6).seqs == [6]
    assert engine.read(TOPIC).tombstone is None


@kit.after_every_stop
def test_a_topic_that_rejects_does_not_evict_in_recovery_either(stop: str) -> None:
    """[CAP-5, S-260]"""
    store = Store()
    engine = store.put(discard="reject")
    kit.each(engine, 5)
    store.put(discard="reject", cap_records=2)
    engine = store.stop(stop)
    assert numbers(engine) == (5, 1, 5, 5)


def test_expiry_applies_to_a_topic_that_rejects() -> None:
    """[CAP-5]"""
    store = Store()
    engine = store.put(discard="reject", cap_records=2, ttl_ms=100)
    write(engine, 1, 2)
    store.clock.advance(101)
    assert numbers(engine).count == 0
    assert gap(engine.read(TOPIC)) == (1, 2, "ttl")


@pytest.mark.parametrize("discard", ["old", "reject"])
def test_without_caps_discard_means_nothing(discard: str) -> None:
    """[CAP-6]"""
    engine = Store().put(discard=discard)
    engine.append(TOPIC, [new("x" * 100)] * 500)
    assert numbers(engine).count == 500


def test_a_topic_that_stops_rejecting_evicts_right_away() -> None:
    """[CAP-2, CFG-9]"""
    store = Store()
    engine = store.put(discard="reject")
    kit.each(engine, 5)
    store.put(discard="old", cap_records=2)
    assert numbers(engine) == (5, 4, 2, 2)


# Nothing comes back


@kit.after_every_stop
def test_a_relaxed_cap_brings_nothing_back(stop: str) -> None:
    """[DUR-12, S-265, INV-7, INV-8]"""
    store = Store()
    engine = store.put(cap_records=2)
    kit.each(engine, 6)
    store.put(cap_records=100)
    assert kit.everything(engine).seqs == [5, 6]
    engine = store.stop(stop)
    assert kit.everything(engine).seqs == [5, 6]
    assert kit.everything(engine).ranges == [(1, 4, "cap")]
    write(engine, 7)
    assert numbers(engine) == (7, 5, 3, 3)


@kit.after_every_stop
@pytest.mark.parametrize("caps", [{"cap_records": 3}, {"cap_bytes": 9}])
def test_the_floor_is_the_same_after_a_restart_at_any_moment(stop: str, caps: dict[str, int]) -> None:
    """C27 [S-261, DUR-12]: whatever deletes, config changes and checkpoints came in between (`fsync`)."""
    store = Store()
    engine = store.put(**caps)
    for n in range(12):
        write(engine, "x" * (n % 4), tag="even" if n % 2 == 0 else None)
        if n == 3:
            engine.delete(TOPIC, match="even")
        if n == 5:
            engine.checkpoint(full=True)
        if n == 7:
            store.put(**{name: value + 2 for name, value in caps.items()})
        if n == 9:
            engine.snapshot()
        before = kit.snapshot_of(engine)
        engine = store.stop(stop)
        assert kit.snapshot_of(engine) == before


@kit.after_every_stop
@pytest.mark.parametrize("durability", ["fsync", "disk", "memory"])
@pytest.mark.parametrize("caps", [{"cap_records": 3}, {"cap_bytes": 15}])
def test_a_floor_that_records_in_memory_have_raised_is_kept(stop: str, durability: str, caps: dict[str, int]) -> None:
    """[DUR-12, INV-7, INV-8]: they count towards caps and are gone after a restart, so the floor is logged."""
    store = Store()
    engine = store.put(durability=durability, **caps)
    write(engine, "xxx")
    write(engine, "xxx")
    store.put(durability="ephemeral", **caps)
    write(engine, "xxx")
    store.put(durability=durability, **caps)
    write(engine, "yyy")
    seen = kit.everything(engine)
    assert (seen.seqs, seen.ranges) == ([2, 3, 4], [(1, 1, "cap")])
    seen = kit.everything(store.stop(stop))
    # A crash ends the reservation of a `disk` topic, and that is told behind the records [DUR-4].
    assert (seen.seqs, seen.ranges[0]) == ([2, 4], (1, 1, "cap"))
    assert len(seen.ranges) == 1 + ((durability, stop) == ("disk", "crashed"))


@kit.after_every_stop
def test_a_class_change_that_brings_a_cap_keeps_the_floor_it_raises(stop: str) -> None:
    """[DUR-12, CFG-9]: what it evicted was in memory only, and a reader was told of it."""
    store = Store()
    engine = store.put(durability="ephemeral")
    kit.each(engine, 5)
    store.put(cap_records=2)
    assert kit.everything(engine).ranges == [(1, 3, "cap")]
    seen = kit.everything(store.stop(stop))
    assert (seen.seqs, seen.ranges) == ([], [(1, 3, "cap")])


def test_caps_cost_no_log_entries_once_the_records_in_memory_are_gone() -> None:
    """[S-261]: from then on recovery finds the same floor by itself."""
    store = Store()
    engine = store.put(durability="ephemeral", cap_records=2)
    kit.each(engine, 2)
    store.put(cap_records=2)
    kit.each(engine, 3)
    assert kit.everything(engine).seqs == [4, 5]
    before = store.faults.counts["fdatasync"]
    write(engine, 6)
    assert store.faults.counts["fdatasync"] - before == 1
    seen = kit.everything(store.kill())
    assert (seen.seqs, seen.ranges) == ([5, 6], [(1, 4, "cap")])


def test_a_floor_that_cannot_be_logged_does_not_move() -> None:
    """[DUR-12]: the write that needed it stays acknowledged, nothing is evicted."""
    store = Store()
    engine = store.put(cap_records=2)
    kit.each(engine, 1)
    store.put(durability="ephemeral", cap_records=2)
    kit.each(engine, 1, start=2)
    store.put(cap_records=2)
    store.fail("fdatasync", path="wal/wal-", index=2)
    assert write(engine, 3).last_seq == 3
    assert engine.health().state == "read_only"
    seen = kit.everything(engine)
    assert (seen.values, seen.ranges) == ([1, 2, 3], [])
    assert kit.everything(store.crash()).values == [1, 3]


def test_a_deleted_record_below_the_floor_stays_explained_after_trimming() -> None:
    """C13 [FLR-4]: deletes of the oldest records in the log's tail, checkpoint, trim, restart: no tombstone."""
    store = Store()
    engine = store.put(cap_records=5)
    kit.tagged(engine, "x", "x", "x", None, None)
    engine.delete(TOPIC, match="x")
    store.trim()
    for stop in ("killed", "reopened"):
        engine = store.stop(stop)
        seen = kit.everything(engine)
        assert (seen.seqs, seen.ranges) == ([4, 5], [])


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("place", ["tail", "sealed", "killed"])
def test_what_goes_is_the_same_whether_it_is_looked_up_one_by_one_or_at_once(
    place: str, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """[CAP-2, S-260]: floors, counts and bytes, over tails and segments, with deleted and expired records between."""

    def history(many: int) -> list[object]:
        monkeypatch.setattr(retention, "MANY", many)
        monkeypatch.setattr(retention, "MANY_BYTES", many)
        rng = random.Random(seed)
        store = Store(place)
        caps = {"cap_records": rng.choice((0, 3, 9)), "cap_bytes": rng.choice((0, 40, 200)), "ttl_ms": 5000}
        engine = store.put(**caps)
        seen: list[object] = []
        for step in range(25):
            store.clock.advance(rng.randrange(700))
            engine.append(
                TOPIC, [new("x" * rng.randrange(12), tag=rng.choice("ab")) for _ in range(rng.randrange(1, 14))]
            )
            if rng.random() < 0.2:
                engine.delete(TOPIC, match=rng.choice("ab"))
            if rng.random() < 0.3:
                engine.checkpoint()
            if step == 15:
                engine = store.settle()
            seen.append((numbers(engine), gap(engine.read(TOPIC, 0)), seqs(engine.read(TOPIC, 0))))
        return seen

    assert history(1 << 40) == history(-1)


def test_a_new_cap_holds_at_once_behind_a_long_stretch_of_deleted_records() -> None:
    """[CAP-2, CFG-9] Longer than what is looked at in one piece, in the middle of what has to go."""
    store = Store()
    engine = store.put()
    engine.append(TOPIC, [new(n, tag="gone" if CHUNK < n <= 3 * CHUNK else None) for n in range(1, 5 * CHUNK + 1)])
    engine.delete(TOPIC, match="gone")
    store.put(cap_records=10)
    assert engine.state(TOPIC).count == 10
    assert engine.state(TOPIC).earliest_seq == 5 * CHUNK - 9


def test_a_cap_takes_nothing_for_a_record_that_a_damaged_index_lost() -> None:
    """[S-130, S-157, S-260] An index is made anew without a record whose frame is damaged too: it counts no longer."""
    store = Store("sealed")
    engine = store.put(cap_records=9)
    for n in range(1, 10):
        write(engine, f"payload-{n}")
    store.settle()
    engine = store.reopen(recent_cache_bytes=0)
    kit.flip_in(store, kit.segment_files(store)[0], b"payload-2")
    store.sim.flip_bit(f"{kit.PATH}/{kit.segment_files(store, '.idx')[0]}", 3, 1)
    engine.core.maps.clear()
    write(engine, "payload-10")
    seen = kit.everything(engine)
    assert (seen.seqs, seen.ranges) == ([1, *range(3, 11)], [(2, 2, "corrupt")])
    assert numbers(engine)[:3] == (10, 1, 9)
    known = numbers(engine)
    assert numbers(store.kill()) == known
