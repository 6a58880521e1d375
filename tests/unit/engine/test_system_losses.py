"""`$loss`: what topics lose without having been asked, merged per topic and reason, and counted [A-22]."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.engine import kit
from tests.unit.engine.kit import TOPIC, Store
from topics.engine.engine import Engine
from topics.engine.losses import REASONS
from topics.model import LOSS

MERGE_MS = 10_000


def told(engine: Engine) -> list[tuple[str, int, int, str]]:
    """Topic, range and reason of what `$loss` has, in its order."""
    if LOSS not in engine.topics(system=True):
        return []
    return [(one["topic"], one["gap_from"], one["gap_to"], one["reason"]) for one in values(engine)]


def values(engine: Engine) -> list[dict[str, Any]]:
    return kit.everything(engine, LOSS).values


def lost(engine: Engine) -> dict[str, float]:
    """`topics_lost_records_total` by reason, without those of which nothing was lost."""
    sweep = engine.begin_metrics()
    while not sweep.step():
        pass
    series = sweep.found.labelled["topics_lost_records_total"]
    assert list(series) == list(REASONS)
    return {reason: count for reason, count in series.items() if count}


def test_a_record_says_what_was_lost_of_which_topic() -> None:
    """[A-22] Its members, in their order, the topic as its tag, and the topic's own configuration."""
    store = Store()
    engine = store.put(cap_records=3)
    plan = engine.plan(TOPIC)
    kit.each(engine, 5)
    assert told(engine) == []
    store.pass_time(MERGE_MS)
    (record,) = kit.everything(engine, LOSS).records
    said = {"topic": TOPIC, "id": plan.id, "epoch": plan.epoch, "gap_from": 1, "gap_to": 2, "reason": "cap"}
    assert record.data == said
    assert list(record.data) == list(said)
    assert record.tag == TOPIC
    config = engine.state(LOSS).config
    assert (config.durability, config.ttl_ms) == ("disk", 30 * 86_400_000)
    assert lost(engine) == {"cap": 2}


def test_a_small_cap_under_load_costs_one_record_in_ten_seconds() -> None:
    """[A-22] However many writes evict."""
    store = Store()
    engine = store.put(cap_records=1)
    for _ in range(3):
        for _ in range(10):
            kit.each(engine, 10)
            store.pass_time(1000)
    assert told(engine) == [(TOPIC, 1, 99, "cap"), (TOPIC, 100, 199, "cap"), (TOPIC, 200, 299, "cap")]
    assert lost(engine) == {"cap": 299}


def test_age_and_caps_are_told_apart_and_topics_too() -> None:
    """[A-22]"""
    store = Store()
    engine = store.put(ttl_ms=2000, cap_records=3)
    store.put("other", ttl_ms=2000)
    kit.each(engine, 4)
    kit.each(engine, 2, name="other")
    store.pass_time(MERGE_MS)
    found = told(engine)
    assert sorted(found) == [("other", 1, 2, "ttl"), (TOPIC, 1, 1, "cap"), (TOPIC, 2, 4, "ttl")]
    assert lost(engine) == {"cap": 1, "ttl": 5}


def test_what_was_deleted_is_not_lost() -> None:
    """[A-22, TMB-3]"""
    store = Store()
    engine = store.put(ttl_ms=2000)
    kit.each(engine, 4)
    engine.delete(TOPIC, match="*")
    engine.delete(TOPIC, before_seq=5)
    store.pass_time(2 * MERGE_MS)
    assert told(engine) == []
    assert lost(engine) == {}


def test_what_went_with_the_machine_is_told_after_it() -> None:
    """[A-22, S-245] Reason `crash`, over the range of the tombstone."""
    store = Store()
    first, last = kit.lose_tail(store)
    store.pass_time(MERGE_MS)
    assert told(store.engine) == [(TOPIC, first, last, "crash")]
    assert lost(store.engine) == {"crash": last - first + 1}
    engine = store.kill()
    store.pass_time(2 * MERGE_MS)
    assert told(engine) == [(TOPIC, first, last, "crash")], "a gap is decided once"


def test_a_segment_that_is_gone_is_told() -> None:
    """[A-22, S-250] Reason `corrupt`."""
    store = Store("sealed", segment_max_events=3)
    engine = store.put()
    kit.each(engine, 6)
    engine.checkpoint(full=True)
    store.trim()
    engine.close()
    for ending in (".data", ".idx"):
        store.sim.remove(f"{kit.PATH}/{kit.segment_files(store, ending)[0]}")
    engine = store.open()
    assert kit.everything(engine).ranges == [(1, 3, "corrupt")]
    store.pass_time(MERGE_MS)
    assert told(engine) == [(TOPIC, 1, 3, "corrupt")]
    assert lost(engine) == {"corrupt": 3}


def test_damage_that_a_read_finds_is_told_once() -> None:
    """[A-22, S-176] However often it is read."""
    store = Store("sealed")
    engine = store.put()
    kit.each(engine, 3)
    engine.append(TOPIC, [kit.new("needle")])
    kit.each(engine, 2)
    engine.checkpoint(full=True)
    store.trim()
    engine = store.reopen()
    kit.flip_in(store, kit.segment_files(store)[1], b"needle")
    for _ in range(3):
        assert kit.everything(engine).ranges == [(4, 4, "corrupt")]
        store.pass_time(MERGE_MS)
    assert told(engine) == [(TOPIC, 4, 4, "corrupt")]
    assert lost(engine) == {"corrupt": 1}


def test_what_a_source_had_lost_is_told_of_the_destination() -> None:
    """[A-22, TRM-1]"""
    store = Store()
    engine = store.put("source", cap_records=2)
    store.put("dest")
    engine.put_router("r", {"source": "source", "dest": "dest"})
    engine.append("source", [kit.new(n) for n in range(5)])
    assert kit.everything(engine, "dest").ranges == [(1, 3, "source_trim")]
    store.pass_time(MERGE_MS)
    assert sorted(told(engine)) == [("dest", 1, 3, "source_trim"), ("source", 1, 3, "cap")]
    assert lost(engine) == {"cap": 3, "source_trim": 3}


@pytest.mark.parametrize("stop", ["killed", "crashed"])
def test_evictions_that_a_restart_repeats_are_not_told_twice(stop: str) -> None:
    """[A-22, S-261] Cap floors are derived again; nothing was lost anew."""
    store = Store()
    engine = store.put(cap_records=2)
    kit.each(engine, 6)
    store.pass_time(MERGE_MS)
    engine.checkpoint()
    engine = store.stop(stop)
    store.pass_time(2 * MERGE_MS)
    assert told(engine) == [(TOPIC, 1, 4, "cap")]
    assert lost(engine) == {}


def test_a_clean_stop_tells_the_rest() -> None:
    """[A-22]"""
    store = Store()
    kit.each(store.put(cap_records=2), 3)
    assert told(store.reopen()) == [(TOPIC, 1, 1, "cap")]


def test_what_cannot_be_told_now_is_told_later_with_the_rest() -> None:
    """[A-22, S-80] While there is no space, losses gather."""
    store = Store(wal_file_bytes=16384)
    engine = store.put(cap_records=2)
    kit.each(engine, 3)
    shard = engine.core.wal.shards[0] if engine.core.wal is not None else None
    assert shard is not None
    store.sim.capacity = 0
    store.pass_time(0)
    shard._fill_up(OSError("no space"))
    store.pass_time(MERGE_MS)
    assert told(engine) == []
    store.sim.capacity = None
    store.pass_time(2000)
    kit.each(engine, 2)
    store.pass_time(MERGE_MS)
    assert told(engine) == [(TOPIC, 1, 3, "cap")]


def test_the_servers_own_topics_lose_in_silence() -> None:
    """[A-22] What has outlived its thirty days in `$loss` is no news."""
    store = Store()
    engine = store.put(cap_records=1)
    kit.each(engine, 2)
    store.pass_time(MERGE_MS)
    store.clock.advance(31 * 86_400_000)
    store.pass_time(3 * MERGE_MS)
    assert engine.state(LOSS).count == 0
    assert engine.state(LOSS).head_seq == 1
    assert lost(engine) == {"cap": 1}


def test_very_many_topics_are_told_in_turn() -> None:
    """[A-22, P-10] A few hundred at a time."""
    store = Store()
    engine = store.engine
    for n in range(300):
        engine.put_topic(f"t{n:03}", {"durability": "memory", "cap_records": 1})
        kit.each(engine, 2, name=f"t{n:03}")
    store.pass_time(MERGE_MS)
    assert [one[0] for one in told(engine)] == [f"t{n:03}" for n in range(300)]
