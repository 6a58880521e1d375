"""Expiry: when, before which operations, and that it is final (01 §8; 06 §15.1)."""

from __future__ import annotations

import pytest

from tests.unit.engine import kit
from tests.unit.engine.kit import TOPIC, Store, gap, numbers, seqs, write
from topics.errors import TopicFull, WalFull
from topics.testing.clock import TEN_YEARS_MS


@kit.at_every_place
def test_a_record_expires_when_it_is_older_than_the_ttl_and_not_before(place: str) -> None:
    """[TTL-1, TTL-2]: at the TTL, and one ms behind it."""
    store = Store(place)
    engine = store.put(ttl_ms=300_000)
    start = store.clock.now_ms()
    write(engine, 1, 2)
    store.clock.advance(10)
    write(engine, 3)
    engine = store.settle()
    store.clock.jump(start + 300_000 - store.clock.now_ms())
    assert numbers(engine) == (3, 1, 3, 3)
    assert seqs(engine.read(TOPIC)) == [1, 2, 3]
    store.clock.advance(1)
    assert numbers(engine) == (3, 3, 1, 1)
    result = engine.read(TOPIC)
    assert (gap(result), seqs(result)) == ((1, 2, "ttl"), [3])
    store.clock.advance(10)
    assert numbers(engine) == (3, 4, 0, 0)
    result = engine.read(TOPIC)
    assert (gap(result), seqs(result), result.next_from_seq) == ((1, 3, "ttl"), [], 3)


def test_a_ttl_of_zero_keeps_records_for_ever() -> None:
    """01 §3"""
    store = Store()
    engine = store.put(ttl_ms=0)
    write(engine, 1)
    store.clock.jump(TEN_YEARS_MS)
    engine.tick()
    assert numbers(engine).count == 1


def test_a_huge_ttl_does_not_overflow() -> None:
    """[GEN-2]"""
    store = Store()
    engine = store.put(ttl_ms=kit.U64_MAX)
    write(engine, 1)
    store.clock.jump(TEN_YEARS_MS)
    engine.tick()
    assert numbers(store.kill()).count == 1


def expired(ttl_ms: int = 100, **config: object) -> Store:
    """A topic of three records that have just expired, and nobody has looked since."""
    store = Store()
    engine = store.put(ttl_ms=ttl_ms, **config)
    kit.each(engine, 3, tag="x")
    store.clock.advance(ttl_ms + 1)
    return store


def test_expiry_is_applied_before_a_state_read() -> None:
    """[TTL-3, STA-1]"""
    store = expired()
    state = store.engine.state(TOPIC)
    assert (state.head_seq, state.earliest_seq, state.count, state.bytes, state.earliest_ts) == (3, 4, 0, 0, None)


def test_expiry_is_applied_before_a_read() -> None:
    """[TTL-3]"""
    result = expired().engine.read(TOPIC, 1)
    assert (gap(result), seqs(result), result.earliest_seq) == ((2, 3, "ttl"), [], 4)


def test_expiry_is_applied_before_a_delete() -> None:
    """[TTL-3, DEL-10]: an expired record is not deleted, so it is told."""
    for selector in ({"match": "x"}, {"before_seq": 4}, {"seqs": [1, 2, 3]}):
        store = expired()
        result = store.engine.delete(TOPIC, **selector)
        assert (result.deleted, result.count, result.earliest_seq) == (0, 0, 4)
        assert gap(store.engine.read(TOPIC)) == (1, 3, "ttl")


def test_expired_records_make_room_in_a_topic_that_rejects() -> None:
    """[TTL-3, CAP-3]: write admission."""
    engine = expired(cap_records=3, discard="reject").engine
    write(engine, 4, 5, 6)
    with pytest.raises(TopicFull):
        write(engine, 7)
    assert numbers(engine) == (6, 4, 3, 3)


def test_a_full_topic_that_rejects_reports_the_floor_after_expiry() -> None:
    """[TTL-3, CAP-3]"""
    store = Store()
    engine = store.put(ttl_ms=100, cap_records=3, discard="reject")
    kit.each(engine, 2)
    store.clock.advance(60)
    write(engine, 3)
    store.clock.advance(41)
    write(engine, 4, 5)
    with pytest.raises(TopicFull) as caught:
        write(engine, 6)
    assert (caught.value.head_seq, caught.value.earliest_seq) == (5, 3)


def test_an_applied_expiry_is_final_when_the_clock_steps_back() -> None:
    """[TTL-4, S-263, S-265]"""
    store = expired()
    engine = store.engine
    assert numbers(engine).count == 0
    store.clock.jump(-TEN_YEARS_MS)
    assert numbers(engine) == (3, 4, 0, 0)
    assert gap(engine.read(TOPIC)) == (1, 3, "ttl")
    # Time does not run backwards for the topic: what comes now is as old as the newest record.
    write(engine, 4)
    assert seqs(engine.read(TOPIC, 3)) == []


def test_an_applied_expiry_is_final_when_the_ttl_is_lifted() -> None:
    """[TTL-4]"""
    store = expired()
    assert numbers(store.engine).count == 0
    store.put(ttl_ms=0)
    assert numbers(store.engine) == (3, 4, 0, 0)
    assert gap(store.engine.read(TOPIC)) == (1, 3, "ttl")


@kit.after_every_stop
@pytest.mark.parametrize("durability", ["memory", "disk", "fsync"])
def test_an_expiry_that_was_seen_survives_any_stop(durability: str, stop: str) -> None:
    """[DUR-12, TTL-4]: it is durable before it is observable, also when the clock steps back meanwhile."""
    store = Store()
    engine = store.put(ttl_ms=100, durability=durability)
    kit.each(engine, 3)
    store.clock.advance(50)
    write(engine, 4)
    store.clock.advance(51)
    assert numbers(engine) == (4, 4, 1, 1)
    store.clock.jump(-1000)
    engine = store.stop(stop)
    engine.put_topic(TOPIC, {"durability": durability})
    state = engine.state(TOPIC)
    assert state.earliest_seq >= 4
    assert [seq for seq in kit.everything(engine).seqs if seq < 4] == []
    told = gap(engine.read(TOPIC, 0))
    assert told is not None
    assert told[0] == 1
    assert told[1] >= 3


def test_an_expiry_nobody_saw_is_found_after_the_restart() -> None:
    """[TTL-2, TTL-3]"""
    store = expired()
    engine = store.kill()
    assert numbers(engine) == (3, 4, 0, 0)
    assert gap(engine.read(TOPIC)) == (1, 3, "ttl")


def test_the_sweep_applies_expiry_without_anybody_looking() -> None:
    """[S-264, S-355]: so that a later step back of the clock finds it done."""
    store = expired()
    store.pass_time(1000)
    store.clock.jump(-TEN_YEARS_MS)
    engine = store.kill()
    engine.put_topic(TOPIC, {"durability": "fsync"})
    assert numbers(engine).count == 0
    assert gap(engine.read(TOPIC)) == (1, 3, "ttl")


def test_a_tightened_ttl_expires_what_is_too_old_by_it() -> None:
    """[CFG-9]"""
    store = Store()
    engine = store.put()
    write(engine, 1)
    store.clock.advance(100)
    write(engine, 2)
    store.put(ttl_ms=99)
    result = engine.read(TOPIC)
    assert (gap(result), seqs(result)) == ((1, 1, "ttl"), [2])


def test_a_ttl_that_is_in_force_is_answered_though_nothing_can_expire_now(monkeypatch: pytest.MonkeyPatch) -> None:
    """[CFG-9]: the change itself is logged; what it lets expire goes with the next operation."""
    store = Store()
    engine = store.put()
    write(engine, "old")
    store.clock.advance(1001)

    def refuse(*given: object, **more: object) -> None:
        raise WalFull("no room for that")

    with monkeypatch.context() as patch:
        patch.setattr(engine.core, "submit", refuse)
        created, config = engine.put_topic(TOPIC, {"durability": "fsync", "ttl_ms": 1000})
    assert (created, config.ttl_ms) == (False, 1000)
    assert numbers(engine) == (1, 2, 0, 0)
    write(engine, "new")
    engine = store.kill()
    assert engine.state(TOPIC).config.ttl_ms == 1000
    assert kit.everything(engine).values == ["new"]


def test_expired_records_never_return_on_an_ephemeral_topic() -> None:
    """[DUR-14, S-263]: without a log."""
    store = Store()
    engine = store.put(durability="ephemeral", ttl_ms=100)
    kit.each(engine, 3)
    store.clock.advance(101)
    assert gap(engine.read(TOPIC)) == (1, 3, "ttl")
    store.clock.jump(-1000)
    assert numbers(engine).count == 0


def test_records_written_under_a_clock_set_far_ahead_do_not_expire_early() -> None:
    """[REC-10, TTL-1]: age is by `$ts`, which never decreases."""
    store = Store()
    engine = store.put(ttl_ms=1000)
    store.clock.jump(TEN_YEARS_MS)
    write(engine, 1)
    store.clock.jump(-TEN_YEARS_MS)
    write(engine, 2)
    store.clock.advance(5000)
    assert seqs(engine.read(TOPIC)) == [1, 2]


@kit.at_every_place
def test_expiry_finds_its_boundary_among_many_records(place: str) -> None:
    """[S-263]: for every boundary, wherever the records lie."""
    store = Store(place)
    engine = store.put(ttl_ms=1_000_000)
    start = store.clock.now_ms()
    for n in range(1, 13):
        write(engine, n)
        store.clock.advance(10)
    engine = store.settle()
    store.clock.jump(start + 1_000_000 - store.clock.now_ms())
    for gone in range(1, 13):
        store.clock.jump(10 * (gone - 1) + 1)
        assert numbers(engine)[:3] == (12, gone + 1, 12 - gone)
        assert gap(engine.read(TOPIC, 0)) == (1, gone, "ttl")
        store.clock.jump(-(10 * (gone - 1) + 1))
