"""The plan for readers that open files themselves: exact ends, floors, and no delete that they could miss [A-8]."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.unit.engine import kit
from tests.unit.engine.kit import Store
from topics import paths
from topics.engine.plan import Plan
from topics.errors import TopicNotFound
from topics.storage.view import Batch, StoreView

PER_SEGMENT = 3


def read_as_planned(store: Store, plan: Plan) -> list[int]:
    """What somebody gets who reads the files of a plan up to its `ckpt_seq` and applies its floors."""
    view = StoreView(store.fs, kit.PATH).topic(plan.topic)
    assert view is not None
    assert (view.id, view.epoch) == (plan.id, plan.epoch)
    floor = max(plan.floors)
    found = [seq for part in view.scan() if isinstance(part, Batch) for seq in part.seqs.tolist()]
    return [seq for seq in found if floor <= seq <= plan.ckpt_seq]


def firsts(plan: Plan) -> list[int]:
    return [one.first_seq for one in plan.segments]


def test_an_unknown_topic_has_no_plan() -> None:
    """A-8: 404"""
    with pytest.raises(TopicNotFound):
        Store().engine.plan("nowhere")


def test_a_plan_names_files_that_hold_what_it_says() -> None:
    """A-8: `records`, `bytes`, times; the files are there and of that size; segments follow each other."""
    store = Store()
    engine = store.put()
    for n in range(1, 8):
        kit.write(engine, n)
        store.clock.advance(10)
    engine.checkpoint(full=True)
    kit.each(engine, 2)
    plan = engine.plan(kit.TOPIC)
    assert (plan.head_seq, plan.ckpt_seq, plan.earliest_seq, plan.durable_seq) == (9, 7, 1, 9)
    assert plan.floors == (1, 1, 1)
    assert plan.next_seq is None
    assert [(one.first_seq, one.last_seq, one.records, one.sealed) for one in plan.segments] == [
        (1, 3, 3, True), (4, 6, 3, True), (7, 7, 1, False),
    ]  # fmt: skip
    assert [one.max_ts - one.min_ts for one in plan.segments] == [20, 20, 0]
    for one in plan.segments:
        assert store.sim.size(f"{kit.PATH}/{one.path}") == one.bytes > 0
        assert (one.tier, one.gap, one.pending, one.generation) == ("hot", None, [], 0)
    assert plan.store == store.sim.files()[f"{kit.PATH}/meta/STORE"].decode().strip()


@pytest.mark.parametrize("durability", ["memory", "disk", "fsync"])
def test_nothing_up_to_durable_seq_is_lost_to_a_power_failure_and_all_of_it_is_told_as_durable(durability: str) -> None:
    """A-8: `durable_seq` is exact: what is synced counts, what only the page cache has does not."""
    store = Store(reserve_min=1000)
    engine = store.put(durability=durability)
    kit.each(engine, 4)
    store.pass_time(1000)
    assert engine.plan(kit.TOPIC).durable_seq == 4
    kit.each(engine, 3)
    plan = engine.plan(kit.TOPIC)
    assert plan.head_seq == 7
    assert plan.durable_seq == (7 if durability == "fsync" else 4)
    store.crash()
    assert kit.everything(store.engine).seqs == list(range(1, plan.durable_seq + 1))


@pytest.mark.parametrize("stop", kit.STOPS)
def test_what_a_restart_found_is_durable(stop: str) -> None:
    """S-88: recovery writes the tail of an unfinished run again and syncs it."""
    store = Store()
    kit.each(store.put(), 5)
    engine = store.stop(stop)
    plan = engine.plan(kit.TOPIC)
    assert (plan.head_seq, plan.durable_seq) == (5, 5)
    kit.write(engine, 6)
    assert engine.plan(kit.TOPIC).durable_seq == 6


def test_an_ephemeral_topic_has_nothing_durable_nor_has_what_it_once_held_in_memory() -> None:
    """A-8: 0 for `ephemeral`; records in memory go with the process, whatever the class became."""
    store = Store()
    engine = store.put()
    kit.each(engine, 2)
    store.put(durability="ephemeral")
    kit.each(engine, 2)
    assert engine.plan(kit.TOPIC).durable_seq == 0
    store.put()
    kit.write(engine, 5)
    assert (engine.plan(kit.TOPIC).head_seq, engine.plan(kit.TOPIC).durable_seq) == (5, 2)
    store.crash()
    assert kit.everything(store.engine).seqs == [1, 2, 5]


def test_a_store_in_memory_plans_nothing() -> None:
    store = Store("ram")
    kit.each(store.put(), 2)
    plan = store.engine.plan(kit.TOPIC)
    assert (plan.head_seq, plan.durable_seq, plan.ckpt_seq, plan.segments) == (2, 0, 0, [])


def test_retention_is_applied_before_the_answer() -> None:
    """A-8, TTL-3"""
    store = Store()
    engine = store.put(ttl_ms=1000)
    kit.each(engine, 4)
    engine.checkpoint(full=True)
    store.clock.advance(900)
    kit.each(engine, 2)
    store.clock.advance(200)
    plan = engine.plan(kit.TOPIC)
    assert plan.floors.ttl == plan.earliest_seq == 5
    assert plan.now_ms == store.clock.now_ms()
    assert firsts(plan) == []
    assert plan.ckpt_seq == 4


def test_records_below_a_floor_are_not_counted() -> None:
    """A-8: `records` are live ones."""
    store = Store()
    engine = store.put()
    kit.each(engine, 9)
    engine.checkpoint(full=True)
    engine.delete(kit.TOPIC, before_seq=6)
    plan = engine.plan(kit.TOPIC)
    assert plan.floors.deleted_below == 6
    assert [one.records for one in plan.segments if one.last_seq >= 6] == [1, 3]
    assert read_as_planned(store, plan) == [6, 7, 8, 9]


@pytest.mark.parametrize("events", [PER_SEGMENT, 1000], ids=["sealed", "active"])
def test_a_reader_of_the_files_never_sees_what_was_deleted_before_the_plan(events: int) -> None:
    """A-8, K-11: deletes are on disk when the answer is given, sealed or not."""
    store = Store(segment_max_events=events)
    engine = store.put()
    kit.each(engine, 8)
    engine.checkpoint(full=True)
    engine.delete(kit.TOPIC, seqs=[2, 3, 5])
    plan = engine.plan(kit.TOPIC)
    assert [one.pending for one in plan.segments if one.pending] == []
    assert read_as_planned(store, plan) == [1, 4, 6, 7, 8]


def test_deletes_that_cannot_be_written_are_told() -> None:
    """A-8: `pending` says what the files do not."""
    store = Store(segment_max_events=5)
    engine = store.put()
    kit.each(engine, 5)
    engine.checkpoint(full=True)
    engine.delete(kit.TOPIC, seqs=[1, 2, 4])
    store.fail("rename", times="always", path=".idx")
    plan = engine.plan(kit.TOPIC)
    assert [one.pending for one in plan.segments] == [[(1, 2), (4, 4)]]
    assert plan.segments[0].records == 2
    store.mend()
    assert [one.pending for one in engine.plan(kit.TOPIC).segments] == [[]]


def test_a_latched_log_still_plans() -> None:
    """S-78: reads go on; nothing more becomes durable."""
    store = Store()
    engine = store.put(durability="disk")
    kit.each(engine, 4)
    engine.checkpoint(full=True)
    engine.delete(kit.TOPIC, seqs=[2])
    kit.write(engine, 5)
    store.fail_log_sync(times="always")
    store.pass_time(2000)
    assert engine.health().state == "read_only"
    plan = engine.plan(kit.TOPIC)
    assert (plan.durable_seq, plan.head_seq) == (4, 5)
    assert plan.segments[0].pending == [(2, 2)]


def test_pages_follow_each_other_and_stay_in_range() -> None:
    """A-8: `limit`, `next_seq`, `from_seq`, `to_seq`; one version for all pages of one state."""
    store = Store()
    engine = store.put()
    kit.each(engine, 15)
    engine.checkpoint(full=True)
    whole = engine.plan(kit.TOPIC)
    assert firsts(whole) == [1, 4, 7, 10, 13]
    pages = [engine.plan(kit.TOPIC, limit=2)]
    while (at := pages[-1].next_seq) is not None:
        pages.append(engine.plan(kit.TOPIC, at, limit=2))
    assert [firsts(page) for page in pages] == [[1, 4], [7, 10], [13]]
    assert {page.version for page in pages} == {whole.version}
    assert firsts(engine.plan(kit.TOPIC, 6, 10)) == [4, 7, 10]
    assert firsts(engine.plan(kit.TOPIC, 99)) == []


def test_long_gaps_are_segments_with_a_reason() -> None:
    """A-8: `gap`; S-129"""
    store = Store(reserve_min=5000)
    engine = store.put(durability="disk")
    kit.each(engine, 2)
    store.pass_time(100)
    engine = store.crash()
    kit.write(engine, "behind")
    engine.checkpoint(full=True)
    gaps = [one for one in engine.plan(kit.TOPIC).segments if one.gap is not None]
    assert [(one.gap, one.records, one.bytes, one.path.endswith(".idx")) for one in gaps] == [("crash", 0, 0, True)]
    assert gaps[0].last_seq - gaps[0].first_seq > 1024
    assert engine.metrics()["topics_holes_total"] == gaps[0].last_seq - gaps[0].first_seq + 1


CHANGES: dict[str, Callable[[Store], object]] = {
    "checkpoint": lambda store: store.engine.checkpoint(full=True),
    "delete": lambda store: store.engine.delete(kit.TOPIC, seqs=[5]),
    "prefix": lambda store: store.engine.delete(kit.TOPIC, before_seq=2),
    "class": lambda store: store.put(durability="disk"),
    "cap": lambda store: store.put(cap_records=4),
    "recreated": lambda store: (store.engine.delete_topic(kit.TOPIC), store.put()),
}


@pytest.mark.parametrize("change", CHANGES)
def test_the_version_changes_with_the_answer(change: str) -> None:
    """A-8"""
    store = Store()
    engine = store.put()
    kit.each(engine, 6)
    engine.checkpoint(full=True)
    kit.write(engine, 7)
    before = engine.plan(kit.TOPIC)
    CHANGES[change](store)
    after = engine.plan(kit.TOPIC)
    assert after.version != before.version
    assert engine.plan(kit.TOPIC).version == after.version


def test_the_version_stays_when_only_the_ends_move() -> None:
    """A-8: all but `head_seq` and `durable_seq`; also over a clean restart of what is sealed."""
    store = Store()
    engine = store.put()
    kit.each(engine, 6)
    engine.checkpoint(full=True)
    before = engine.plan(kit.TOPIC)
    kit.write(engine, 7)
    store.clock.advance(5)
    after = engine.plan(kit.TOPIC)
    assert (after.head_seq, after.durable_seq) == (7, 7)
    assert after.version == before.version
    assert [one.version for one in after.segments] == [one.version for one in before.segments]


def test_only_the_changed_segment_gets_another_version() -> None:
    """A-8: a reader that keeps what it read asks again only for what changed."""
    store = Store()
    engine = store.put()
    kit.each(engine, 9)
    engine.checkpoint(full=True)
    before = engine.plan(kit.TOPIC)
    engine.delete(kit.TOPIC, seqs=[5])
    after = engine.plan(kit.TOPIC)
    changed = [a.first_seq for a, b in zip(after.segments, before.segments, strict=True) if a.version != b.version]
    assert changed == [4]


def test_a_rewritten_segment_is_named_by_its_generation() -> None:
    """S-281"""
    store = Store(segment_max_events=100, reclaim_rewrite=True, rewrite_min_bytes=1)
    engine = store.put()
    kit.each(engine, 100)
    kit.write(engine, "next")
    engine.checkpoint(full=True)
    engine.delete(kit.TOPIC, seqs=list(range(1, 90)))
    engine.checkpoint(full=True)
    store.pass_time(20_000)
    one = engine.plan(kit.TOPIC).segments[0]
    assert one.generation == 1
    assert one.path.endswith(paths.segment(1, "data", 1))
    assert store.sim.size(f"{kit.PATH}/{one.path}") == one.bytes
