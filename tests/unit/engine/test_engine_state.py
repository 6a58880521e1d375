"""Topic state: exact numbers, recency, effective priority (01 §5, §16; 02 §3.2)."""

from __future__ import annotations

import pytest

from tests.unit.engine import kit
from tests.unit.engine.kit import TOPIC, Store, numbers, write
from topics.errors import TopicNotFound


def test_a_fresh_topic() -> None:
    """[STA-2, TOP-6]"""
    engine = Store().put()
    state = engine.state(TOPIC, touch=False)
    assert (state.topic, state.type) == (TOPIC, "log")
    assert (state.head_seq, state.next_seq, state.earliest_seq, state.count, state.bytes) == (0, 1, 1, 0, 0)
    assert (state.last_write_ts, state.last_read_ts, state.earliest_ts) == (None, None, None)
    assert (state.effective_priority, state.queue) == (0, None)


def test_the_state_of_an_absent_topic() -> None:
    """[TOP-4]"""
    with pytest.raises(TopicNotFound) as caught:
        Store().engine.state("absent")
    assert (caught.value.code, caught.value.topic) == ("topic_not_found", "absent")


@kit.at_every_place
def test_the_numbers_are_exact_after_every_operation(place: str) -> None:
    """[STA-1, STA-3, S-157, INV-7]"""
    store = Store(place)
    engine = store.put(cap_records=5, ttl_ms=1000)
    write(engine, "a", tag="x")
    assert numbers(engine) == (1, 1, 1, 3)
    write(engine, "bb", "ccc", tag="y")
    assert numbers(engine) == (3, 1, 3, 12)
    engine.delete(TOPIC, match="x")
    assert numbers(engine) == (3, 2, 2, 9)
    store.clock.advance(500)
    write(engine, 1, 2, 3, 4)
    assert numbers(engine) == (7, 3, 5, 9)
    engine.delete(TOPIC, seqs=[5, 7])
    assert numbers(engine) == (7, 3, 3, 7)
    store.clock.advance(501)
    assert numbers(engine) == (7, 4, 2, 2)
    if place == "trimmed":
        return
    engine = store.settle()
    assert numbers(engine) == (7, 4, 2, 2)
    state = engine.state(TOPIC)
    assert state.next_seq == 8
    assert state.earliest_ts == store.clock.now_ms() - 501


def test_the_first_live_record_dates_the_topic() -> None:
    """[TOP-6]: `earliest_ts`"""
    store = Store()
    engine = store.put()
    start = store.clock.now_ms()
    for n in range(3):
        write(engine, n)
        store.clock.advance(10)
    assert engine.state(TOPIC).earliest_ts == start
    engine.delete(TOPIC, seqs=[1])
    assert engine.state(TOPIC).earliest_ts == start + 10
    engine.delete(TOPIC, before_seq=9)
    assert engine.state(TOPIC).earliest_ts is None


def test_the_last_write_is_dated_by_the_clock_of_its_publication() -> None:
    """01 §5: also when the clock stepped back, and not by deletes or config changes."""
    store = Store()
    engine = store.put()
    write(engine, 1)
    assert engine.state(TOPIC).last_write_ts == store.clock.now_ms()
    store.clock.advance(10)
    engine.delete(TOPIC, seqs=[1])
    store.put(ttl_ms=0)
    assert engine.state(TOPIC).last_write_ts == store.clock.now_ms() - 10
    write(engine, 2)
    assert engine.state(TOPIC).last_write_ts == store.clock.now_ms()


def test_a_touching_state_read_and_a_read_date_the_last_read() -> None:
    """[TOP-5, DIF-3]: already in the answer of the one that touches."""
    store = Store()
    engine = store.put()
    write(engine, 1)
    assert engine.state(TOPIC, touch=False).last_read_ts is None
    assert engine.state(TOPIC).last_read_ts == store.clock.now_ms()
    store.clock.advance(10)
    assert engine.state(TOPIC, touch=False).last_read_ts == store.clock.now_ms() - 10
    engine.read(TOPIC)
    assert engine.state(TOPIC, touch=False).last_read_ts == store.clock.now_ms()


def test_state_is_touched_unless_told_otherwise() -> None:
    """[TOP-5]"""
    engine = Store().put()
    assert engine.state(TOPIC).effective_priority == 500


@pytest.mark.parametrize(
    ("idle_ms", "priority"),
    [(0, 500), (15_000, 354), (30_000, 250), (60_000, 125), (120_000, 31), (299_999, 0), (300_000, 0), (10**9, 0)],
)
def test_the_priority_of_a_consumed_topic_decays(idle_ms: int, priority: int) -> None:
    """[PRI-1, PRI-3]"""
    store = Store()
    engine = store.put()
    engine.read(TOPIC)
    store.clock.advance(idle_ms)
    assert engine.state(TOPIC, touch=False).effective_priority == priority


def test_a_topic_that_was_never_consumed_has_no_priority() -> None:
    """[PRI-3, PRI-4]: writes and deletes do not consume."""
    engine = Store().put()
    kit.each(engine, 3)
    engine.delete(TOPIC, seqs=[1])
    assert engine.state(TOPIC, touch=False).effective_priority == 0


@pytest.mark.parametrize(("given", "used"), [(7, 7), (-7, -7), (5000, 1000), (-5000, -1000), (0, 0)])
def test_a_manual_priority_is_clamped_on_use_and_switches_recency_off(given: int, used: int) -> None:
    """[PRI-2, CFG-6]"""
    engine = Store().put(priority=given)
    engine.read(TOPIC)
    assert engine.state(TOPIC).effective_priority == used
    assert engine.state(TOPIC).config.priority == given


def test_recency_can_be_switched_off() -> None:
    """01 §16"""
    engine = Store().put(auto_priority=False)
    engine.read(TOPIC)
    assert engine.state(TOPIC).effective_priority == 0


def test_floors_and_heads_never_move_back() -> None:
    """[STA-3, INV-7]: whatever the clock and the configuration do."""
    store = Store()
    engine = store.put()
    seen = [numbers(engine)]
    for step in range(30):
        match step % 6:
            case 0:
                write(engine, *range(3), tag=f"t{step % 4}")
            case 1:
                store.put(cap_records=4 + step % 3)
            case 2:
                engine.delete(TOPIC, match=f"t{step % 4}")
            case 3:
                store.put(ttl_ms=1000)
                store.clock.advance(700)
            case 4:
                store.clock.jump(-5000)
            case 5:
                store.kill()
                engine = store.engine
        seen.append(numbers(engine))
        assert seen[-1].earliest_seq >= seen[-2].earliest_seq
        assert seen[-1].head_seq >= seen[-2].head_seq
        assert seen[-1].earliest_seq <= seen[-1].head_seq + 1
