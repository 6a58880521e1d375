"""The plan for readers that open files themselves: exact ends, floors, and no delete that they could miss [A-8]."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.unit.engine import kit
from tests.unit.engine import test_tiering as tiering
from tests.unit.engine.kit import Store
from topics import paths
from topics.engine import delete as deleting
from topics.engine import plan as planning
from topics.engine.checkpoint import Checkpointer, Pinned
from topics.engine.delete import Removal
from topics.engine.plan import Plan
from topics.errors import EngineClosed, LimitReached, PinNotFound, TopicNotFound, WalIo
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


def test_copies_in_memory_are_not_durable_until_they_are_in_segments() -> None:
    """A-8: of a router's destination, not above the last durable `dest_head`."""
    store = Store(checkpoint_ms=3_600_000)
    engine = store.put()
    store.put("copies")
    engine.put_router("r", {"source": kit.TOPIC, "dest": "copies"})
    kit.each(engine, 3)
    engine.router("r")
    assert (engine.plan("copies").head_seq, engine.plan("copies").durable_seq) == (3, 0)
    engine.append("copies", [{"data": "direct"}])
    assert engine.plan("copies").durable_seq == 4
    kit.each(engine, 2)
    engine.router("r")
    assert (engine.plan("copies").head_seq, engine.plan("copies").durable_seq) == (6, 4)
    engine.checkpoint(full=True)
    assert engine.plan("copies").durable_seq == 6
    store.crash()
    assert kit.everything(store.engine, "copies").seqs == [1, 2, 3, 4, 5, 6]


def test_more_than_10_000_pending_ranges_are_brought_to_disk_as_often_as_it_takes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A-8: deletes that keep coming are told as `pending`, unless they would be too many."""
    monkeypatch.setattr(planning, "PENDING_MAX", 3)
    store = Store(segment_max_events=100)
    engine = store.put()
    kit.each(engine, 100)
    engine.checkpoint(full=True)
    rounds: list[int] = []
    checkpointer = engine._checkpointer
    assert checkpointer is not None
    bring_in = checkpointer.bring_in

    def busy(topic_id: int, done: Callable[[object], None]) -> None:
        """A checkpoint, while which every other record of twelve more is deleted; at last only of four."""

        def more(outcome: object) -> None:
            rounds.append(len(rounds))
            at = 13 * len(rounds)
            seqs = range(at, at + (12 if len(rounds) < 4 else 4), 2)
            removal = Removal.parse(None, None, seqs, engine.core.limits)
            deleting.delete(engine.core, kit.TOPIC, removal, False, lambda _: done(outcome))

        bring_in(topic_id, more)

    monkeypatch.setattr(checkpointer, "bring_in", busy)
    engine.delete(kit.TOPIC, seqs=[1])
    plan = engine.plan(kit.TOPIC)
    assert len(rounds) == 4
    assert plan.segments[0].pending == [(52, 52), (54, 54)]


def test_too_many_pending_ranges_that_cannot_be_written_are_told_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """A-8: an answer that is too long is better than one that is wrong, or none."""
    monkeypatch.setattr(planning, "PENDING_MAX", 1)
    store = Store(segment_max_events=5)
    engine = store.put()
    kit.each(engine, 5)
    engine.checkpoint(full=True)
    engine.delete(kit.TOPIC, seqs=[1, 3, 5])
    store.fail("rename", times="always", path=".idx")
    assert [one.pending for one in engine.plan(kit.TOPIC).segments] == [[(1, 1), (3, 3), (5, 5)]]
    store.mend()


def held(store: Store) -> set[str]:
    return {name.rpartition("/")[2] for name in store.files(".data")}


def test_a_pin_holds_what_is_dropped_until_it_expires_and_shows_nobody_what_was_deleted() -> None:
    """A-8, C34"""
    store = Store()
    engine = store.put()
    kit.each(engine, 9)
    engine.checkpoint(full=True)
    pin = engine.plan(kit.TOPIC, pin_ms=60_000).pin
    assert pin is not None
    assert pin.expires_ms == store.clock.now_ms() + 60_000
    before = held(store)
    engine.delete(kit.TOPIC, before_seq=8)
    for n in range(4):
        kit.write(engine, n)
        engine.checkpoint(full=True)
    assert before <= held(store)
    assert kit.everything(engine).seqs == [8, 9, 10, 11, 12, 13]
    assert firsts(engine.plan(kit.TOPIC)) == [7, 10, 13]
    store.pass_time(59_000)
    assert before <= held(store)
    store.pass_time(1_001)
    assert {paths.segment(1, "data"), paths.segment(4, "data")}.isdisjoint(held(store))
    with pytest.raises(PinNotFound):
        engine.plan(kit.TOPIC, pin=pin.id)


@pytest.mark.parametrize("stop", kit.STOPS)
def test_what_a_pin_held_is_gone_after_a_restart(stop: str) -> None:
    """S-274: pins end with the process; the start finds drops that were held back."""
    store = Store()
    engine = store.put()
    kit.each(engine, 9)
    engine.checkpoint(full=True)
    engine.plan(kit.TOPIC, pin_ms=60_000)
    engine.delete(kit.TOPIC, before_seq=8)
    engine.checkpoint(full=True)
    assert paths.segment(1, "data") in held(store)
    engine = store.stop(stop)
    kit.write(engine, "next")
    engine.checkpoint(full=True)
    store.pass_time(10_000)
    assert {paths.segment(1, "data"), paths.segment(4, "data")}.isdisjoint(held(store))
    assert kit.everything(engine).seqs == [8, 9, 10]


def rewriting() -> Store:
    store = Store(segment_max_events=100, reclaim_rewrite=True, rewrite_min_bytes=1)
    kit.each(store.put(), 100)
    kit.write(store.engine, "next")
    store.engine.checkpoint(full=True)
    return store


def test_the_old_generation_of_a_rewrite_stays_for_the_pin_that_names_it() -> None:
    """A-8, S-281: two rewrites, a pin between them."""
    store = rewriting()
    engine = store.engine
    names = [paths.segment(1, "data", generation) for generation in range(3)]
    engine.plan(kit.TOPIC, pin_ms=3_600_000)
    engine.delete(kit.TOPIC, seqs=list(range(1, 60)))
    store.pass_time(20_000)
    assert [name in held(store) for name in names] == [True, True, False]
    second = engine.plan(kit.TOPIC, pin_ms=600_000).pin
    engine.delete(kit.TOPIC, seqs=list(range(60, 90)))
    store.pass_time(40_000)
    assert [name in held(store) for name in names] == [True, True, True]
    assert second is not None
    engine.release_pin(second.id)
    assert [name in held(store) for name in names] == [True, False, True]
    store.pass_time(3_600_000)
    assert [name in held(store) for name in names] == [False, False, True]
    assert kit.everything(engine).seqs == list(range(90, 102))


def pinned_checkpoint(store: Store, pin_ms: int = 60_000) -> Pinned:
    found = store.engine._call(lambda done: store.engine.begin_checkpoint(done, pin_ms))
    assert isinstance(found, Pinned)
    return found


def test_a_pinned_snapshot_is_kept_and_nothing_it_names_is_rewritten_or_dropped() -> None:
    """A-15"""
    store = rewriting()
    engine = store.engine
    found = pinned_checkpoint(store)
    name = f"{kit.PATH}/meta/{paths.snapshot(found.result.snapshot or 0)}"
    image = store.sim.files()[name]
    engine.delete(kit.TOPIC, seqs=list(range(1, 90)))
    for n in range(4):
        kit.write(engine, n)
        engine.snapshot()
        store.pass_time(11_000)
    assert engine.plan(kit.TOPIC).segments[0].generation == 0
    assert store.sim.files()[name] == image
    store.pass_time(30_000)
    kit.write(engine, "later")
    engine.snapshot()
    store.pass_time(11_000)
    assert engine.plan(kit.TOPIC).segments[0].generation == 1
    assert name not in store.sim.files()


def test_a_topic_that_is_deleted_leaves_its_files_to_the_pinned_snapshot() -> None:
    """A-15: what was made and deleted behind it goes at once."""
    store = Store()
    engine = store.put()
    kit.each(engine, 4)
    pinned_checkpoint(store)
    store.put("later")
    engine.append("later", [{"data": 1}])
    engine.checkpoint(full=True)
    engine.delete_topic(kit.TOPIC)
    engine.delete_topic("later")
    directories = {name.split("/")[2] for name in store.sim.files() if name.startswith(f"{kit.PATH}/topics/")}
    assert directories == {paths.topic_dir(1, deleted=True)}
    store.pass_time(60_001)
    assert not any(name.startswith("topics/") for name in store.files())


def test_a_pin_whose_checkpoint_fails_holds_nothing() -> None:
    """A-15"""
    store = Store()
    engine = store.put()
    kit.each(engine, 4)
    store.fail("rename", times="always", path="snapshot")
    with pytest.raises(Exception, match="snapshot"):
        pinned_checkpoint(store)
    store.mend()
    assert len(engine.core.pins) == 0


def test_the_65th_pin_is_refused() -> None:
    """A-8; a plan without a pin is answered as ever."""
    store = Store()
    engine = store.put()
    for _ in range(64):
        engine.plan(kit.TOPIC, pin_ms=1000)
    with pytest.raises(LimitReached):
        engine.plan(kit.TOPIC, pin_ms=1000)
    with pytest.raises(LimitReached):
        pinned_checkpoint(store)
    engine.plan(kit.TOPIC)
    store.pass_time(1001)
    assert engine.plan(kit.TOPIC, pin_ms=1000).pin is not None


def test_a_pinned_snapshot_waits_for_marks_of_a_segment_in_other_hands() -> None:
    """A-15, S-158: files and snapshot are one state; what was deleted before the call is deleted in them."""
    store = rewriting()
    engine = store.engine
    segments = engine.core.names[kit.TOPIC].index.segments
    assert segments is not None
    one = segments.segments[0]
    engine.delete(kit.TOPIC, seqs=[5])
    one.busy = True
    taken: list[str] = []

    def over(call: tuple[str, str, object]) -> None:
        """The rewrite, or whoever had the segment, is done while the first snapshot is written."""
        if call[:2] == ("point", "snap.after_rename"):
            taken.append(call[1])
            one.busy = False

    store.sim.before = over
    found = pinned_checkpoint(store)
    store.sim.before = None
    assert len(taken) == 2
    assert len(one.pending) == 0
    assert engine.core.pins.snapshots() == {found.result.snapshot}
    view = StoreView(store.fs, kit.PATH).topic(kit.TOPIC)
    assert view is not None
    seqs = [seq for part in view.scan() if isinstance(part, Batch) for seq in part.seqs.tolist()]
    assert 5 not in seqs


def asked_without_the_tier(patch: pytest.MonkeyPatch) -> tuple[Store, dict[str, bytes], list[Any]]:
    """A pinned checkpoint is asked for, while a delete waits for an index that only the tier has, and that is away."""
    store = tiering.store_of(12)
    store.engine.checkpoint(full=True)
    tiering.flip_stub(store)
    away = tiering.unmount(store)
    assert kit.gap(store.engine.read(kit.TOPIC, 3)) == (4, 6, "corrupt")
    store.engine.delete(kit.TOPIC, seqs=[5])
    runs: list[int] = []
    ask = Checkpointer.ask

    def counted(self: Checkpointer, *given: Any, **more: Any) -> None:
        runs.append(len(runs))
        assert len(runs) < 1000, "it is asked for ever, and nobody else gets a turn"
        ask(self, *given, **more)

    patch.setattr(Checkpointer, "ask", counted)
    outcome: list[Any] = []
    with store.engine.owner:
        store.engine.begin_checkpoint(outcome.append, 60_000)
    assert outcome == []
    return store, away, outcome


def test_a_pinned_checkpoint_waits_a_minute_for_a_tier_that_is_away_and_holds_nothing_then(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A-15: drops go on."""
    store, _, outcome = asked_without_the_tier(monkeypatch)
    store.put("other")
    kit.each(store.engine, 7, name="other")
    store.engine.checkpoint(full=True)
    data = next(path for path in store.files(".data") if path.endswith(f"02/{paths.segment(1, 'data')}"))
    store.engine.delete("other", before_seq=7)
    store.pass_time(55_000)
    assert outcome == []
    assert data in store.files()
    store.pass_time(6000)
    assert [type(one) for one in outcome] == [WalIo]
    assert len(store.engine.core.pins) == 0
    store.engine.checkpoint(full=True)
    assert data not in store.files()


def test_a_pinned_checkpoint_goes_on_when_the_tier_is_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """A-15, S-316"""
    store, away, outcome = asked_without_the_tier(monkeypatch)
    tiering.mount(store, away)
    store.pass_time(10_000)
    (found,) = outcome
    assert isinstance(found, Pinned)
    assert [len(one.pending) for one in tiering.segments_of(store.engine)] == [0] * 4
    assert kit.everything(store.engine).values == [n for n in range(1, 13) if n != 5]


def test_a_pinned_checkpoint_that_waits_for_the_tier_is_told_when_the_engine_closes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A-15, API-5: nobody waits for ever."""
    store, _, outcome = asked_without_the_tier(monkeypatch)
    store.engine.close()
    assert [type(one) for one in outcome] == [EngineClosed]
