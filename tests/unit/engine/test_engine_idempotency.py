"""Writes that name themselves: keys and producers, live and across every kind of restart (01 §15, 00 A-3, A-4)."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.engine import kit
from tests.unit.engine.kit import TOPIC, Store, numbers, write
from topics.errors import LimitReached, ProducerGap, TopicFull, TopicsError
from topics.model import Producer, new

WINDOW_MS = 120_000
DAY_MS = 86_400_000


def keyed(engine: Any, key: str, *values: object, **more: Any) -> Any:
    return write(engine, *(values or ("v",)), idempotency_key=key, **more)


def produced(engine: Any, epoch: int, index: int, *values: object, id: str = "p", **more: Any) -> Any:
    return write(engine, *(values or ("v",)), producer=Producer(id, epoch, index), **more)


# Keys


def test_a_repeated_key_appends_nothing_and_returns_the_original_answer() -> None:
    """[IDM-1, IDM-2]: the original head as well, whatever was written since."""
    engine = Store().engine
    first = keyed(engine, "k", "a", "b")
    assert (first.created, first.deduped) == (True, False)
    write(engine, "other")
    again = keyed(engine, "k", "a", "b")
    assert (again.first_seq, again.last_seq, again.seqs, again.count, again.head_seq) == (1, 2, [1, 2], 2, 2)
    assert (again.created, again.deduped) == (False, True)
    assert kit.everything(engine).values == ["a", "b", "other"]


def test_the_records_of_a_retry_are_validated_but_not_compared() -> None:
    """[IDM-2]"""
    engine = Store().engine
    keyed(engine, "k", "a")
    again = keyed(engine, "k", "something", "else")
    assert (again.seqs, again.count, again.deduped) == ([1], 1, True)
    with kit.invalid_request():
        engine.append(TOPIC, [{"tag": "no data"}], idempotency_key="k")


def test_keys_are_compared_byte_for_byte_and_belong_to_one_topic() -> None:
    """[IDM-1, IDM-6]"""
    engine = Store().engine
    keyed(engine, "k")
    for key in ("K", "k ", "ḱ"):
        assert not keyed(engine, key).deduped
    assert not keyed(engine, "k", name="other").deduped
    assert keyed(engine, "k").seqs == [1]


@pytest.mark.parametrize("window", [1, WINDOW_MS])
def test_a_key_is_remembered_until_its_window_is_over_and_not_longer(window: int) -> None:
    """[IDM-1]: at the window, and one ms behind it."""
    store = Store()
    engine = store.put(idempotency_window_ms=window)
    keyed(engine, "k")
    store.clock.advance(window)
    assert keyed(engine, "k").deduped
    store.clock.advance(1)
    assert keyed(engine, "k").seqs == [2]
    assert keyed(engine, "k").seqs == [2]


def test_a_window_of_zero_remembers_nothing() -> None:
    """[S-219]"""
    store = Store()
    engine = store.put(idempotency_window_ms=0)
    assert keyed(engine, "k").seqs == [1]
    assert keyed(engine, "k").seqs == [2]
    assert keyed(store.kill(), "k").seqs == [3]


def test_a_clock_that_steps_back_forgets_no_key() -> None:
    """[IDM-1, GEN-2]"""
    store = Store()
    keyed(store.engine, "k")
    store.clock.jump(-DAY_MS)
    assert keyed(store.engine, "k").deduped


def test_a_changed_window_applies_to_keys_already_remembered() -> None:
    """[IDM-1, CFG-3]: the window is that of the topic at the time of the retry."""
    store = Store()
    engine = store.put(idempotency_window_ms=1000)
    keyed(engine, "k")
    store.clock.advance(500)
    store.put(idempotency_window_ms=499)
    assert not keyed(engine, "k").deduped


def test_a_refused_write_leaves_no_key() -> None:
    """[IDM-4]"""
    store = Store()
    engine = store.put(cap_records=1, discard="reject")
    write(engine, "full")
    with pytest.raises(TopicFull):
        keyed(engine, "k")
    engine.delete(TOPIC, before_seq=2)
    assert keyed(engine, "k").seqs == [2]


def test_a_write_whose_commit_failed_leaves_no_key() -> None:
    """[IDM-4, DUR-2]: after a restart the retry is answered as what happened to the first attempt."""
    store = Store()
    engine = store.put()
    write(engine, "before")
    store.fail_log_sync()
    with pytest.raises(TopicsError):
        keyed(engine, "k", "x")
    with pytest.raises(TopicsError):
        keyed(engine, "k", "x")
    assert kit.everything(engine).values == ["before"]
    store.mend()
    engine = store.kill()
    there = kit.everything(engine).values.count("x")
    assert keyed(engine, "k", "x").deduped == (there == 1)
    assert kit.everything(engine).values == ["before", "x"]


def test_a_key_is_looked_up_before_the_full_topic_and_the_quota() -> None:
    """[IDM-5]"""
    store = Store(max_total_bytes=3)
    engine = store.put(cap_records=1, discard="reject")
    keyed(engine, "k", "x")
    with pytest.raises(TopicFull):
        write(engine, "y")
    assert keyed(engine, "k", "x").deduped
    # Nor does it matter that the records of the retry could never fit.
    assert keyed(engine, "k", "x", "y", "z").deduped


def test_a_key_outlives_its_records_as_long_as_its_window() -> None:
    """[IDM-1]: evicted, expired and deleted records are not written again by a retry."""
    store = Store()
    engine = store.put(cap_records=1, ttl_ms=1000)
    keyed(engine, "evicted")
    keyed(engine, "deleted")
    engine.delete(TOPIC, seqs=[2])
    keyed(engine, "expired")
    store.clock.advance(1001)
    assert numbers(engine).count == 0
    assert [keyed(engine, key).seqs for key in ("evicted", "deleted", "expired")] == [[1], [2], [3]]


@pytest.mark.parametrize("place", kit.PLACES[:-1])
def test_keys_survive_wherever_their_records_do(place: str) -> None:
    """[IDM-6, A-3, S-219]: a restart changes the head that is answered to the last seq of the write."""
    store = Store(place)
    engine = store.put(idempotency_window_ms=DAY_MS)
    keyed(engine, "a", 1, 2)
    keyed(engine, "b", 3)
    kit.each(engine, 4, start=4)
    engine = store.settle()
    again = [keyed(engine, key, "?") for key in ("a", "b")]
    assert [(a.seqs, a.count, a.head_seq) for a in again] == [([1, 2], 2, 2), ([3], 1, 3)]
    assert [(a.created, a.deduped) for a in again] == [(False, True)] * 2
    assert numbers(engine).count == 7


def test_keys_survive_in_a_snapshot_when_the_log_is_trimmed() -> None:
    """[A-3, S-219]"""
    store = Store()
    engine = store.put(idempotency_window_ms=10 * DAY_MS)
    keyed(engine, "k", "x")
    store.trim()
    engine = store.kill()
    assert keyed(engine, "k").seqs == [1]
    engine = store.reopen()
    assert keyed(engine, "k").seqs == [1]
    store.trim()
    assert keyed(store.crash(), "k").seqs == [1]


def test_a_window_goes_on_across_a_restart() -> None:
    """[IDM-1, IDM-6]"""
    store = Store()
    keyed(store.put(), "k")
    store.clock.advance(WINDOW_MS)
    assert keyed(store.kill(), "k").deduped
    store.clock.advance(1)
    assert not keyed(store.reopen(), "k").deduped


def test_a_key_that_was_used_anew_keeps_its_newer_seqs_across_restarts() -> None:
    """[S-219]"""
    store = Store()
    engine = store.put(idempotency_window_ms=1000)
    keyed(engine, "k")
    engine.checkpoint(full=True)
    engine.snapshot()
    store.clock.advance(1001)
    keyed(engine, "k")
    for stop in ("killed", "reopened", "killed"):
        assert keyed(store.stop(stop), "k").seqs == [2]


def test_keys_of_an_ephemeral_topic_go_with_its_records() -> None:
    """[IDM-6]"""
    store = Store()
    engine = store.put(durability="ephemeral")
    keyed(engine, "k")
    assert keyed(engine, "k").deduped
    assert not keyed(store.reopen(), "k").deduped


@pytest.mark.parametrize("snapshot", [False, True])
def test_a_recovered_key_never_points_at_a_record_that_was_lost(snapshot: bool) -> None:
    """C19 [S-219, invariant 13]: keyed writes on `disk`, a machine crash that takes the tail, retry."""
    store = Store()
    engine = store.put(durability="disk")
    keyed(engine, "kept", "kept")
    store.pass_time(2000)
    if snapshot:
        engine.checkpoint(full=True)
        engine.snapshot()
    keyed(engine, "lost", "lost")
    produced(engine, 1, 1, "lost too")
    engine = store.crash()
    assert kit.everything(engine).values == ["kept"]
    assert keyed(engine, "kept", "kept").seqs == [1]
    head = numbers(engine).head_seq
    retry = keyed(engine, "lost", "lost")
    assert (retry.deduped, retry.seqs) == (False, [head + 1])
    retry = produced(engine, 1, 1, "lost too")
    assert (retry.deduped, retry.seqs) == (False, [head + 2])
    assert kit.everything(engine).values == ["kept", "lost", "lost too"]


def test_keys_of_a_deleted_topic_are_forgotten() -> None:
    """[NAME-9]"""
    engine = Store().engine
    keyed(engine, "k")
    engine.delete_topic(TOPIC)
    answer = keyed(engine, "k")
    assert (answer.created, answer.deduped, answer.seqs) == (True, False, [1])


def test_the_table_of_keys_is_bounded_and_the_oldest_go_first() -> None:
    """[A-3]"""
    store = Store(idempotency_max_entries=2)
    engine = store.put()
    for key in ("a", "b", "c"):
        keyed(engine, key)
        store.clock.advance(1)
    assert kit.metric(engine, "topics_idempotency_entries") == 2
    assert kit.metric(engine, "topics_idempotency_evicted_total") == 1
    assert keyed(engine, "c").deduped
    assert keyed(engine, "b").deduped
    assert not keyed(engine, "a").deduped


def test_the_bytes_of_keys_are_bounded() -> None:
    """[A-3]"""
    store = Store(idempotency_max_bytes=20)
    engine = store.put()
    for key in ("a" * 10, "b" * 10, "c"):
        keyed(engine, key)
        store.clock.advance(1)
    assert keyed(engine, "b" * 10).deduped
    assert not keyed(engine, "a" * 10).deduped


# Producers


@pytest.mark.parametrize("index", [0, 1, 77, kit.U64_MAX])
def test_the_first_write_of_a_producer_may_have_any_index(index: int) -> None:
    """[A-4]"""
    engine = Store().engine
    answer = produced(engine, 5, index)
    assert (answer.seqs, answer.deduped) == ([1], False)


def test_the_next_index_appends_and_the_newest_write_is_answered_again() -> None:
    """[A-4, IDM-2]"""
    engine = Store().engine
    produced(engine, 1, 0, "a")
    second = produced(engine, 1, 1, "b", "c")
    assert (second.seqs, second.deduped) == ([2, 3], False)
    write(engine, "other")
    again = produced(engine, 1, 1, "b", "c")
    assert (again.seqs, again.count, again.head_seq, again.created, again.deduped) == ([2, 3], 2, 3, False, True)
    assert kit.everything(engine).values == ["a", "b", "c", "other"]


@pytest.mark.parametrize(("epoch", "index"), [(2, 3), (2, 0), (1, 9), (0, kit.U64_MAX)])
def test_an_older_write_is_known_but_its_seqs_are_not(epoch: int, index: int) -> None:
    """[A-4]"""
    engine = Store().engine
    produced(engine, 1, 9)
    produced(engine, 2, 3)
    produced(engine, 2, 4)
    write(engine, "other")
    old = produced(engine, epoch, index)
    assert (old.first_seq, old.last_seq, old.seqs, old.count) == (None, None, None, 0)
    assert (old.head_seq, old.created, old.deduped) == (4, False, True)
    assert numbers(engine).count == 4


@pytest.mark.parametrize("index", [6, 100, kit.U64_MAX])
def test_a_skipped_index_is_a_gap_and_appends_nothing(index: int) -> None:
    """[A-4]"""
    engine = Store().engine
    produced(engine, 3, 4)
    with kit.nothing_changes(engine), pytest.raises(ProducerGap) as caught:
        produced(engine, 3, index)
    assert (caught.value.code, caught.value.epoch, caught.value.index) == ("producer_gap", 3, 4)
    assert produced(engine, 3, 5).seqs == [2]


def test_a_new_epoch_may_begin_with_any_index() -> None:
    """[A-4]"""
    engine = Store().engine
    produced(engine, 1, 5)
    assert produced(engine, 4, 99).seqs == [2]
    assert produced(engine, 4, 100).seqs == [3]
    assert produced(engine, 3, 0).deduped


def test_producers_are_kept_per_topic_and_id() -> None:
    """[A-4]"""
    engine = Store().engine
    produced(engine, 1, 1)
    assert produced(engine, 1, 1, id="q").seqs == [2]
    assert produced(engine, 1, 1, name="other").seqs == [1]
    assert produced(engine, 1, 1).deduped


def test_a_producer_may_be_a_mapping() -> None:
    """[A-4], 02 §4"""
    engine = Store().engine
    write(engine, 1, producer={"id": "p", "epoch": 1, "index": 0})
    assert produced(engine, 1, 0).deduped


def test_a_failed_write_leaves_the_pair_as_it_was() -> None:
    """[A-4]"""
    store = Store()
    engine = store.put(cap_records=2, discard="reject")
    produced(engine, 1, 1)
    write(engine, "full")
    with pytest.raises(TopicFull):
        produced(engine, 1, 2)
    with pytest.raises(TopicFull):
        produced(engine, 2, 50)
    # The newest write is still that of index 1, full or not.
    assert produced(engine, 1, 1).seqs == [1]
    engine.delete(TOPIC, before_seq=2)
    assert produced(engine, 1, 2).seqs == [3]


@pytest.mark.parametrize("place", kit.PLACES[:-1])
def test_producers_survive_every_restart(place: str) -> None:
    """[A-4, S-219]: the newest answer, the older ones and the gap."""
    store = Store(place)
    engine = store.put()
    produced(engine, 1, 0, "a")
    produced(engine, 1, 1, "b", "c")
    write(engine, "d")
    engine = store.settle()
    again = produced(engine, 1, 1)
    assert (again.seqs, again.count, again.head_seq, again.deduped) == ([2, 3], 2, 3, True)
    assert produced(engine, 1, 0).seqs is None
    with pytest.raises(ProducerGap) as caught:
        produced(engine, 1, 3)
    assert (caught.value.epoch, caught.value.index) == (1, 1)
    assert produced(engine, 1, 2).seqs == [5]
    assert kit.everything(engine).values == ["a", "b", "c", "d", "v"]


def test_a_pair_above_the_checkpoint_is_not_lost_and_not_too_new_in_a_snapshot() -> None:
    """[S-219]: the snapshot holds the pair as of its checkpoint, the log the newer one."""
    store = Store()
    engine = store.put(durability="disk")
    produced(engine, 1, 1, "a")
    engine.checkpoint(full=True)
    engine.snapshot()
    produced(engine, 1, 2, "b")
    assert produced(store.kill(), 1, 2).seqs == [2]
    produced(store.engine, 1, 3, "c")
    engine = store.crash()
    kept = kit.everything(engine).values
    assert kept[:1] == ["a"]
    # What was lost is written again, what was not is known.
    for index, value in ((2, "b"), (3, "c")):
        assert produced(engine, 1, index, value).deduped == (value in kept)
    assert sorted(kit.everything(engine).values) == ["a", "b", "c"]


def test_a_producer_unused_for_its_ttl_is_forgotten() -> None:
    """[A-4]: at the TTL, and one ms behind it; use keeps it alive."""
    store = Store(producer_ttl_ms=1000)
    engine = store.put()
    produced(engine, 5, 5)
    for _ in range(3):
        store.clock.advance(1000)
        assert produced(engine, 5, 5).deduped
    store.clock.advance(1001)
    assert produced(engine, 0, 9).seqs == [2]


def test_one_producer_more_than_the_limit_is_refused() -> None:
    """[A-4, RES-2, WR-1]"""
    store = Store(max_producers=2)
    engine = store.put()
    produced(engine, 1, 1, id="a")
    produced(engine, 1, 1, id="b")
    with kit.nothing_changes(engine), pytest.raises(LimitReached) as caught:
        produced(engine, 1, 1, id="c")
    assert (caught.value.limit, caught.value.max) == ("max_producers", 2)
    assert produced(engine, 1, 2, id="a").seqs == [3]
    engine.delete_topic(TOPIC)
    assert produced(engine, 1, 1, id="c").created


@kit.after_every_stop
def test_keyed_and_produced_writes_stay_whole_through_many_restarts(stop: str) -> None:
    """[A-3, A-4, A-16]: recover, write, stop, recover again; each write exactly once."""
    store = Store()
    store.put()
    for round in range(5):
        for _ in range(2):
            keyed(store.engine, f"k{round}", f"k{round}")
            produced(store.engine, 1, round, f"p{round}")
            store.engine.append(TOPIC, [new(f"p{round}")], producer={"id": "p", "epoch": 1, "index": round})
        store.stop(stop)
    assert kit.everything(store.engine).values == [f"{kind}{n}" for n in range(5) for kind in "kp"]
