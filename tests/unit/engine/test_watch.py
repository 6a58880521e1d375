"""Following topics live: shared bytes at the head, own reads behind it (00 A-12; 03 §3 to §5; 08 §4, §7)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.unit.engine import kit
from tests.unit.engine.kit import TOPIC, Store, each, write
from tests.unit.engine.watchkit import Held, Tap, instance_of, owner_of, step
from topics.codec.project import Projection
from topics.engine import watch
from topics.engine.watch import Instance, Pass
from topics.errors import WalIo
from topics.model import new

MANY = watch.SLICE_WRITES + 10
"""Followers that no single slice can serve."""


@pytest.fixture
def store() -> Store:
    store = Store(segment_max_events=1000)
    store.put()
    return store


@pytest.fixture
def engine(store: Store) -> Any:
    return store.engine


@pytest.fixture
def tap(engine: Any) -> Tap:
    return Tap(engine)


def batch(engine: Any, count: int, *, name: str = TOPIC, **more: Any) -> None:
    """One write of several records."""
    engine.append(name, [new(n, **more) for n in range(count)])


# Behind, then live


def test_a_follower_reads_what_there_is_and_is_told_once_that_it_has_caught_up(engine: Any, tap: Tap) -> None:
    """[FRM-1, FRM-4]"""
    each(engine, 3)
    tap.follow()
    assert tap.take() == [("record", 1, 2, 3), ("caught-up", 3)]
    owner_of(engine).run()
    assert tap.take() == []


def test_without_a_backlog_it_has_caught_up_at_once(engine: Any, tap: Tap) -> None:
    """[FRM-4] Also on an empty topic."""
    tap.follow()
    assert tap.take() == [("caught-up", 0)]


@pytest.mark.parametrize("kind", ["plain", None])
def test_what_is_published_reaches_who_is_at_the_head_by_shared_bytes(engine: Any, kind: object) -> None:
    """[A-12] Rendered once for all that render alike, and once for each that does not."""
    taps = [Tap(engine, kind=kind) for _ in range(3)]
    for one in taps:
        one.follow()
        one.take()
    batch(engine, 2)
    assert [one.take() for one in taps] == [[("record", 1, 2), ("caught-up", 2)]] * 3
    assert sum(one.rendered for one in taps) == (1 if kind else 3)
    assert [len(one.sent) for one in taps] == [1, 1, 1]
    if kind:
        assert len({id(one.sent[0]) for one in taps}) == 1, "the very same bytes"


def test_a_batch_says_where_it_began_where_it_ends_and_where_the_head_is(engine: Any, tap: Tap) -> None:
    """[FRM-1, RSM-2]"""
    each(engine, 2)
    tap.follow(cursor=1)
    batch(engine, 3)
    records = [one for one in tap.got if one.kind == "record"]
    assert [one.said for one in records] == [(1, 2, 2), (2, 5, 5)]
    assert [one.cursors for one in records] == [{TOPIC: 2}, {TOPIC: 5}]


def test_one_write_of_many_records_comes_in_portions_of_the_limit(engine: Any, tap: Tap) -> None:
    """[RD-4, FRM-4] `caught-up` is behind the last one only."""
    tap.follow(limit=2)
    tap.take()
    batch(engine, 5)
    assert tap.take() == [("record", 1, 2), ("record", 3, 4), ("record", 5), ("caught-up", 5)]


def test_what_is_too_much_to_be_shared_is_pulled(engine: Any, tap: Tap) -> None:
    """[A-12] Of one pass a bounded number of frames is kept."""
    tap.follow(limit=1)
    tap.take()
    batch(engine, watch.SERIES_MAX + 3)
    numbers = range(1, watch.SERIES_MAX + 4)
    assert tap.take() == [*(("record", n) for n in numbers), ("caught-up", numbers[-1])]


def test_a_backlog_comes_in_portions_of_limit_and_bytes(engine: Any, tap: Tap) -> None:
    """[RD-4, RD-5] At least one record, however large."""
    for _ in range(3):
        write(engine, "x" * 1000)
    tap.follow(max_bytes=1500)
    assert tap.take() == [("record", 1), ("record", 2), ("record", 3), ("caught-up", 3)]
    small = Tap(engine)
    small.follow(max_bytes=1)
    assert small.seqs() == [1, 2, 3]
    two = Tap(engine)
    two.follow(limit=2)
    assert two.take() == [("record", 1, 2), ("record", 3), ("caught-up", 3)]


def test_live_frames_obey_the_byte_budget_too(engine: Any, tap: Tap) -> None:
    """[RD-5, A-12]"""
    tap.follow(max_bytes=2500)
    tap.take()
    engine.append(TOPIC, [new("x" * 1000) for _ in range(5)])
    assert tap.take() == [("record", 1, 2), ("record", 3, 4), ("record", 5), ("caught-up", 5)]


def test_caught_up_comes_also_when_the_end_of_what_was_published_is_gone_again(engine: Any, tap: Tap) -> None:
    """[FRM-4] The last portion holds no record: the one before it was not the last."""
    tap.follow(limit=2)
    tap.take()
    with Held(engine):
        batch(engine, 4)
        engine.delete(TOPIC, seqs=[3, 4])
    assert tap.take() == [("record", 1, 2), ("caught-up", 4)]
    assert tap.feed.cursors() == {TOPIC: 4}


def test_nothing_is_said_of_records_that_are_gone_before_they_are_delivered(engine: Any, tap: Tap) -> None:
    """[FRM-8, RSM-6] The cursor moves on all the same, and the next frame shows it."""
    tap.follow()
    tap.take()
    with Held(engine):
        batch(engine, 2)
        engine.delete(TOPIC, seqs=[1, 2])
    assert tap.take() == []
    assert tap.feed.cursors() == {TOPIC: 2}
    write(engine, 3)
    assert [one.said for one in tap.got if one.kind == "record"] == [(2, 3, 3)]
    assert tap.take() == [("record", 3), ("caught-up", 3)]


def test_a_projection_decides_what_of_a_record_is_sent(engine: Any) -> None:
    """[FRM-1] Live and from the backlog alike."""
    taps = []
    for wanted in (Projection(), Projection(tags=True), Projection(metas=False, data=False)):
        one = Tap(engine)
        one.follow(wanted=wanted)
        taps.append(one)
    engine.append(TOPIC, [new(7, tag="t", node="n", meta={"k": 1})])
    late = Tap(engine)
    late.follow(wanted=Projection(tags=True))
    said = [set(one.got[-2].records[0]) for one in (*taps, late)]
    common = {"$seq", "$ts", "$node"}
    full = common | {"data", "meta"}
    assert said == [full, full | {"$tag"}, common, full | {"$tag"}]


# Own records


def test_own_records_are_left_out_live_and_from_the_backlog(engine: Any, tap: Tap) -> None:
    """[NOD-1, FRM-8]"""
    write(engine, 1, node="me")
    tap.follow(nodes=["me", "other"])
    assert tap.take() == [("caught-up", 1)]
    write(engine, 2, node="me")
    assert tap.take() == []
    assert tap.feed.cursors() == {TOPIC: 2}
    engine.append(TOPIC, [new(3, node="you"), new(4, node="other"), new(5)])
    assert tap.take() == [("record", 3, 5), ("caught-up", 5)]


def test_after_own_records_it_is_live_again(engine: Any, tap: Tap) -> None:
    """[A-12]"""
    tap.follow(nodes=["me"])
    write(engine, 1, node="me")
    tap.take()
    write(engine, 2, node="you")
    assert tap.take() == [("record", 2), ("caught-up", 2)]
    assert len(tap.sent) == 1


@pytest.mark.parametrize("node", ['q"uote', "back\\slash", "ctl\x01\x1f", "é", "\u2028", "😀", "\x7f", "a/b", " "])
def test_own_records_are_known_however_the_node_is_spelled(engine: Any, tap: Tap, node: str) -> None:
    """[NOD-1] Byte for byte, also where JSON spells it with escapes."""
    tap.follow(nodes=[node])
    tap.take()
    write(engine, 1, node=node)
    write(engine, 2, node=node + "x")
    assert tap.seqs() == [2]


def test_text_in_data_that_looks_like_a_node_is_no_node(engine: Any, tap: Tap) -> None:
    """[NOD-2]"""
    tap.follow(nodes=["me"])
    write(engine, {"$node": "me"})
    assert tap.seqs() == [1]


def test_a_topic_may_switch_the_filter_off(store: Store, tap: Tap) -> None:
    """[NOD-4]"""
    store.put(dedupe_node=False)
    tap.follow(nodes=["me"])
    write(store.engine, 1, node="me")
    assert tap.seqs() == [1]


def test_one_readers_own_records_do_not_keep_the_others_from_being_live(engine: Any) -> None:
    """[A-12]"""
    mine, other = Tap(engine), Tap(engine)
    mine.follow(nodes=["me"])
    other.follow()
    engine.append(TOPIC, [new(1, node="me"), new(2)])
    assert (mine.seqs(), other.seqs()) == ([2], [1, 2])


# A client that does not read


def test_while_output_is_full_nothing_is_built_and_then_nothing_is_missing(engine: Any, tap: Tap) -> None:
    """[FRM-10, FRM-11, D-60; 08 §10.11] The others get everything meanwhile."""
    other = Tap(engine)
    tap.follow()
    other.follow()
    tap.take()
    tap.stall()
    each(engine, 5)
    assert tap.take() == []
    assert other.seqs() == [1, 2, 3, 4, 5]
    tap.drink()
    assert tap.take() == [("record", 1, 2, 3, 4, 5), ("caught-up", 5)]
    write(engine, 6)
    assert tap.take() == [("record", 6), ("caught-up", 6)]


def test_of_a_stalled_client_one_read_is_built_at_a_time(engine: Any) -> None:
    """[D-60; 08 §10.11]"""
    each(engine, 6)
    tap = Tap(engine, fills=True)
    tap.follow(limit=2)
    seen = []
    for _ in range(4):
        owner_of(engine).run()
        seen.append(tap.take())
        tap.drink()
    assert seen == [[("record", 1, 2)], [("record", 3, 4)], [("record", 5, 6), ("caught-up", 6)], []]


def test_a_client_that_is_full_in_the_middle_of_a_pass_goes_on_where_it_was(engine: Any) -> None:
    """[A-12]"""
    tap = Tap(engine)
    tap.follow(limit=1)
    tap.take()
    tap.fills = True
    batch(engine, 3)
    assert tap.take() == [("record", 1)]
    tap.fills = False
    tap.drink()
    assert tap.take() == [("record", 2), ("record", 3), ("caught-up", 3)]


@pytest.mark.parametrize("how", ["cap", "ttl", "mixed"])
def test_what_retention_takes_from_a_stalled_client_is_told_in_one_tombstone(store: Store, how: str) -> None:
    """[FRM-11, D-61; 08 §10.11]"""
    engine = store.engine
    store.put(cap_records=4 if how == "mixed" else 2 if how == "cap" else 0, ttl_ms=1000 if how != "cap" else 0)
    tap = Tap(engine)
    tap.follow()
    tap.take()
    tap.stall()
    if how == "mixed":
        each(engine, 2)
        store.clock.advance(1)
        engine.state(TOPIC)
        each(engine, 3, start=3)
        store.clock.advance(1001)
        engine.state(TOPIC)
        each(engine, 2, start=6)
        tap.drink()
        assert tap.take() == [("tombstone", "mixed", 1, 5, 6, 7), ("record", 6, 7), ("caught-up", 7)]
        return
    each(engine, 3)
    if how == "ttl":
        store.pass_time(1500, 500)
    each(engine, 2, start=4)
    tap.drink()
    assert tap.take() == [("tombstone", how, 1, 3, 4, 5), ("record", 4, 5), ("caught-up", 5)]


def test_deletes_that_pass_a_stalled_client_are_not_told(engine: Any, tap: Tap) -> None:
    """[TMB-3, FRM-3]"""
    tap.follow()
    tap.take()
    tap.stall()
    each(engine, 4)
    engine.delete(TOPIC, before_seq=3)
    tap.drink()
    assert tap.take() == [("record", 3, 4), ("caught-up", 4)]


# Gaps


def test_a_tombstone_comes_before_the_records_of_its_read(store: Store, tap: Tap) -> None:
    """[TMB-1, FRM-1, FRM-2, RSM-2] `from_seq` of the records is where the read began, before the gap."""
    store.put(cap_records=2)
    each(store.engine, 5)
    tap.follow(cursor=1)
    tombstone, record, _ = tap.got
    assert (tombstone.said, tombstone.cursors) == (("cap", 2, 3, 4, 5), {TOPIC: 3})
    assert (record.said, record.seqs, record.cursors) == ((1, 5, 5), [4, 5], {TOPIC: 5})


def test_at_the_first_read_a_gap_has_its_own_reason_where_the_wire_says_so(store: Store) -> None:
    """[FRM-2] Whatever the cause; afterwards it is the cause."""
    store.put(cap_records=2)
    each(store.engine, 5)
    tap = Tap(store.engine, names_first_gap=True)
    tap.follow()
    assert tap.take() == [("tombstone", "from_seq_too_old", 1, 3, 4, 5), ("record", 4, 5), ("caught-up", 5)]
    tap.stall()
    each(store.engine, 3, start=6)
    tap.drink()
    assert tap.take() == [("tombstone", "cap", 6, 6, 7, 8), ("record", 7, 8), ("caught-up", 8)]


def test_a_gap_without_records_behind_it_is_told_once_and_then_it_has_caught_up(store: Store, tap: Tap) -> None:
    """[FRM-4]"""
    store.put(cap_records=1)
    each(store.engine, 3)
    store.engine.delete(TOPIC, seqs=[3])
    tap.follow()
    assert tap.take() == [("tombstone", "cap", 1, 2, 3, 3), ("caught-up", 3)]


def test_a_deleted_prefix_is_no_gap(engine: Any, tap: Tap) -> None:
    """[FRM-3]"""
    each(engine, 3)
    engine.delete(TOPIC, before_seq=3)
    tap.follow()
    assert tap.take() == [("record", 3), ("caught-up", 3)]


def test_a_hole_that_a_crash_left_is_told_before_what_follows_it(store: Store) -> None:
    """[RD-8, FLR-5] Records first, where there are some in front of it."""
    first, last = kit.lose_tail(store, "h")
    engine = store.engine
    write(engine, "after", name="h")
    tap = Tap(engine)
    tap.follow("h")
    assert tap.take() == [
        ("record", "h", 1),
        ("tombstone", "h", "crash", first, last, last + 1, last + 1),
        ("record", "h", last + 1),
        ("caught-up", "h", last + 1),
    ]


def test_a_write_that_its_own_cap_evicts_is_told_to_who_is_live(store: Store, tap: Tap) -> None:
    """[FLR-6] More records in one write than the cap leaves."""
    store.put(cap_records=2)
    tap.follow()
    tap.take()
    batch(store.engine, 5)
    assert tap.take() == [("tombstone", "cap", 1, 3, 4, 5), ("record", 4, 5), ("caught-up", 5)]


# Deletion and recreation


def test_a_deleted_topic_ends_that_topic_and_the_last_one_ends_the_stream(store: Store, tap: Tap) -> None:
    """[FRM-5]"""
    store.put("u")
    tap.follow()
    tap.follow("u")
    tap.take()
    store.engine.delete_topic(TOPIC)
    assert (tap.take(), tap.is_over) == ([("deleted",)], False)
    write(store.engine, 1, name="u")
    assert tap.take() == [("record", "u", 1), ("caught-up", "u", 1)]
    assert tap.feed.cursors() == {TOPIC: 0, "u": 1}
    store.engine.delete_topic("u")
    assert (tap.take(), tap.is_over) == ([("deleted", "u")], True)


def test_a_topic_that_was_never_there_is_a_deleted_one(engine: Any, tap: Tap) -> None:
    """[FRM-6]"""
    tap.follow("absent", 7)
    assert (tap.take(), tap.is_over) == ([("deleted", "absent")], True)


def test_what_was_published_before_a_deletion_may_be_lost_to_who_did_not_read_but_the_end_is_told(
    store: Store, tap: Tap
) -> None:
    """[FRM-5] A stalled client hears of it when it reads again."""
    tap.follow()
    tap.take()
    tap.stall()
    each(store.engine, 2)
    store.engine.delete_topic(TOPIC)
    assert tap.take() == []
    tap.drink()
    assert tap.take() == [("deleted",)]


@pytest.mark.parametrize("count", [0, 1, 3, 9])
def test_a_topic_made_anew_is_read_from_its_start_whether_or_not_it_has_grown_past_the_cursor(
    store: Store, tap: Tap, count: int
) -> None:
    """[FRM-6, EPO-3, EPO-4, RSM-2] The reason is the real one, for the stream had read before."""
    engine = store.engine
    each(engine, 3)
    tap.follow()
    tap.take()
    tap.stall()
    engine.delete_topic(TOPIC)
    store.put()
    each(engine, count)
    tap.drink()
    tombstone, *rest = tap.got
    assert tombstone.said == ("recreated", 1, count, 1 if count else count + 1, count)
    assert tombstone.cursors == {TOPIC: 0}
    assert [one for got in rest for one in got.seqs] == list(range(1, count + 1))
    assert rest[-1].kind == "caught-up"
    tap.take()
    write(engine, "more")
    assert tap.take() == [("record", count + 1), ("caught-up", count + 1)]


def test_a_recreated_topic_that_lost_its_beginning_is_read_from_what_is_left(store: Store, tap: Tap) -> None:
    """[RSM-2] The cursor of the tombstone is one below the floor."""
    tap.follow()
    tap.take()
    tap.stall()
    store.engine.delete_topic(TOPIC)
    store.put(cap_records=2)
    each(store.engine, 5)
    tap.drink()
    assert tap.got[0].cursors == {TOPIC: 3}
    assert tap.take() == [("tombstone", "recreated", 1, 5, 4, 5), ("record", 4, 5), ("caught-up", 5)]


def test_a_follower_that_opens_on_another_instance_is_told_so(store: Store) -> None:
    """[FRM-6] With the reason of a first read."""
    old = instance_of(store)
    store.engine.delete_topic(TOPIC)
    store.put()
    each(store.engine, 3)
    tap = Tap(store.engine, names_first_gap=True)
    tap.follow(cursor=2, instance=old)
    assert tap.take() == [("tombstone", "from_seq_too_old", 1, 3, 1, 3), ("record", 1, 2, 3), ("caught-up", 3)]
    same = Tap(store.engine)
    same.follow(cursor=2, instance=instance_of(store))
    assert same.take() == [("record", 3), ("caught-up", 3)]


def test_a_cursor_above_the_head_is_one_of_another_instance(engine: Any, tap: Tap) -> None:
    """[EPO-3]"""
    each(engine, 2)
    tap.follow(cursor=9)
    assert tap.take() == [("tombstone", "recreated", 1, 2, 1, 2), ("record", 1, 2), ("caught-up", 2)]


def test_deleted_and_made_anew_in_one_stretch_is_noticed_by_who_is_live(store: Store, tap: Tap) -> None:
    """[FRM-6]"""
    engine = store.engine
    each(engine, 2)
    tap.follow()
    tap.take()
    with Held(engine):
        engine.delete_topic(TOPIC)
        store.put()
        each(engine, 4)
    assert tap.take() == [("tombstone", "recreated", 1, 4, 1, 4), ("record", 1, 2, 3, 4), ("caught-up", 4)]


def test_followers_of_a_gone_instance_are_not_kept(store: Store, tap: Tap) -> None:
    """Nothing of a deleted topic holds on to connections."""
    tap.follow()
    topic = store.engine.core.names[TOPIC]
    store.engine.delete_topic(TOPIC)
    assert topic.followers == {}


# Strong consistency


@pytest.fixture
def disk() -> Store:
    store = Store(segment_max_events=1000)
    store.put(durability="disk")
    write(store.engine, "first")
    store.pass_time(2000)
    return store


def test_a_strong_follower_sees_nothing_before_a_sync_covers_it_and_asks_for_one(disk: Store) -> None:
    """[WCH-7]"""
    engine = disk.engine
    strong, eventual = Tap(engine), Tap(engine)
    strong.follow(strong=True)
    eventual.follow()
    assert strong.take() == [("record", 1), ("caught-up", 1)]
    seen: list[list[int]] = []
    shard = engine.core.shard(engine.core.names[TOPIC].id)
    sync_to = shard.log.sync_to

    def syncing(position: Any) -> None:
        seen.append(strong.seqs())
        sync_to(position)

    shard.log.sync_to = syncing  # type: ignore[method-assign]
    write(engine, "second")
    assert seen == [[]], "it asked for exactly one sync, and had nothing before it"
    assert strong.take() == [("record", 2), ("caught-up", 2)]
    assert eventual.seqs() == [1, 2]


@pytest.mark.parametrize("durability", ["disk", "memory"])
def test_what_a_strong_follower_was_shown_survives_the_machine(durability: str) -> None:
    """[WCH-7]"""
    store = Store(segment_max_events=1000)
    store.put(durability=durability)
    tap = Tap(store.engine)
    tap.follow(strong=True)
    each(store.engine, 3)
    assert tap.seqs() == [1, 2, 3]
    engine = store.crash()
    assert kit.seqs(engine.read(TOPIC, 0)) == [1, 2, 3]


def test_a_strong_follower_that_opens_above_what_is_synced_waits_for_the_sync(disk: Store) -> None:
    """[WCH-7] Its cursor is no cursor of another instance."""
    engine = disk.engine
    write(engine, "second")
    tap = Tap(engine)
    tap.follow(cursor=2, strong=True)
    assert tap.take() == [("caught-up", 2)]


def test_on_a_log_that_syncs_no_more_a_strong_follower_shows_nothing_new_and_does_not_spin(disk: Store) -> None:
    """[WCH-7, S-78]"""
    engine = disk.engine
    tap = Tap(engine)
    tap.follow(strong=True)
    tap.take()
    disk.fail_log_sync()
    write(engine, "second")
    assert engine.core.shard(engine.core.names[TOPIC].id).state == "read_only"
    assert tap.take() == []
    assert tap.error is None


@pytest.mark.parametrize("durability", ["fsync", "ephemeral"])
def test_where_there_is_no_difference_strong_changes_nothing(durability: str) -> None:
    """[WCH-7]"""
    store = Store(segment_max_events=1000)
    store.put(durability=durability)
    tap = Tap(store.engine)
    tap.follow(strong=True)
    each(store.engine, 2)
    assert tap.take() == [("caught-up", 0), ("record", 1), ("caught-up", 1), ("record", 2), ("caught-up", 2)]


def test_records_written_while_a_topic_was_ephemeral_need_no_sync(disk: Store) -> None:
    """[WCH-7] No sync will ever cover them, so none is waited for."""
    engine = disk.engine
    disk.put(durability="ephemeral")
    write(engine, "in memory")
    disk.put(durability="disk")
    write(engine, "logged")
    tap = Tap(engine)
    tap.follow(strong=True, run=False)
    step(engine, 1000)
    assert not owner_of(engine)._soon, "it asks for a sync again and again"
    assert tap.seqs() == [1, 2, 3]


def test_what_a_cap_took_before_its_sync_is_told_with_a_head_that_covers_it(disk: Store) -> None:
    """[WCH-7, TMB-1]"""
    engine = disk.engine
    tap = Tap(engine)
    tap.follow(strong=True)
    tap.take()
    disk.put(durability="disk", cap_records=1)
    tap.take()
    tap.stall()
    each(engine, 3, start=2)
    tap.drink()
    tombstone, *rest = tap.got
    assert tombstone.kind == "tombstone"
    reason, gap_from, gap_to, earliest, head = tombstone.said
    assert (reason, gap_from, gap_to, earliest) == ("cap", 2, 3, 4)
    assert head >= gap_to
    assert [seq for one in rest for seq in one.seqs] == [4]


# Reads that fail


def test_a_read_that_fails_ends_the_stream_and_nobody_elses(store: Store) -> None:
    """[D-74]"""
    engine = store.engine
    store.put("u")
    each(engine, 3)
    engine.checkpoint(full=True)
    store.trim()
    engine = store.reopen(segment_mmap=False)
    tap, other = Tap(engine), Tap(engine)
    other.follow("u")
    for op in ("open", "pread"):
        store.fail(op, times="always", path="topics/")
    tap.follow()
    store.mend()
    assert isinstance(tap.error, WalIo)
    assert tap.take() == []
    write(engine, 1, name="u")
    assert other.seqs() == [1]


def test_whatever_a_stream_meets_it_ends_instead_of_hanging(engine: Any, tap: Tap) -> None:
    """[D-74] A read is never left half done."""
    each(engine, 1)

    def put(frame: bytes) -> None:
        raise LookupError("of the sink")

    tap.put = put  # type: ignore[method-assign]
    tap.follow()
    assert tap.error is not None
    assert isinstance(tap.error.__cause__, LookupError)


def test_a_send_that_fails_costs_nobody_a_record(engine: Any) -> None:
    """[D-74, RSM-5] The cursor moves when a frame was handed over, so what was not is read again."""
    bad, good = Tap(engine), Tap(engine)
    bad.follow()
    good.follow()

    def send(*args: object) -> None:
        raise LookupError("of the sink")

    bad.send = send  # type: ignore[assignment,method-assign]
    write(engine, 1)
    write(engine, 2)
    assert good.seqs() == [1, 2]
    assert bad.seqs() == [1, 2], "what could not be pushed was read"


@pytest.mark.parametrize("kind", ["plain", None])
def test_a_frame_that_cannot_be_made_costs_nobody_a_record(engine: Any, kind: object) -> None:
    """[D-74, RSM-5] However far it was made: whoever would have got it reads for himself."""
    bad, good = Tap(engine, kind=kind), Tap(engine, kind=kind)
    bad.follow()
    good.follow()

    def render(*args: object) -> bytes:
        raise LookupError("of the sink")

    bad.render = render  # type: ignore[assignment,method-assign]
    write(engine, 1)
    write(engine, 2)
    assert good.seqs() == [1, 2]
    assert bad.seqs() == [1, 2]


def test_a_few_who_are_live_and_alike_are_served_without_a_pass(engine: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """[A-12] Nothing is to be looked at for each of them."""
    taps = [Tap(engine) for _ in range(3)]
    for one in taps:
        one.follow()
        one.take()
    passes: list[object] = []
    monkeypatch.setattr(watch, "Pass", lambda *args: passes.append(args) or Pass(*args))
    write(engine, 1)
    assert [one.take() for one in taps] == [[("record", 1), ("caught-up", 1)]] * 3
    assert not passes
    taps[1].stall()
    write(engine, 2)
    assert len(passes) == 1


@pytest.mark.parametrize("odd", ["full", "behind", "other kind", "waiting", "alone"])
def test_one_who_differs_changes_nothing_for_the_others(store: Store, odd: str) -> None:
    """[A-12, D-5] Whether everybody can be served in one go, or one of them cannot: all get everything once."""
    engine = store.engine
    one, other = Tap(engine), Tap(engine, kind="else" if odd == "other kind" else "plain")
    woken: list[int] = []
    one.follow()
    if odd != "alone":
        other.follow()
    one.take()
    if odd == "full":
        other.stall()
    if odd == "waiting":
        engine.core.names[TOPIC].waiters = {1: lambda: woken.append(1)}
    write(engine, 1)
    if odd == "behind":
        other.feed.followers[TOPIC].cursor = 0
    write(engine, 2)
    other.drink()
    assert one.take() == [("record", 1), ("caught-up", 1), ("record", 2), ("caught-up", 2)]
    assert other.seqs() == {"alone": [], "behind": [1, 1, 2]}.get(odd, [1, 2])
    assert woken == ([1] if odd == "waiting" else [])


# Slices


def test_who_was_sent_it_is_not_sent_it_again_because_another_failed(engine: Any) -> None:
    """[D-74]"""
    taps = [Tap(engine) for _ in range(5)]
    for one in taps:
        one.follow()
        one.take()

    def fail(*args: Any) -> None:
        raise RuntimeError("x")

    taps[3].send = fail  # type: ignore[method-assign, assignment]
    write(engine, 1)
    assert [one.seqs() for one in taps] == [[1]] * 5


def behind_waiting_reads(store: Store, act: Callable[[], object]) -> Tap:
    """Something happens between the slice that waiting reads have filled and the one for followers."""
    engine = store.engine
    tap = Tap(engine)
    tap.follow()
    tap.take()
    engine.core.names[TOPIC].waiters = {n: lambda: None for n in range(watch.SLICE_WRITES)}  # type: ignore[misc]
    with Held(engine) as delivery:
        engine.append(TOPIC, [new(1), new(2)])
        delivery.step()
        assert tap.got == []
        act()
    return tap


def test_what_has_expired_since_the_first_slice_is_told_as_lost(store: Store) -> None:
    """[D-30, TTL-3]"""
    store.put(ttl_ms=1000)
    tap = behind_waiting_reads(store, lambda: store.clock.advance(1001))
    assert tap.take() == [("tombstone", "ttl", 1, 2, 3, 2), ("caught-up", 2)]


def test_a_topic_that_has_gone_since_the_first_slice_shows_nothing_more(store: Store) -> None:
    """[D-30, FRM-5]"""
    tap = behind_waiting_reads(store, lambda: store.engine.delete_topic(TOPIC))
    assert tap.take() == [("deleted",)]


@pytest.mark.parametrize("kind", ["plain", None])
def test_a_pass_ends_its_slice_after_256_writes_and_goes_on_with_the_rest(engine: Any, kind: object) -> None:
    """(08 §4) Everybody gets the record; in between the owner is free."""
    taps = [Tap(engine, kind=kind) for _ in range(MANY)]
    for tap in taps:
        tap.follow()
        tap.take()
    with Held(engine) as delivery:
        write(engine, 1)
        delivery.step()
        assert sum(bool(tap.got) for tap in taps) == watch.SLICE_WRITES
    assert all(tap.seqs() == [1] for tap in taps)


@pytest.mark.parametrize("kind", ["plain", None])
def test_a_pass_ends_its_slice_after_two_milliseconds(store: Store, kind: object) -> None:
    """(08 §4) Looked at every 32 followers."""
    engine = store.engine
    taps = [Tap(engine, kind=kind) for _ in range(100)]
    for tap in taps:
        tap.follow()
        tap.take()
        send = tap.send

        def slow(*args: Any, send: Any = send) -> None:
            store.clock.advance(1)
            send(*args)

        tap.send = slow  # type: ignore[assignment,method-assign]
    with Held(engine) as delivery:
        write(engine, 1)
        delivery.step()
        assert sum(bool(tap.got) for tap in taps) == watch.LOOK_EVERY
    assert all(tap.seqs() == [1] for tap in taps)


def served_in_slices(engine: Any) -> tuple[list[Tap], list[Tap], Held]:
    """Followers of a pass whose first slice is over: those it has served, those it has not, and what makes it go on."""
    taps = [Tap(engine) for _ in range(MANY)]
    for tap in taps:
        tap.follow()
        tap.take()
    delivery = Held(engine)
    delivery.__enter__()
    batch(engine, 2)
    delivery.step()
    return [tap for tap in taps if tap.got], [tap for tap in taps if not tap.got], delivery


def test_a_record_deleted_between_two_slices_reaches_nobody_any_more(engine: Any) -> None:
    """[D-30, DEL-7] Once acknowledged, also what was prepared before is gone."""
    served, waiting, delivery = served_in_slices(engine)
    assert engine.delete(TOPIC, seqs=[1]).deleted == 1
    delivery.__exit__(None, None, None)
    assert all(tap.seqs() == [1, 2] for tap in served)
    assert all(tap.seqs() == [2] for tap in waiting)


def test_a_record_that_expires_between_two_slices_reaches_nobody_any_more(store: Store) -> None:
    """[D-30, TTL-2]"""
    store.put(ttl_ms=1000)
    _, waiting, delivery = served_in_slices(store.engine)
    store.clock.advance(1001)
    delivery.__exit__(None, None, None)
    assert all(tap.take() == [("tombstone", "ttl", 1, 2, 3, 2), ("caught-up", 2)] for tap in waiting)


def test_a_record_evicted_between_two_slices_is_told_as_lost(store: Store) -> None:
    """[D-30, CAP-2]"""
    engine = store.engine
    store.put(cap_records=2)
    _, waiting, delivery = served_in_slices(engine)
    write(engine, "third")
    delivery.__exit__(None, None, None)
    assert all(tap.take() == [("tombstone", "cap", 1, 1, 2, 3), ("record", 2, 3), ("caught-up", 3)] for tap in waiting)


def test_a_topic_deleted_between_two_slices_is_told_to_everybody(engine: Any) -> None:
    """[FRM-5]"""
    served, waiting, delivery = served_in_slices(engine)
    engine.delete_topic(TOPIC)
    delivery.__exit__(None, None, None)
    assert all(tap.take()[-1] == ("deleted",) for tap in served)
    assert all(tap.take() == [("deleted",)] for tap in waiting)


def test_what_is_published_between_two_slices_comes_with_the_next_pass(engine: Any) -> None:
    """[D-5] Everybody gets it once."""
    served, waiting, delivery = served_in_slices(engine)
    write(engine, "third")
    delivery.__exit__(None, None, None)
    assert all(tap.seqs() == [1, 2, 3] for tap in (*served, *waiting))


def test_who_leaves_between_two_slices_gets_nothing_and_who_comes_gets_all(engine: Any) -> None:
    """[WS-13]"""
    _, waiting, delivery = served_in_slices(engine)
    left, closed, *rest = waiting
    left.feed.leave((TOPIC,))
    closed.feed.close()
    come = Tap(engine)
    come.follow(run=False)
    delivery.__exit__(None, None, None)
    assert (left.take(), closed.take()) == ([], [])
    assert come.take() == [("record", 1, 2), ("caught-up", 2)]
    assert all(tap.seqs() == [1, 2] for tap in rest)


# Interleavings


@pytest.mark.parametrize("order", ["before", "between"])
def test_no_publication_is_missed_around_the_pop(engine: Any, tap: Tap, order: str) -> None:
    """[D-4, D-5; 08 §10.13] Before the head is read, or behind it."""
    tap.follow()
    tap.take()
    with Held(engine) as delivery:
        write(engine, 1)
        item = engine.core.names[TOPIC].item
        assert item is not None
        if order == "before":
            write(engine, 2)
            delivery.step()
        else:
            delivery.step()
            write(engine, 2)
        assert item.dirty or tap.seqs() == [1, 2]
    assert tap.seqs() == [1, 2]


@pytest.mark.parametrize("steps", range(12))
def test_a_publication_at_any_step_of_a_followers_reads_reaches_it_once(store: Store, steps: int) -> None:
    """[D-34; 08 §10.13]"""
    engine = store.engine
    store.put(ttl_ms=60_000)
    each(engine, 3)
    tap = Tap(engine)
    tap.follow(limit=2, run=False)
    step(engine, steps)
    write(engine, "news")
    assert tap.seqs() == [1, 2, 3, 4]
    assert tap.take()[-1] == ("caught-up", 4)


@pytest.mark.parametrize("steps", range(12))
@pytest.mark.parametrize("how", ["leave", "close", "anew", "delete"])
def test_at_any_step_of_its_reads_a_follower_may_go_and_the_next_one_is_served(
    store: Store, how: str, steps: int
) -> None:
    """[WS-11, WS-13, FRM-5] The feed is never left with a read that nobody ends."""
    engine = store.engine
    store.put("u")
    store.put(ttl_ms=1000)
    each(engine, 3)
    store.clock.advance(2000)
    each(engine, 2, start=4)
    each(engine, 1, name="u")
    tap = Tap(engine)
    tap.follow(limit=1, run=False)
    tap.follow("u", run=False)
    step(engine, steps)
    seen = len(tap.got)
    if how == "leave":
        tap.leave(TOPIC)
    elif how == "close":
        tap.close()
    elif how == "anew":
        tap.follow(cursor=4)
    else:
        engine.delete_topic(TOPIC)
    later = tap.got[seen:]
    mine = [one for one in later if one.name == TOPIC]
    if how == "close":
        assert later == []
        return
    if how == "leave":
        assert mine == []
    elif how == "anew":
        assert [one for got in mine for one in got.seqs] == [5]
    else:
        assert [one.kind for one in tap.got if one.name == TOPIC][-1] == "deleted"
    write(engine, "more", name="u")
    assert [seq for one in tap.got if one.name == "u" for seq in one.seqs] == [1, 2]


# Several topics


def test_topics_are_served_once_in_the_order_they_were_named_each_to_the_head_of_its_turn(engine: Any) -> None:
    """[STR-6]"""
    for name in ("a", "b"):
        engine.put_topic(name, {"durability": "fsync"})
        each(engine, 5, name=name)
    tap = Tap(engine)
    tap.follow("a", limit=2, run=False)
    tap.follow("b", limit=2, run=False)
    step(engine)
    each(engine, 1, name="a", start=6)
    names = [one.name for one in tap.got if one.kind == "record"]
    assert names[:3] == ["a"] * 3
    assert [seq for one in tap.got if one.name == "a" for seq in one.seqs] == [1, 2, 3, 4, 5, 6]
    assert [seq for one in tap.got if one.name == "b" for seq in one.seqs] == [1, 2, 3, 4, 5]


def test_a_busy_topic_does_not_starve_the_one_behind_it(engine: Any) -> None:
    """[STR-6] A head that moves on is not chased."""
    for name in ("a", "b"):
        engine.put_topic(name, {"durability": "fsync"})
        each(engine, 2, name=name)
    tap = Tap(engine, fills=True)
    tap.follow("a", limit=1)
    tap.follow("b", limit=1)
    for n in range(8):
        each(engine, 2, name="a", start=3 + 2 * n)
        tap.drink()
    assert [seq for one in tap.got if one.name == "b" for seq in one.seqs] == [1, 2]


# Leaving nothing behind


def test_a_closed_feed_is_followed_by_nothing_and_again_is_fine(engine: Any, tap: Tap) -> None:
    tap.follow()
    topic = engine.core.names[TOPIC]
    assert len(topic.followers) == 1
    tap.close()
    tap.close()
    assert topic.followers == {}
    tap.take()
    write(engine, 1)
    tap.drink()
    assert tap.take() == []


def test_following_counts_as_consumption(store: Store, tap: Tap) -> None:
    """[STR-8, PRI-4] Every delivery read, pulled or pushed."""
    engine = store.engine
    tap.follow()
    store.clock.advance(60_000)
    before = engine.state(TOPIC, touch=False).effective_priority
    write(engine, 1)
    after = engine.state(TOPIC, touch=False)
    assert (before, after.effective_priority) == (125, 500)
    assert after.last_read_ts == store.clock.now_ms()


def test_an_instance_is_its_id_and_epoch(store: Store) -> None:
    """[EPO-1]"""
    first = instance_of(store)
    store.engine.delete_topic(TOPIC)
    store.put()
    second = instance_of(store)
    assert isinstance(first, Instance)
    assert first != second
    assert second.id > first.id
