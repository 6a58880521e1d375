"""Permanent deletes: selectors, bounds, what is counted, and that nothing deleted returns (01 §14; 06 §15.2)."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.engine import kit
from tests.unit.engine.kit import TOPIC, Store, numbers, seqs, write
from topics.errors import BatchTooLarge, TopicNotFound, TopicsError
from topics.model import DeleteResult, new
from topics.testing import PowerLoss

TAGS = ["a", "ab", "abc", "b", None, "", "a*", "a*c", "é", "éa", "\U0010ffff", "a"]
"""Tags of the records 1 to 12."""


def filled(place: str = "tail", **config: Any) -> tuple[Store, Any]:
    store = Store(place)
    engine = store.put(**config)
    kit.tagged(engine, *TAGS)
    return store, store.settle()


def live(engine: Any) -> list[int]:
    return kit.everything(engine).seqs


@kit.at_every_place
@pytest.mark.parametrize(
    ("selector", "gone"),
    [
        ({"match": "a"}, [1, 12]),
        ({"match": ["tag", "Eq", "a"]}, [1, 12]),
        ({"match": ("tag", "Eq", "a*")}, [7]),
        ({"match": "a*"}, [1, 2, 3, 7, 8, 12]),
        ({"match": ["tag", "Glob", "a*"]}, [1, 2, 3, 7, 8, 12]),
        ({"match": ["tag", "Glob", "a**"]}, [7, 8]),
        ({"match": ["tag", "Glob", "a*c*"]}, [8]),
        ({"match": "ab*"}, [2, 3]),
        ({"match": ["tag", "Glob", "*"]}, [1, 2, 3, 4, 6, 7, 8, 9, 10, 11, 12]),
        ({"match": "*"}, [1, 2, 3, 4, 6, 7, 8, 9, 10, 11, 12]),
        ({"match": ""}, [6]),
        ({"match": ["tag", "Eq", ""]}, [6]),
        ({"match": "é*"}, [9, 10]),
        ({"match": "\U0010ffff*"}, [11]),
        ({"match": "A*"}, []),
        ({"match": "none"}, []),
        ({"before_seq": 0}, []),
        ({"before_seq": 1}, []),
        ({"before_seq": 2}, [1]),
        ({"before_seq": 6}, [1, 2, 3, 4, 5]),
        ({"before_seq": 13}, list(range(1, 13))),
        ({"before_seq": 14}, list(range(1, 13))),
        ({"before_seq": kit.U64_MAX}, list(range(1, 13))),
        ({"before_seq": 3, "match": "a*"}, [1, 2]),
        ({"before_seq": kit.U64_MAX, "match": "b"}, [4]),
        ({"before_seq": 1, "match": "*"}, []),
        ({"seqs": [3]}, [3]),
        ({"seqs": [12, 1, 5]}, [1, 5, 12]),
        ({"seqs": [2, 2, 2]}, [2]),
        ({"seqs": [0, 13, kit.U64_MAX, 7]}, [7]),
        ({"seqs": [1, 2, 4, 5], "match": "a*"}, [1, 2]),
        ({"seqs": [4], "match": "a"}, []),
        ({"before_seq": None, "match": None, "seqs": [6]}, [6]),
    ],
    ids=lambda value: ascii(value)[:50],
)
def test_a_selector_removes_what_it_names(place: str, selector: dict[str, Any], gone: list[int]) -> None:
    """01 §14, [DEL-2, DEL-3, DEL-4, DEL-7, DEL-10, DEL-11, DLR-2]: and the answer is exact."""
    store, engine = filled(place)
    left = [seq for seq in range(1, 13) if seq not in gone]
    sizes = {seq: len(str(seq)) for seq in range(1, 13)}
    dry = engine.delete(TOPIC, **selector, dry_run=True)
    assert (dry.deleted, dry.head_seq) == (len(gone), 12)
    assert live(engine) == list(range(1, 13))
    result = engine.delete(TOPIC, **selector)
    expected = DeleteResult(len(gone), min(left, default=13), 12, len(left), sum(sizes[seq] for seq in left))
    assert result == expected
    assert numbers(engine) == (12, expected.earliest_seq, expected.count, expected.bytes)
    assert live(engine) == left
    assert engine.delete(TOPIC, **selector).deleted == 0
    if place != "ram":
        engine = store.kill()
        assert numbers(engine) == (12, expected.earliest_seq, expected.count, expected.bytes)
        assert live(engine) == left


@pytest.mark.parametrize(
    "selector",
    [
        {},
        {"before_seq": None},
        {"before_seq": None, "match": None, "seqs": None},
        {"before_seq": -1},
        {"before_seq": 2**64},
        {"before_seq": True},
        {"before_seq": 1.0},
        {"before_seq": "1"},
        {"match": 5},
        {"match": []},
        {"match": ["tag", "Eq"]},
        {"match": ["tag", "Eq", "a", "b"]},
        {"match": ["node", "Eq", "a"]},
        {"match": ["Tag", "Eq", "a"]},
        {"match": ["tag", "eq", "a"]},
        {"match": ["tag", "GLOB", "a*"]},
        {"match": ["tag", "Like", "a"]},
        {"match": ["tag", "Glob", "a"]},
        {"match": ["tag", "Glob", ""]},
        {"match": ["tag", "Eq", None]},
        {"match": ["tag", "Eq", 5]},
        {"match": {"tag": "a"}},
        {"match": "\ud800"},
        {"seqs": 5},
        {"seqs": "1"},
        {"seqs": [-1]},
        {"seqs": [2**64]},
        {"seqs": [True]},
        {"seqs": ["1"]},
        {"seqs": [None]},
        {"seqs": [1.0]},
        {"before_seq": 2, "seqs": [1]},
        {"before_seq": 2, "seqs": [1], "match": "a"},
    ],
    ids=ascii,
)
def test_a_bad_selector_is_refused_and_deletes_nothing(selector: dict[str, Any]) -> None:
    """[DEL-1, DEL-2, API-12], 01 §14: also for a topic that does not exist [DLR-1]."""
    _, engine = filled()
    with kit.nothing_changes(engine), kit.invalid_request():
        engine.delete(TOPIC, **selector)
    with kit.invalid_request():
        engine.delete("absent", **selector)


def test_a_thousand_seqs_are_one_delete_and_one_more_is_too_many() -> None:
    """01 §14, 02 §1.9"""
    engine = Store().put()
    engine.append(TOPIC, [new(0)] * 1001)
    with kit.nothing_changes(engine), pytest.raises(BatchTooLarge) as caught:
        engine.delete(TOPIC, seqs=list(range(1, 1002)))
    assert caught.value.code == "batch_too_large"
    assert engine.delete(TOPIC, seqs=list(range(1, 1001))).deleted == 1000
    assert live(engine) == [1001]


def test_a_topic_that_does_not_exist_has_nothing_to_delete() -> None:
    """[DLR-1, NAME-7]"""
    engine = Store().engine
    with pytest.raises(TopicNotFound):
        engine.delete("absent", before_seq=1)
    with pytest.raises(TopicNotFound):
        engine.delete("absent", before_seq=1, dry_run=True)


@pytest.mark.parametrize("bad", [1, "yes", None])
def test_dry_run_must_be_a_bool(bad: Any) -> None:
    """02 §6, [API-12]"""
    _, engine = filled()
    with kit.nothing_changes(engine), kit.invalid_request():
        engine.delete(TOPIC, match="a", dry_run=bad)


@pytest.mark.parametrize("place", kit.PLACES[:-1])
def test_a_dry_run_changes_nothing_now_or_later(place: str) -> None:
    """[DLR-4]"""
    store, engine = filled(place)
    before = kit.snapshot_of(engine)
    assert engine.delete(TOPIC, match="*", dry_run=True).deleted == 11
    assert engine.delete(TOPIC, before_seq=99, dry_run=True).deleted == 12
    assert kit.snapshot_of(engine) == before
    assert kit.snapshot_of(store.kill()) == before


@kit.after_every_stop
@pytest.mark.parametrize("selector", [{"match": "x*"}, {"before_seq": kit.U64_MAX}, {"seqs": [1, 2, 3, 4, 5]}])
def test_records_appended_later_are_never_affected(stop: str, selector: dict[str, Any]) -> None:
    """[DEL-5, INV-9, S-271]: not even when the delete is replayed."""
    store = Store()
    engine = store.put()
    kit.tagged(engine, "x1", "x2", "x1")
    assert engine.delete(TOPIC, **selector).deleted == 3
    kit.tagged(engine, "x1", "x2", "x1")
    assert live(engine) == [4, 5, 6]
    engine = store.stop(stop)
    assert live(engine) == [4, 5, 6]
    engine = store.stop(stop)
    assert live(engine) == [4, 5, 6]


@kit.after_every_stop
@pytest.mark.parametrize("when", ["before", "after", "both"])
@pytest.mark.parametrize("selector", [{"match": "a*"}, {"before_seq": 9}, {"seqs": [2, 3, 4, 11]}])
def test_a_delete_survives_a_checkpoint_before_and_behind_it(stop: str, when: str, selector: dict[str, Any]) -> None:
    """[DEL-6, S-270]"""
    store, engine = filled()
    if when in ("before", "both"):
        engine.checkpoint(full=True)
    engine.delete(TOPIC, **selector)
    if when in ("after", "both"):
        engine.checkpoint(full=True)
    before = kit.snapshot_of(engine)
    for _ in range(2):
        assert kit.snapshot_of(store.stop(stop)) == before


@pytest.mark.parametrize("selector", [{"match": "a*"}, {"before_seq": 9}, {"before_seq": 99}, {"seqs": [2, 3, 4, 11]}])
def test_a_delete_survives_the_trimming_of_the_log_that_held_it(selector: dict[str, Any]) -> None:
    """[DEL-6, S-192, S-270]: once it was in segments and once it never reached one."""
    store, engine = filled()
    store.put("other")
    kit.tagged(engine, *TAGS, name="other")
    engine.checkpoint(full=True)
    engine.delete("other", **selector)
    engine.delete(TOPIC, **selector)
    store.trim()
    before = [kit.snapshot_of(engine, name) for name in (TOPIC, "other")]
    for stop in ("killed", "crashed", "reopened"):
        engine = store.stop(stop)
        assert [kit.snapshot_of(engine, name) for name in (TOPIC, "other")] == before


@pytest.mark.parametrize(
    ("durability", "stop"), [("disk", "killed"), ("memory", "reopened"), ("disk", "reopened"), ("fsync", "crashed")]
)
def test_a_delete_survives_as_far_as_the_class_of_its_topic_promises(durability: str, stop: str) -> None:
    """[DUR-10, INV-4, INV-8]"""
    store = Store()
    engine = store.put(durability=durability)
    kit.each(engine, 5)
    engine.delete(TOPIC, before_seq=3)
    engine.delete(TOPIC, seqs=[5])
    assert live(store.stop(stop)) == [3, 4]


def test_a_delete_on_an_ephemeral_topic_works_in_memory() -> None:
    """[DUR-10, DUR-14]"""
    engine = Store().put(durability="ephemeral")
    kit.tagged(engine, "x", None, "x", "y")
    result = engine.delete(TOPIC, match="x")
    assert result == DeleteResult(2, 2, 4, 2, 2)
    assert live(engine) == [2, 4]


def test_a_delete_that_cannot_be_logged_deletes_nothing() -> None:
    """[DEL-7]"""
    store, engine = filled()
    store.fail_log_sync()
    with kit.nothing_changes(engine), pytest.raises(TopicsError):
        engine.delete(TOPIC, match="a*")


def test_everything_deleted_leaves_an_empty_topic_that_goes_on_counting() -> None:
    """[STA-3, DLR-2, SEQ-4]"""
    store, engine = filled()
    assert engine.delete(TOPIC, before_seq=13) == DeleteResult(12, 13, 12, 0, 0)
    result = engine.read(TOPIC)
    assert (seqs(result), result.tombstone, result.next_from_seq, result.caught_up) == ([], None, 12, True)
    assert write(engine, "next").seqs == [13]
    engine = store.kill()
    assert numbers(engine) == (13, 13, 1, 6)
    assert write(engine, "next").seqs == [14]


@pytest.mark.parametrize("durability", ["ephemeral", "memory", "disk", "fsync"])
@pytest.mark.parametrize("stop", ["reopened", "killed"])
def test_a_topic_drained_before_its_first_checkpoint_keeps_its_head_silently(durability: str, stop: str) -> None:
    """C12: checkpoint, snapshot, trim, then a clean stop or a kill; all classes."""
    store = Store()
    engine = store.put(durability=durability)
    kit.each(engine, 5)
    engine.delete(TOPIC, before_seq=6)
    store.trim()
    engine = store.stop(stop)
    assert numbers(engine) == (5, 6, 0, 0)
    result = engine.read(TOPIC)
    assert (seqs(result), result.tombstone) == ([], None)
    assert write(engine, "next").seqs == [6]


def test_deletes_count_only_records_they_turned_from_live_to_deleted() -> None:
    """[DEL-10]: not evicted, not expired, not deleted ones."""
    store = Store()
    engine = store.put(cap_records=4, ttl_ms=100)
    kit.tagged(engine, "x", "x", "x")
    store.clock.advance(60)
    kit.tagged(engine, "x", "x", "x")
    # 1 and 2 went by the cap; 3 will by its age.
    store.clock.advance(41)
    engine.delete(TOPIC, seqs=[5])
    assert engine.delete(TOPIC, match="x", before_seq=99).deleted == 2
    assert numbers(engine) == (6, 7, 0, 0)


@pytest.mark.parametrize("place", ["tail", "active", "sealed", "killed", "trimmed"])
def test_one_tag_over_many_segments_is_found_everywhere_and_only_where_it_is(place: str) -> None:
    """[DEL-9, S-188]"""
    store = Store(place)
    engine = store.put()
    engine.append(TOPIC, [new(n, tag=f"t{n % 7}" if n % 3 else None) for n in range(100)])
    engine = store.settle()
    engine.append(TOPIC, [new(n, tag=f"t{n % 7}" if n % 3 else None) for n in range(100, 150)])
    hit = [n + 1 for n in range(150) if n % 3 and n % 7 == 4]
    assert engine.delete(TOPIC, match="t4").deleted == len(hit)
    assert sorted(set(range(1, 151)) - set(live(engine))) == hit
    assert engine.delete(TOPIC, match="t*").deleted == sum(1 for n in range(150) if n % 3) - len(hit)
    assert live(engine) == [n + 1 for n in range(150) if n % 3 == 0]


def test_deleted_payloads_do_not_come_back_through_a_cache() -> None:
    """[DEL-7]"""
    engine = Store().put()
    kit.each(engine, 5)
    assert live(engine) == [1, 2, 3, 4, 5]
    engine.delete(TOPIC, seqs=[3])
    assert live(engine) == [1, 2, 4, 5]
    assert seqs(engine.read(TOPIC, 2)) == [4, 5]


def test_whole_segments_of_deleted_records_are_dropped_and_nobody_notices() -> None:
    """[DEL-13, S-274, S-277, CAP-8]"""
    store = Store()
    engine = store.put()
    kit.each(engine, 12)
    engine.checkpoint(full=True)
    assert len(kit.segment_files(store)) >= 3
    engine.delete(TOPIC, before_seq=9)
    before = kit.snapshot_of(engine)
    for _ in range(3):
        store.pass_time(5000)
        engine.checkpoint(full=True)
        engine.snapshot()
    names = [path.rpartition("/")[2] for path in kit.segment_files(store)]
    assert "seg-0000000000000001.data" not in names
    assert kit.snapshot_of(engine) == before
    assert kit.snapshot_of(store.kill()) == before
    assert kit.snapshot_of(store.reopen()) == before


def test_a_rewritten_segment_shows_the_same_records() -> None:
    """[S-280, S-284, DEL-13]"""
    store = Store(reclaim_rewrite=True, rewrite_min_bytes=1, rewrite_every_ms=0, segment_max_events=8)
    engine = store.put()
    for n in range(20):
        write(engine, "x" * 50, tag=f"t{n % 4}")
    engine.checkpoint(full=True)
    for tag in ("t0", "t1", "t2"):
        engine.delete(TOPIC, match=tag)
    before = kit.snapshot_of(engine)
    assert len(before[5]) == 5
    for _ in range(4):
        store.pass_time(15_000)
        engine.checkpoint(full=True)
    assert any(".g0001.data" in path for path in store.files(".data"))
    assert kit.snapshot_of(engine) == before
    assert kit.snapshot_of(store.kill()) == before
    assert store.engine.delete(TOPIC, match="t0").deleted == 0
    assert store.engine.delete(TOPIC, match="t3").deleted == 5


def test_a_snapshot_does_not_count_deletes_that_a_power_loss_takes_back() -> None:
    """06 §14 step 6: marks that are in memory only are not in a row that a start believes."""
    store = Store(segment_max_events=3)
    engine = store.put(durability="disk")
    kit.each(engine, 7)
    engine.checkpoint(full=True)
    engine.delete(TOPIC, seqs=[1, 5])
    store.fail_log_sync(times="always")
    store.clock.advance(60_000)
    engine.tick()
    assert engine.health().state == "read_only"
    store.clock.advance(60_000)
    engine.tick()
    store.mend()
    store.crash()
    assert numbers(store.engine) == (7, 1, 7, store.engine.state(TOPIC).bytes)
    assert kit.everything(store.engine).seqs == list(range(1, 8))


def test_marks_that_replay_finds_in_an_index_are_written_once_more() -> None:
    """S-158: a killed process may have left them in the page cache only; the next checkpoint brings them to disk."""
    store = Store(segment_max_events=3)
    engine = store.put()
    kit.each(engine, 7)
    engine.checkpoint(full=True)
    engine.delete(TOPIC, seqs=[1, 7])
    engine.checkpoint()
    topic = store.kill().core.names[TOPIC]
    assert topic.index.segments is not None
    assert [one.pending.tolist() for one in topic.index.segments.segments] == [[0], [], [0]]
    assert topic.needed
    store.engine.checkpoint(full=True)
    assert not topic.index.segments.has_pending
    store.crash()
    assert kit.everything(store.engine).seqs == [2, 3, 4, 5, 6]


def test_a_delete_that_is_committed_survives_the_machine_at_that_instant() -> None:
    """S-361 `delete.committed`, INV-4: it is synced and not applied yet."""
    store, _ = filled()
    store.sim.crash_at_point("delete.committed")
    with pytest.raises(PowerLoss):
        store.engine.delete(TOPIC, seqs=[3, 5])
    assert live(store.crash()) == [seq for seq in range(1, 13) if seq not in (3, 5)]
